"""The harness of the attacks itself: what it holds against the store, and when it ends."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from pipeline.base.domain.tags import GROUP, JOB
from tests.attack import __main__ as rounds
from tests.attack import figures, timed_rows
from tests.attack.bench import Outcome
from tests.attack.store_reader import StoredRun
from tests.attack.timed_rows import Work

_PRINTED = """
group      blocks  result  samples/s  makespan s
naive-2x   3       ok*     {}      3.0
figures are medians over the blocks
"""


def _make_run(block: int, rate: float, **tags: str) -> StoredRun:
    metrics = {"throughput_total_samples_per_s": rate, "makespan_s": 3.0}
    return StoredRun(f"run{block}", "naive-2x", "FINISHED", {"role": GROUP, "block": str(block), **tags}, metrics)


@pytest.mark.parametrize(
    ("tags", "median"),
    [
        (({"result": "ok"}, {"result": "ok"}, {"result": "ok"}), "200.0"),
        (({"result": "ok"}, {"result": "ok"}, {"result": "ok", "invalid": "the clock was set"}), "150.0"),
        (({"result": "ok", "invalid": "suspended"}, {"result": "failed"}, {"result": "failed"}), "100.0"),
        (({"result": "ok", "flag": "power cap"}, {"result": "ok"}, {"result": "failed"}), "150.0"),
    ],
)
def test_a_printed_figure_is_the_median_over_the_valid_blocks(monkeypatch, tmp_path, tags, median):
    runs = [_make_run(number, 100.0 * number, **tag) for number, tag in enumerate(tags, start=1)]
    monkeypatch.setattr(figures, "read_runs", lambda *_: runs)
    differences = list(figures.differences(_PRINTED.format(median), tmp_path, "e"))
    assert [text for text in differences if "samples/s" in text or "makespan" in text] == []
    wrong = list(figures.differences(_PRINTED.format("123.4"), tmp_path, "e"))
    assert f"naive-2x: samples/s is 123.4 in the table, {median} in the store" in wrong


def _work(*, pause_ms: int = 0, held_ms: int = 0) -> Work:
    """Return ten steps of 10 ms for each pause; the program is held before the twentieth."""
    spans, now, held = [], 0, 0
    for number in range(1, 41):
        if number == 20:
            now, held = now + held_ms, held + held_ms
        spans.append((now * 10**6, (now + 10) * 10**6, held * 10**6))
        now += 10 + (pause_ms if number % 10 == 0 else 0)
    return Work(spans=spans, steps=10, step_ms=10.0)


def test_a_true_rate_counts_pauses_and_no_time_on_hold():
    assert _work().rate == pytest.approx(100)
    assert _work(held_ms=500).rate == pytest.approx(100)
    assert _work(pause_ms=100, held_ms=500).rate == pytest.approx(50)
    assert _work(pause_ms=100).rate_within([(0, 200_000_000)]) == pytest.approx(50)
    assert _work().count([(5_000_000, 25_000_000)]) == pytest.approx(2)


@pytest.mark.parametrize(("rate", "mark", "num_problems"), [(98.5, "", 0), (90.0, "", 1), (90.0, "it paused", 0)])
def test_a_wrong_rate_is_a_problem_without_a_mark(monkeypatch, tmp_path, rate, mark, num_problems):
    times = {"window_start_ns": "0", "window_end_ns": str(300 * 10**6), "result": "ok", "flag": mark}
    group = StoredRun("g", "naive-1x", "FINISHED", {"role": GROUP, **times})
    tags = {"role": JOB, "index": "0", "mlflow.parentRunId": "g"}
    job = StoredRun("j", "0-toy", "FINISHED", tags, {"throughput_samples_per_s": rate})
    monkeypatch.setattr(timed_rows, "read_runs", lambda *_: [group, job])
    monkeypatch.setattr(timed_rows.Store, "works_of", lambda *_: {0: _work()})
    judgement = timed_rows.judge(tmp_path, "e", is_steady=True)
    assert (len(judgement.problems), judgement.marks) == (num_problems, [f"naive-1x: {mark}"] if mark else [])


def test_steady_programs_may_have_few_marks(capsys):
    tally = rounds.Tally()
    tally.add("rates", 1, Outcome("steps", num_steady=40, marks=["a: late", "b: late"]))
    assert not tally.has_idle_marks
    tally.add("rates", 2, Outcome("steps", num_steady=0, marks=["c: late"]))
    assert tally.has_idle_marks
    tally.print_summary()
    assert "3 of 40 rows of steady programs have a mark" in capsys.readouterr().out


def test_a_round_ends_with_its_time_and_judges_nothing_that_it_cut(monkeypatch, tmp_path):
    is_killed = threading.Event()

    def attack(*_: object) -> Outcome:
        is_killed.wait(60)
        return Outcome("of what was cut", ["its programs were killed"])

    monkeypatch.setattr(rounds, "ATTACKS", {"a": (0, attack), "long": (60, attack)})
    monkeypatch.setattr(rounds, "kill_studies", is_killed.set)
    attacks, begin_s = rounds.Round(["a", "long"], itertools.count(1), 0.5), time.monotonic()
    attacks.run(tmp_path, 2)
    assert 0.5 <= time.monotonic() - begin_s < 5
    assert (attacks.tally.num_cut, attacks.tally.num_attacks, attacks.tally.num_failed) == (2, 0, 0)
