"""What requests say, against queues whose answer is known; and windows, overload and tokens by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.requests import waiting_quantile
from pipeline.base.domain.workload import Objective
from pipeline.launch import requests
from pipeline.launch.requests import Requests
from pipeline.observe import latency
from workloads import client

S, MS = 1_000_000_000, 1_000_000
SERVICE_NS = MS


def recorded(folder: Path, rows: list[tuple[int, ...]] | np.ndarray) -> Requests:
    """Requests as a job records them and the orchestrator reads them."""
    folder.mkdir(exist_ok=True)
    (folder / client.JOB_FILE).write_text(json.dumps({"index": 0, "socket": ""}))
    job = client.Job(str(folder))
    for row in rows.tolist() if isinstance(rows, np.ndarray) else rows:
        job.request(*row)
    job._write_requests()
    found = requests.read(folder / client.REQUESTS_FILE)
    assert found is not None
    return found


def queued(load: float, count: int, *, waits_for_answers: bool = False) -> np.ndarray:
    """Poisson arrivals at one server that takes the same time for each: intended, sent, begun, done.

    With `waits_for_answers`, whoever sends them does so one after another, and believes that to have been intended.
    """
    random = np.random.default_rng(14)
    due = S + np.cumsum(random.exponential(SERVICE_NS / load, count)).astype(np.int64)
    # Lindley: an answer comes one service after the later of its arrival and the answer before.
    turns = np.arange(count) * SERVICE_NS
    begun = np.maximum.accumulate(due - turns) + turns
    sent = begun if waits_for_answers else due
    return np.stack([sent, sent, begun, begun + SERVICE_NS], axis=1)


def errors(load: float, found: dict[str, float]) -> dict[str, float]:
    """How far the figures are from M/D/1's, relative to them."""
    theory = {"latency_mean_ms": 1 + load / (2 * (1 - load))}
    theory |= {f"latency_p{percent}_ms": 1 + waiting_quantile(load, percent / 100) for percent in (50, 95, 99)}
    return {name: abs(found[name] / wanted - 1) for name, wanted in theory.items()}


@pytest.mark.parametrize(("load", "count"), [(0.5, 100_000), pytest.param(0.8, 1_000_000, marks=pytest.mark.slow)])
def test_percentiles_are_those_of_an_m_d_1_queue(tmp_path, load, count):
    rows = queued(load, count)
    window = (S, int(rows[-1, 0]) + 1)
    figures = latency.compute_figures(recorded(tmp_path / "open", rows), window, is_rate_given=True)
    assert max(errors(load, figures).values()) < 0.02
    assert figures["service_mean_ms"] == pytest.approx(1)
    assert figures["queue_mean_ms"] == pytest.approx(load / (2 * (1 - load)), rel=0.02)
    assert figures["throughput_requests_per_s"] == pytest.approx(1000 * load, rel=0.01)
    assert figures["rate_sustained_ratio"] == 1
    # Whoever waits for answers before he sends, and counts from there, omits what the requests waited.
    waits = latency.compute_figures(recorded(tmp_path / "waits", queued(load, 50_000, waits_for_answers=True)), window)
    assert max(errors(load, waits).values()) > 0.5


def test_a_request_belongs_to_the_window_it_was_meant_for_and_an_answer_to_the_one_it_came_in(tmp_path):
    # Due every 10 ms from 0.95 s on, answered 80 ms later; the window is from 1 s to 2 s.
    due = [S - 50 * MS + number * 10 * MS for number in range(110)]
    rows = [(at, at + MS, at + 60 * MS, at + 80 * MS) for at in due]
    figures = latency.compute_figures(
        recorded(tmp_path, rows), (S, 2 * S), is_rate_given=True, objective=Objective(latency_ms=79)
    )
    assert figures["num_requests"] == 100
    assert figures["throughput_requests_per_s"] == 97
    assert (figures["latency_mean_ms"], figures["latency_std_ms"], figures["latency_p50_ms"]) == (80, 0, 80)
    assert (figures["queue_mean_ms"], figures["service_mean_ms"], figures["send_late_p50_ms"]) == (60, 20, 1)
    assert figures["goodput_requests_per_s"] == 0
    assert not {"latency_p95_ms", "latency_p99_ms"} & set(figures), "a percentile of 100 values is no tail"
    in_time = Objective(latency_ms=80, percentile=50)
    figures = latency.compute_figures(recorded(tmp_path / "in_time", rows), (S, 2 * S), objective=in_time)
    assert (figures["goodput_requests_per_s"], figures["objective_met_ratio"]) == (97, 1)


def test_what_was_never_answered_is_slower_than_all_that_was(tmp_path):
    # One request a ms, one answered every 2 ms until the window ends after 2 s: the second half is never answered.
    due = range(S, 3 * S, MS)
    rows = [(at, at, S + 2 * (at - S), S + 2 * (at - S) + 2 * MS) for at in due[:1000]]
    rows += [(at, at, 0, 0) for at in due[1000:]]
    figures = latency.compute_figures(recorded(tmp_path, rows), (S, 3 * S), is_rate_given=True)
    assert figures["num_requests"] == 2000
    assert figures["throughput_requests_per_s"] == pytest.approx(500, abs=1)
    assert figures["rate_sustained_ratio"] == pytest.approx(0.5, abs=0.001)
    assert figures["latency_p50_ms"] == pytest.approx(1001, abs=1)
    assert not {"latency_mean_ms", "latency_std_ms", "latency_p95_ms", "queue_mean_ms"} & set(figures)


