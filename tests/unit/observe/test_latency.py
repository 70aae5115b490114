"""What requests say, against queues whose answer is known; and windows, overload and tokens by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.percentiles import measure_coverage, simulate_claims, simulate_latencies
from benchmarks.requests import waiting_quantile
from pipeline.base.domain.records import Result
from pipeline.base.domain.samples import Sample
from pipeline.base.domain.window import WindowKind
from pipeline.base.domain.workload import Objective
from pipeline.launch import requests
from pipeline.launch.job_state import JobState
from pipeline.launch.requests import Requests
from pipeline.observe import latency
from pipeline.observe.latency import estimate_number, has_enough, suggest_length
from tests.support.rows import S, group, judge, state, steps
from workloads import client

MS = 1_000_000
SERVICE_NS = MS


def record_requests(folder: Path, rows: list[tuple[int, ...]] | np.ndarray) -> Requests:
    """Requests as a job records them and the orchestrator reads them."""
    folder.mkdir(exist_ok=True)
    (folder / client.JOB_FILE).write_text(json.dumps({"index": 0, "socket": ""}))
    job = client.Job(str(folder))
    for row in rows.tolist() if isinstance(rows, np.ndarray) else rows:
        job.request(*row)
    job._write_requests()
    job_requests = requests.read(folder / client.REQUESTS_FILE)
    assert job_requests is not None
    return job_requests


def queue_requests(load: float, count: int, *, waits_for_answers: bool = False) -> np.ndarray:
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


def compute_errors(load: float, metrics: dict[str, float]) -> dict[str, float]:
    """How far the figures are from M/D/1's, relative to them."""
    theory = {"latency_mean_ms": 1 + load / (2 * (1 - load))}
    theory |= {f"latency_p{percent}_ms": 1 + waiting_quantile(load, percent / 100) for percent in (50, 95, 99)}
    return {name: abs(metrics[name] / expected - 1) for name, expected in theory.items()}


@pytest.mark.parametrize(("load", "count"), [(0.5, 100_000), pytest.param(0.8, 1_000_000, marks=pytest.mark.slow)])
def test_percentiles_are_those_of_an_m_d_1_queue(tmp_path, load, count):
    rows = queue_requests(load, count)
    window = (S, int(rows[-1, 0]) + 1)
    figures = latency.compute_figures(record_requests(tmp_path / "open", rows), window, is_rate_given=True)
    assert max(compute_errors(load, figures).values()) < 0.02
    assert figures["service_mean_ms"] == pytest.approx(1)
    assert figures["queue_mean_ms"] == pytest.approx(load / (2 * (1 - load)), rel=0.02)
    assert figures["throughput_requests_per_s"] == pytest.approx(1000 * load, rel=0.01)
    assert figures["rate_sustained_ratio"] == 1
    # Whoever waits for answers before he sends, and counts from there, omits what the requests waited.
    waits = latency.compute_figures(
        record_requests(tmp_path / "waits", queue_requests(load, 50_000, waits_for_answers=True)), window
    )
    assert max(compute_errors(load, waits).values()) > 0.5


def test_a_request_belongs_to_the_window_it_was_meant_for_and_an_answer_to_the_one_it_came_in(tmp_path):
    # Due every 10 ms from 0.95 s on, answered 80 ms later; the window is from 1 s to 2 s.
    due = [S - 50 * MS + number * 10 * MS for number in range(110)]
    rows = [(at, at + MS, at + 60 * MS, at + 80 * MS) for at in due]
    figures = latency.compute_figures(
        record_requests(tmp_path, rows), (S, 2 * S), is_rate_given=True, objective=Objective(latency_ms=79)
    )
    assert figures["num_requests"] == 100
    assert figures["throughput_requests_per_s"] == 97
    assert (figures["latency_mean_ms"], figures["latency_std_ms"], figures["latency_p50_ms"]) == (80, 0, 80)
    assert (figures["queue_mean_ms"], figures["service_mean_ms"], figures["send_late_p50_ms"]) == (60, 20, 1)
    assert figures["goodput_requests_per_s"] == 0
    assert not {"latency_p95_ms", "latency_p99_ms"} & set(figures), "a percentile of 100 values is no tail"
    in_time = Objective(latency_ms=80, percentile=50)
    figures = latency.compute_figures(record_requests(tmp_path / "in_time", rows), (S, 2 * S), objective=in_time)
    assert (figures["goodput_requests_per_s"], figures["objective_met_ratio"]) == (99.625, 1)  # of clients that wait


