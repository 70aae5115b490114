"""The harness of the attacks itself: what it holds against the store, and when it ends."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from pipeline.base.domain.tags import GROUP
from tests.attack import __main__ as rounds
from tests.attack import figures
from tests.attack.bench import Outcome
from tests.attack.store_reader import StoredRun

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
