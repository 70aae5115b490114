"""Rows of jobs that answer requests instead of making steps."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from pipeline.base.domain.records import Result
from pipeline.base.domain.samples import Sample
from pipeline.base.domain.window import WindowKind
from pipeline.base.domain.workload import Objective
from pipeline.launch.job_state import JobState
from pipeline.observe import group_row
from pipeline.observe.group_result import GroupResult, Observation
from tests.support.rows import FIELDS, S, group, state, steps
from workloads import client

MS = 1_000_000


def served(*names: str, kind: WindowKind = WindowKind.STEADY, **changes):
    """A group whose jobs answer requests at a given rate."""
    made = group(*names, kind=kind)
    options = {"work_unit": "requests", "is_rate_given": True, "objective": Objective(latency_ms=6)} | changes
    jobs = (dataclasses.replace(j, workload=dataclasses.replace(j.workload, **options)) for j in made.jobs)
    return dataclasses.replace(made, jobs=tuple(jobs))


def asked(
    folder: Path, job, *, every_ms: int, takes_ms: int, late_ms: int = 0, until_s: float = 11, **ended
) -> JobState:
    """A job that is asked from 0 s on and takes the same time for each request."""
    made = state(folder, job, [{"event": "started", "t_ns": 0}], **ended)
    records = []
    for due in range(1, int(until_s * S), every_ms * MS):
        sent = due + late_ms * MS
        records.append(client.REQUEST.pack(due, sent, sent, 0, sent + takes_ms * MS, 0, 1))
    (made.folder / client.REQUESTS_FILE).write_bytes(b"".join(records))
    return made


def judge(the_group, *states, **seen) -> GroupResult:
    return group_row.judge(the_group, Observation(batches=[states], fields=FIELDS, **({"samples": ()} | seen)))


def test_a_steady_job_that_answers_requests_has_a_row(tmp_path):
    pair = served("a", "b")
    fast = asked(tmp_path, pair.jobs[0], every_ms=8, takes_ms=5, told_ns=11 * S)
    # Its last answers come after the stop: they were asked before it, and it ran no longer than the other.
    slow = asked(tmp_path, pair.jobs[1], every_ms=5, takes_ms=900, told_ns=11 * S)
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
    alone = served("a", kind=WindowKind.WORK, is_rate_given=False)
    row = judge(alone, asked(tmp_path, alone.jobs[0], every_ms=10, takes_ms=10, until_s=5))
    assert row.metrics["makespan_s"] == pytest.approx(5, abs=0.01)
    assert row.jobs[0].metrics["num_requests"] == 500
    assert row.metrics["throughput_total_requests_per_s"] == pytest.approx(100, abs=0.1)


def test_a_generator_that_does_not_keep_its_rate_marks_the_row(tmp_path):
    alone = served("a")
    late = asked(tmp_path, alone.jobs[0], every_ms=10, takes_ms=5, late_ms=4, told_ns=11 * S)
    row = judge(alone, late)
    assert row.result is Result.OK
    assert "job 0-a: its generator sent half of its requests more than 4 ms late" in row.tags["collocation.flag"]
    assert "collocation.stalled" not in row.tags


@pytest.mark.parametrize(("objective_ms", "met"), [(100, None), (40, 0.0)])
def test_a_window_that_is_too_short_for_a_p99_is_noted(tmp_path, objective_ms, met):
    alone = served("a", objective=Objective(latency_ms=objective_ms, percentile=99))
    made = state(tmp_path, alone.jobs[0], [{"event": "started", "t_ns": 0}], told_ns=11 * S)
    due = range(1, 11 * S, 5 * MS)
    # Four bursts in which each request waits for 50 ms.
    takes = [50 * MS if at // S in (2, 4, 6, 8) else 4 * MS for at in due]
    records = [client.REQUEST.pack(at, at, at, 0, at + ns, 0, 1) for at, ns in zip(due, takes, strict=True)]
    (made.folder / client.REQUESTS_FILE).write_bytes(b"".join(records))
    row = judge(alone, made)
    assert row.tags["collocation.flag"] == (
        "job 0-a: the window is too short for a p99 at this load, about 500 s are needed"
    )
    metrics = row.jobs[0].metrics
    assert "latency_mean_ms" in metrics and "latency_p99_ms" not in metrics
    # The p99 of a longer window may be higher, but the objective is missed even here.
    assert metrics.get("objective_met_ratio") == met


def test_what_cannot_be_measured_fails_and_what_cannot_be_is_counted(tmp_path):
    alone = served("a")
    nothing = asked(tmp_path / "nothing", alone.jobs[0], every_ms=10, takes_ms=5, until_s=0.5, told_ns=11 * S)
    assert judge(alone, nothing).reason == (
        "job 0-a: no request was sent and answered inside the window; raise window.seconds or lower the request rate"
    )
    damaged = asked(tmp_path / "damaged", alone.jobs[0], every_ms=10, takes_ms=5, told_ns=11 * S)
    with (damaged.folder / client.REQUESTS_FILE).open("ab") as file:
        file.write(client.REQUEST.pack(5, 4, 3, 2, 1, 0, 1) + b"torn")
    words = "job 0-a: 1 request (number 1101): impossible instants or counts"
    assert judge(alone, damaged).tags["collocation.damaged_events"] == words


def test_beside_training_there_is_no_total_and_both_have_their_figures(tmp_path):
    mix = served("a", "b")
    trained = dataclasses.replace(mix.jobs[0], workload=group("a").jobs[0].workload)
    mix = dataclasses.replace(mix, jobs=(trained, mix.jobs[1]))
    states = [
        state(tmp_path, mix.jobs[0], steps(0, 11, 0.5, 8), told_ns=11 * S),
        asked(tmp_path, mix.jobs[1], every_ms=10, takes_ms=5, told_ns=11 * S),
    ]
    row = judge(mix, *states)
    assert row.result is Result.OK
    assert not any(name.startswith("throughput_total") for name in row.metrics)
    assert row.jobs[0].metrics["throughput_samples_per_s"] == pytest.approx(16)
    assert row.metrics["latency_mean_worst_ms"] == 5