def test_what_was_never_answered_is_slower_than_all_that_was(tmp_path):
    # One request a ms, one answered every 2 ms until the window ends after 2 s: the second half is never answered.
    due = range(S, 3 * S, MS)
    rows = [(at, at, S + 2 * (at - S), S + 2 * (at - S) + 2 * MS) for at in due[:1000]]
    rows += [(at, at, 0, 0) for at in due[1000:]]
    figures = latency.compute_figures(record_requests(tmp_path, rows), (S, 3 * S), is_rate_given=True)
    assert figures["num_requests"] == 2000
    assert figures["throughput_requests_per_s"] == pytest.approx(500, abs=1)
    assert figures["rate_sustained_ratio"] == pytest.approx(0.5, abs=0.001)
    assert figures["latency_p50_ms"] == pytest.approx(1001, abs=1)
    assert not {"latency_mean_ms", "latency_std_ms", "latency_p95_ms", "queue_mean_ms"} & set(figures)


def test_a_queue_that_grows_is_seen_even_if_all_of_it_is_answered_in_the_end(tmp_path):
    due = range(S, 2 * S, MS)
    rows = [(at, at, S + int(1.1 * (at - S)), S + int(1.1 * (at - S)) + MS) for at in due]
    figures = latency.compute_figures(record_requests(tmp_path, rows), (S, 2 * S), is_rate_given=True)
    assert figures["latency_mean_ms"] == pytest.approx(51, abs=1)
    assert figures["rate_sustained_ratio"] == pytest.approx(1 / 1.1, abs=0.002)


def test_a_generator_that_stays_behind_is_told_from_a_service_that_does(tmp_path):
    due = range(S, 2 * S, MS)
    slow = [(at, S + 2 * (at - S), S + 2 * (at - S), S + 2 * (at - S) + MS) for at in due]
    assert "sent 500 of the 1000" in (
        latency.describe_lateness(record_requests(tmp_path / "slow", slow), (S, 2 * S)) or ""
    )
    ended = slow[:500]  # told to stop with the window
    assert "sent 500 of the 998" in (
        latency.describe_lateness(record_requests(tmp_path / "ended", ended), (S, 2 * S)) or ""
    )
    # Of those that were due in this window, it came to none.
    assert "sent 500 of the 997" in (
        latency.describe_lateness(record_requests(tmp_path / "none", slow), (2 * S, 3 * S)) or ""
    )
    late = [(at, at + 3 * MS, at + 3 * MS, at + 5 * MS) for at in due]
    assert "3 ms late" in (latency.describe_lateness(record_requests(tmp_path / "late", late), (S, 2 * S)) or "")
    queue = [(at, at, S + 2 * (at - S), S + 2 * (at - S) + MS) for at in due]
    assert latency.describe_lateness(record_requests(tmp_path / "queue", queue), (S, 2 * S)) is None