def test_a_queue_that_grows_is_seen_even_if_all_of_it_is_answered_in_the_end(tmp_path):
    due = range(S, 2 * S, MS)
    rows = [(at, at, S + int(1.1 * (at - S)), S + int(1.1 * (at - S)) + MS) for at in due]
    figures = latency.compute_figures(recorded(tmp_path, rows), (S, 2 * S), is_rate_given=True)
    assert figures["latency_mean_ms"] == pytest.approx(51, abs=1)
    assert figures["rate_sustained_ratio"] == pytest.approx(1 / 1.1, abs=0.002)


def test_a_generator_that_stays_behind_is_told_from_a_service_that_does(tmp_path):
    due = range(S, 2 * S, MS)
    slow = [(at, S + 2 * (at - S), S + 2 * (at - S), S + 2 * (at - S) + MS) for at in due]
    assert "sent 500 of the 1000" in (latency.describe_lateness(recorded(tmp_path / "slow", slow), (S, 2 * S)) or "")
    ended = slow[:500]  # told to stop with the window
    assert "sent 500 of the 998" in (latency.describe_lateness(recorded(tmp_path / "ended", ended), (S, 2 * S)) or "")
    # Of those that were due in this window, it came to none.
    assert "sent 500 of the 997" in (latency.describe_lateness(recorded(tmp_path / "none", slow), (2 * S, 3 * S)) or "")
    late = [(at, at + 3 * MS, at + 3 * MS, at + 5 * MS) for at in due]
    assert "3 ms late" in (latency.describe_lateness(recorded(tmp_path / "late", late), (S, 2 * S)) or "")
    queue = [(at, at, S + 2 * (at - S), S + 2 * (at - S) + MS) for at in due]
    assert latency.describe_lateness(recorded(tmp_path / "queue", queue), (S, 2 * S)) is None


def test_tokens_have_a_first_and_a_time_each(tmp_path):
    rows = [(at, at, at + MS, at + 31 * MS, at + 11 * MS, 5, 2) for at in range(S, 2 * S, 10 * MS)]
    figures = latency.compute_figures(recorded(tmp_path, rows), (S, 2 * S))
    assert (figures["first_token_mean_ms"], figures["first_token_p50_ms"]) == (11, 11)
    assert (figures["per_token_mean_ms"], figures["batch_mean_requests"]) == (5, 2)
    assert figures["throughput_tokens_per_s"] == 97 * 5
    # What was never answered has no first token either: it is slower than all.
    few = [*rows, *[(2 * S - 1, 2 * S - 1, 0, 0)] * 20]
    figures = latency.compute_figures(recorded(tmp_path / "few", few), (S, 2 * S))
    assert figures["first_token_p50_ms"] == 11
    assert not {"first_token_mean_ms", "first_token_p95_ms"} & set(figures)
    assert figures["per_token_p50_ms"] == 5


def test_of_a_server_that_says_nothing_of_itself_only_the_whole_is_known(tmp_path):
    rows = [(at, at, 0, at + 31 * MS, at + 11 * MS, 5) for at in range(S, 2 * S, 10 * MS)]
    figures = latency.compute_figures(recorded(tmp_path, rows), (S, 2 * S))
    assert (figures["latency_mean_ms"], figures["first_token_mean_ms"], figures["per_token_mean_ms"]) == (31, 11, 5)
    assert not {"queue_mean_ms", "service_mean_ms", "batch_mean_requests"} & set(figures)


def test_records_that_cannot_be_are_counted_and_a_torn_one_is_not(tmp_path):
    good, later, path = (S, S, S, S + MS), (S, S, S, S + 2 * MS), tmp_path / client.REQUESTS_FILE
    impossible = [
        (S, S - 1, S, S),
        (S, S, S, S - 1),
        (S, S + 2, 0, S + 1),
        (0, S, S, S),
        (S, S, S, S, S + 1),
        (S, S, S, S, 0, -1),
    ]
    assert len(found := recorded(tmp_path, [good, *impossible, later])) == 2
    assert len(found.damages) == len(impossible)
    path.write_bytes(path.read_bytes()[:-1])
    torn = requests.read(path)
    assert torn is not None
    assert (len(torn), len(torn.damages)) == (1, len(impossible))
    assert latency.make_series(recorded(tmp_path / "all", impossible)) == {}
    path.write_bytes(b"torn")
    assert requests.read(path) is None
    path.unlink()
    path.symlink_to(tmp_path / client.JOB_FILE)
    assert requests.read(path) is None, "a job may have replaced it"


def test_series_are_thinned(tmp_path):
    rows = queued(0.5, 20_000)
    series = latency.make_series(recorded(tmp_path, rows))
    assert {len(points) for points in series.values()} == {latency.SERIES_POINTS}
    answered = [value for _, _, value in series["answered_requests_per_s"]]
    assert np.mean(answered) == pytest.approx(500, rel=0.02)
    assert np.mean([value for _, _, value in series["latency_ms"]]) == pytest.approx(1.5, rel=0.03)