@pytest.mark.parametrize("begin_ms", [0, 700, 1300])
def test_requests_and_tokens_that_a_window_cuts_count_in_part(tmp_path, begin_ms):
    # Eight clients in step: answers of 1 s, of which the first of 11 tokens comes after 0.5 s.
    begins = [at + client for at in range(S, 8 * S, S) for client in range(8)]
    rows = [(at, at, 0, at + S, at + S // 2, 11, 1) for at in begins]
    window = (3 * S + begin_ms * MS, 5 * S + begin_ms * MS)
    figures = latency.compute_figures(record_requests(tmp_path, rows), window, objective=Objective(latency_ms=1000))
    assert figures["throughput_requests_per_s"] == figures["goodput_requests_per_s"] == pytest.approx(8, rel=1e-6)
    assert figures["throughput_tokens_per_s"] == pytest.approx(8 * 11, rel=1e-6)


def test_the_first_tokens_of_copies_are_pooled(tmp_path):
    # Of 700 requests each, the first token comes after 5 ms, or after 50 ms in every twentieth of the second copy.
    copies = []
    for number, slow_ms in enumerate((5, 50)):
        firsts_ms = [slow_ms if place % 20 == 0 else 5 for place in range(700)]
        begins = [S + place * MS for place in range(700)]
        rows = [(at, at, 0, at + 60 * MS, at + ms * MS, 5, 1) for at, ms in zip(begins, firsts_ms, strict=True)]
        copies.append(record_requests(tmp_path / str(number), rows))
    window = (S, 2 * S)
    assert all("first_token_p99_ms" not in latency.compute_figures(copy, window) for copy in copies)
    figures = latency.pool_first_tokens(copies, window)
    assert figures == {
        "first_token_mean_all_ms": pytest.approx(5 + 45 * 35 / 1400),
        "first_token_p95_all_ms": 5,
        "first_token_p99_all_ms": 50,
    }
    silent = record_requests(tmp_path / "silent", [(S, S, 0, S + MS, 0, 5, 1)])
    assert latency.pool_first_tokens([copies[0], silent], window) == {}


def test_tokens_have_a_first_and_a_time_each(tmp_path):
    rows = [(at, at, at + MS, at + 31 * MS, at + 11 * MS, 5, 2) for at in range(S, 2 * S, 10 * MS)]
    figures = latency.compute_figures(record_requests(tmp_path, rows), (S, 2 * S))
    assert (figures["first_token_mean_ms"], figures["first_token_p50_ms"]) == (11, 11)
    assert (figures["per_token_mean_ms"], figures["batch_mean_requests"]) == (5, 2)
    assert figures["throughput_tokens_per_s"] == pytest.approx(99 + 4 * (97 + 0.95 + 0.45))
    # What was never answered has no first token either: it is slower than all.
    few = [*rows, *[(2 * S - 1, 2 * S - 1, 0, 0)] * 20]
    figures = latency.compute_figures(record_requests(tmp_path / "few", few), (S, 2 * S))
    assert figures["first_token_p50_ms"] == 11
    assert not {"first_token_mean_ms", "first_token_p95_ms"} & set(figures)
    assert figures["per_token_p50_ms"] == 5


@pytest.mark.parametrize(
    ("objective", "is_met"),
    [
        (Objective(first_token_ms=11, per_token_ms=5, percentile=50), 1),
        (Objective(first_token_ms=11, per_token_ms=4.9, percentile=50), 0),
        (Objective(first_token_ms=10.9, percentile=50), 0),
        (Objective(latency_ms=31, first_token_ms=11, percentile=50), 1),
        (Objective(first_token_ms=11, percentile=99), None),  # too few requests
    ],
)
def test_an_objective_at_a_percentile_holds_for_tokens_too(tmp_path, objective, is_met):
    rows = [(at, at, at + MS, at + 31 * MS, at + 11 * MS, 5, 2) for at in range(S, 2 * S, 10 * MS)]
    figures = latency.compute_figures(record_requests(tmp_path, rows), (S, 2 * S), objective=objective)
    assert figures.get("objective_met_ratio") == is_met


def test_of_a_server_that_says_nothing_of_itself_only_the_whole_is_known(tmp_path):
    rows = [(at, at, 0, at + 31 * MS, at + 11 * MS, 5) for at in range(S, 2 * S, 10 * MS)]
    figures = latency.compute_figures(record_requests(tmp_path, rows), (S, 2 * S))
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
    assert len(job_requests := record_requests(tmp_path, [good, *impossible, later])) == 2
    assert len(job_requests.damages) == len(impossible)
    path.write_bytes(path.read_bytes()[:-1])
    torn = requests.read(path)
    assert torn is not None
    assert (len(torn), len(torn.damages)) == (1, len(impossible))
    assert latency.make_series(record_requests(tmp_path / "all", impossible)) == {}
    path.write_bytes(b"torn")
    assert requests.read(path) is None
    path.unlink()
    path.symlink_to(tmp_path / client.JOB_FILE)
    assert requests.read(path) is None, "a job may have replaced it"


def test_series_are_thinned(tmp_path):
    rows = queue_requests(0.5, 20_000)
    series = latency.make_series(record_requests(tmp_path, rows))
    assert {len(points) for points in series.values()} == {latency.SERIES_POINTS}
    answered = [value for _, _, value in series["answered_requests_per_s"]]
    assert np.mean(answered) == pytest.approx(500, rel=0.02)
    assert np.mean([value for _, _, value in series["latency_ms"]]) == pytest.approx(1.5, rel=0.03)


SEED = 20261126


def test_a_burst_of_slow_requests_is_one_excursion():
    assert estimate_number(np.array([1.0] * 80 + [9.0] * 20), 90) == 1
    assert estimate_number(np.array(([1.0] * 4 + [9.0]) * 20), 90) == 20
    # Latencies between the median and the 90th percentile do not end an excursion.
    assert estimate_number(np.array([1.0] * 60 + [5.0] * 20 + [9.0, 5.0] * 10), 90) == 1
    # A tenth of the excursions above the 90th percentile are above the 99th.
    assert estimate_number(np.array(([1.0] * 4 + [9.0]) * 20), 99) == pytest.approx(2)


def test_rare_stalls_are_counted_themselves():
    rng = np.random.default_rng(SEED)
    latencies = rng.normal(5, 0.1, 10_000)
    assert has_enough(latencies, 99)
    for begin in (2000, 7000):
        latencies[begin : begin + 100] += 50
    assert not has_enough(latencies, 99)
    assert has_enough(latencies, 95)


def test_equal_latencies_have_every_percentile():
    assert has_enough(np.full(1200, 5.0), 99)
    assert not has_enough(np.full(1199, 5.0), 99)
    assert has_enough(np.full(1, 5.0), 50)


def test_independent_latencies_need_little_more_than_the_least_number_of_requests():
    rng = np.random.default_rng(SEED)
    windows = rng.exponential(1, (200, 1500))
    assert np.mean([has_enough(window, 99) for window in windows]) > 0.95
    assert np.mean([has_enough(window[:300], 95) for window in windows]) > 0.95
    assert not any(has_enough(window[:1100], 99) for window in windows)


def test_a_suggested_window_is_long_enough():
    rng, load = np.random.default_rng(SEED), 0.8
    (window,) = simulate_latencies(rng, load, 5000)
    assert not has_enough(window, 99)
    suggested = suggest_length(window, 99, 50.0)
    assert suggested in (200, 500)
    longer = simulate_latencies(rng, load, int(100 * suggested), 10)
    assert sum(has_enough(latencies, 99) for latencies in longer) >= 9


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("load", "requests", "studies"),
    [
        (0.3, 3000, 300),
        (0.6, 8000, 200),
        pytest.param(0.8, 25_000, 300, marks=pytest.mark.slow),
        pytest.param(0.9, 80_000, 200, marks=pytest.mark.exhaustive),
    ],
)
def test_the_interval_of_a_p99_covers_the_true_one(load, requests, studies):
    coverage = measure_coverage(np.random.default_rng(SEED), load, requests, 5, studies)
    assert coverage.num_shown >= 0.9 * studies
    assert coverage.of_shown is not None
    # Three standard deviations of the share below 0.93.
    assert coverage.of_shown >= 0.93 - 3 * (0.93 * 0.07 / coverage.num_shown) ** 0.5
    assert coverage.ratio == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize(("load", "most_covered"), [(0.6, 0.97), (0.8, 0.9), (0.9, 0.7)])
def test_a_window_too_short_for_its_load_shows_no_p99(load, most_covered):
    coverage = measure_coverage(np.random.default_rng(SEED), load, 1300, 5, 100)
    assert coverage.num_shown == 0
    assert coverage.of_all < most_covered


def test_equal_services_are_not_worse_under_the_same_arrivals():
    slowest, same = simulate_claims(np.random.default_rng(SEED), 0.6, 10, 20)
    assert slowest > 0.5
    assert same <= 0.1


SERVICE = {"work_unit": "requests", "is_rate_given": True, "objective": Objective(latency_ms=6)}


def make_service_state(
    folder: Path, job, *, every_ms: int, takes_ms: int, late_ms: int = 0, until_s: float = 11, **ended
) -> JobState:
    """A job that is asked from 0 s on and takes the same time for each request."""
    job_state = state(folder, job, [{"event": "started", "t_ns": 0}], **ended)
    records = []
    for due in range(1, int(until_s * S), every_ms * MS):
        sent = due + late_ms * MS
        records.append(client.REQUEST.pack(due, sent, sent, 0, sent + takes_ms * MS, 0, 1))
    (job_state.folder / client.REQUESTS_FILE).write_bytes(b"".join(records))
    return job_state


def test_a_steady_job_that_answers_requests_has_a_row(tmp_path):
    pair = group("a", "b", workloads=SERVICE)
    fast = make_service_state(tmp_path, pair.jobs[0], every_ms=8, takes_ms=5, told_ns=11 * S)
    # Its last answers come after the stop: they were asked before it, and it ran no longer than the other.
    slow = make_service_state(tmp_path, pair.jobs[1], every_ms=5, takes_ms=900, told_ns=11 * S)
    samples = [Sample(source="nvml", t_ns=t * S, values={"energy_j": 300.0 * t}) for t in range(12)]
    row = judge(pair, fast, slow, samples=samples, idle_w=100.0)
    assert row.result is Result.OK
    assert row.metrics["overlap_ratio"] == pytest.approx(1, abs=0.002)
    one, other = (job.metrics for job in row.jobs)
    assert (one["throughput_requests_per_s"], one["num_requests"]) == pytest.approx((125, 1250), abs=1)
    assert (one["latency_p99_ms"], one["goodput_requests_per_s"]) == pytest.approx((5, 125), abs=1)
    assert (other["latency_mean_ms"], other["goodput_requests_per_s"]) == (900, 0)
    assert (row.metrics["latency_mean_worst_ms"], row.metrics["rate_sustained_worst_ratio"]) == (900, 1)
    assert row.metrics["throughput_total_requests_per_s"] == pytest.approx(325, abs=1)
    assert row.metrics["energy_per_request_j"] == pytest.approx(300 / 325, abs=0.01)
    assert row.metrics["energy_above_idle_per_request_j"] == pytest.approx(200 / 325, abs=0.01)
    assert {"latency_ms", "waiting_requests"} <= set(row.jobs[0].series)
    assert "collocation.flag" not in row.tags


def test_a_work_window_of_requests_counts_all_of_them_from_start_to_end(tmp_path):
    alone = group("a", kind=WindowKind.WORK, workloads=SERVICE | {"is_rate_given": False})
    row = judge(alone, make_service_state(tmp_path, alone.jobs[0], every_ms=10, takes_ms=10, until_s=5))
    assert row.metrics["makespan_s"] == pytest.approx(5, abs=0.01)
    assert row.jobs[0].metrics["num_requests"] == 500
    assert row.metrics["throughput_total_requests_per_s"] == pytest.approx(100, abs=0.1)


def test_a_generator_that_does_not_keep_its_rate_marks_the_row(tmp_path):
    alone = group("a", workloads=SERVICE)
    late = make_service_state(tmp_path, alone.jobs[0], every_ms=10, takes_ms=5, late_ms=4, told_ns=11 * S)
    row = judge(alone, late)
    assert row.result is Result.OK
    assert "job 0-a: its generator sent half of its requests more than 4 ms late" in row.tags["collocation.flag"]
    assert "collocation.stalled" not in row.tags


@pytest.mark.parametrize(("objective_ms", "met"), [(100, None), (40, 0.0)])
def test_a_window_that_is_too_short_for_a_p99_is_noted(tmp_path, objective_ms, met):
    alone = group("a", workloads=SERVICE | {"objective": Objective(latency_ms=objective_ms, percentile=99)})
    job_state = state(tmp_path, alone.jobs[0], [{"event": "started", "t_ns": 0}], told_ns=11 * S)
    due = range(1, 11 * S, 5 * MS)
    # Four bursts in which each request waits for 50 ms.
    takes = [50 * MS if at // S in (2, 4, 6, 8) else 4 * MS for at in due]
    records = [client.REQUEST.pack(at, at, at, 0, at + ns, 0, 1) for at, ns in zip(due, takes, strict=True)]
    (job_state.folder / client.REQUESTS_FILE).write_bytes(b"".join(records))
    row = judge(alone, job_state)
    assert row.tags["collocation.flag"] == (
        "job 0-a: the window is too short for a p99 at this load, about 500 s are needed"
    )
    metrics = row.jobs[0].metrics
    assert "latency_mean_ms" in metrics and "latency_p99_ms" not in metrics
    # The p99 of a longer window may be higher, but the objective is missed even here.
    assert metrics.get("objective_met_ratio") == met


def test_what_cannot_be_measured_fails_and_what_cannot_be_is_counted(tmp_path):
    alone = group("a", workloads=SERVICE)
    nothing = make_service_state(
        tmp_path / "nothing", alone.jobs[0], every_ms=10, takes_ms=5, until_s=0.5, told_ns=11 * S
    )
    assert judge(alone, nothing).reason == (
        "job 0-a: no request was sent and answered inside the window; raise window.seconds or lower the request rate"
    )
    damaged = make_service_state(tmp_path / "damaged", alone.jobs[0], every_ms=10, takes_ms=5, told_ns=11 * S)
    with (damaged.folder / client.REQUESTS_FILE).open("ab") as file:
        file.write(client.REQUEST.pack(5, 4, 3, 2, 1, 0, 1) + b"torn")
    words = "job 0-a: 1 request (number 1101): impossible instants or counts"
    assert judge(alone, damaged).tags["collocation.damaged_events"] == words


def test_beside_training_there_is_no_total_and_both_have_their_figures(tmp_path):
    mix = group("a", "b", workloads=[{}, SERVICE])
    states = [
        state(tmp_path, mix.jobs[0], steps(0, 11, 0.5, 8), told_ns=11 * S),
        make_service_state(tmp_path, mix.jobs[1], every_ms=10, takes_ms=5, told_ns=11 * S),
    ]
    row = judge(mix, *states)
    assert row.result is Result.OK
    assert not any(name.startswith("throughput_total") for name in row.metrics)
    assert row.jobs[0].metrics["throughput_samples_per_s"] == pytest.approx(16)
    assert row.metrics["latency_mean_worst_ms"] == 5
