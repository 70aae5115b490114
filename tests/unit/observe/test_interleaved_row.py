"""Rows of groups that were measured in slices of a launch."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.domain.records import Result
from pipeline.base.domain.samples import Sample
from pipeline.base.domain.tags import Tag
from pipeline.base.domain.window import Window, WindowKind
from pipeline.launch.interleaving import Slice
from pipeline.observe import group_row
from pipeline.observe.group_result import GroupResult, Observation
from tests.support.rows import FIELDS, S, group, state, steps
from workloads import client

SLICES = [(1, 2.0, 3.0), (2, 4.0, 5.0), (1, 6.0, 7.0), (2, 8.0, 9.0)]


def judge(
    folder: Path,
    events_of_jobs: list[list[dict[str, Any]]],
    num_jobs: int,
    slices: list[tuple[int, float, float]] = SLICES,
    samples: tuple[Sample, ...] = (),
    slice_s: float = 1.0,
    holds: Sequence[tuple[int, int]] = (),
) -> GroupResult:
    window = Window(kind=WindowKind.INTERLEAVED, seconds=2 * slice_s, settle_s=0.1, slice_s=slice_s)
    toys = group(*"a" * len(events_of_jobs), window=window)
    states = [state(folder, job, events, told_ns=20 * S) for job, events in zip(toys.jobs, events_of_jobs, strict=True)]
    states[-1].holds.extend(holds)
    parts = [Slice(num_jobs=number, begin_ns=int(begin * S), end_ns=int(end * S)) for number, begin, end in slices]
    first_steps = {0: 1, 1: 2}
    seen = Observation(
        batches=[states[:num_jobs]],
        launched=states,
        samples=samples,
        fields=FIELDS,
        slices=parts,
        jobs_at_first_steps=first_steps,
    )
    toys = dataclasses.replace(toys, jobs=toys.jobs[:num_jobs])
    return group_row.judge(toys, seen)


def held(*spans: tuple[float, float], samples: int = 10, every_s: float = 0.1) -> list[dict[str, Any]]:
    """The events of a job that works between these times only."""
    events: list[dict[str, Any]] = [{"event": "started", "t_ns": S}]
    total = 0
    for begin_s, end_s in spans:
        for number in range(1, int((end_s - begin_s) / every_s + 1e-9) + 1):
            total += samples
            t_ns = int((begin_s + number * every_s) * S)
            events.append({"event": "step", "t_ns": t_ns, "samples": samples, "total": total, "epoch": 1})
    return events


def test_each_number_of_jobs_is_measured_in_its_own_slices(tmp_path: Path) -> None:
    always, in_turns = steps(1, 10, 0.1, 10), held((3.5, 5.2), (7.5, 9.2), samples=20)
    alone, both = judge(tmp_path, [always], 1), judge(tmp_path, [always, in_turns], 2)
    assert (alone.result, both.result) == (Result.OK, Result.OK)
    assert alone.metrics["throughput_total_samples_per_s"] == pytest.approx(100)
    assert both.metrics["throughput_total_samples_per_s"] == pytest.approx(100 + 200)
    assert both.metrics["window_s"] == pytest.approx(2, abs=0.2)
    assert both.jobs[1].metrics["step_time_p99_ms"] == pytest.approx(100)  # no step lasts from slice to slice


def test_a_slice_counts_from_its_begin_and_a_step_goes_on_where_the_job_was_held(tmp_path: Path) -> None:
    slow = held((1.0, 1.9), (3.8, 5.2), (7.8, 9.3), every_s=0.3)  # its steps do not end with a slice
    jobs = [steps(1, 10, 0.1, 10), slow]
    holds = [(int(1.9 * S), int(3.8 * S)), (int(5.0 * S), int(7.8 * S))]
    row = judge(tmp_path, jobs, 2, holds=holds)
    assert row.metrics["window_s"] == pytest.approx(2)
    assert row.jobs[1].metrics["throughput_samples_per_s"] == pytest.approx(10 / 0.3, rel=0.02)
    assert row.jobs[1].metrics["step_time_p99_ms"] == pytest.approx(300)
    assert not row.marks.invalid


def test_a_job_that_makes_no_step_for_most_of_a_slice_makes_the_row_invalid(tmp_path: Path) -> None:
    late, holds = (
        held((1.0, 1.9), (4.55, 5.2), (7.5, 9.2)),
        [(int(1.9 * S), int(3.9 * S)), (int(5.2 * S), int(7.5 * S))],
    )
    row = judge(tmp_path, [steps(1, 10, 0.1, 10), late], 2, holds=holds)
    assert row.marks.invalid.startswith("job 1-a paused for up to 0.75 s between steps of 100 ms, ")
    assert judge(tmp_path, [steps(1, 10, 0.1, 10), held((7.5, 9.2))], 2).result is Result.FAILED


def test_a_job_that_works_on_while_held_makes_all_rows_of_the_launch_invalid(tmp_path: Path) -> None:
    jobs = [steps(1, 10, 0.1, 10), steps(1, 10, 0.1, 10)]
    for num_jobs in (1, 2):
        row = judge(tmp_path, jobs, num_jobs)
        assert (
            row.marks.invalid == "job 1-a made 20 steps while held; make every step in the loop over job.until_stop()"
        )


@pytest.mark.parametrize(("late_s", "is_wrong"), [(-0.01, False), (0.02, True)])
def test_a_step_in_flight_must_end_before_the_next_slice(tmp_path: Path, late_s: float, is_wrong: bool) -> None:
    jobs = [steps(1, 10, 0.1, 10), held((3.5, 5.2), (5.2, 6 + late_s), (7.5, 9.2), every_s=0.1)]
    last = next(event for event in reversed(jobs[1]) if event["t_ns"] < 6.5 * S)
    last["t_ns"] = int((6 + late_s) * S)
    assert ["made 1 step while held" in judge(tmp_path, jobs, number).marks.invalid for number in (1, 2)] == [
        is_wrong
    ] * 2


def test_requests_are_not_measured_in_slices(tmp_path: Path) -> None:
    records = b"".join(client.REQUEST.pack(t_ns, t_ns, t_ns, 0, t_ns, 0, 1) for t_ns in range(2 * S, 9 * S, S // 100))
    (tmp_path / "0").mkdir()
    (tmp_path / "0" / client.REQUESTS_FILE).write_bytes(records)
    row = judge(tmp_path, [[{"event": "started", "t_ns": S}]], 1)
    assert row.reason == "job 0-a: requests are not measured in slices; set window=steady"


def test_only_jobs_that_began_at_this_number_of_jobs_are_checked(tmp_path: Path) -> None:
    loss = [{"event": "metric", "name": "first_loss", "t_ns": 2 * S, "step": 0, "value": 2.0}]
    jobs = [steps(1, 10, 0.1, 10) + loss, held((3.5, 5.2), (7.5, 9.2)) + loss]
    assert json.loads(judge(tmp_path, jobs, 1).tags[Tag.FIRST_LOSSES]) == {"0": [2.0]}
    assert json.loads(judge(tmp_path, jobs, 2).tags[Tag.FIRST_LOSSES]) == {"1": [2.0]}


@pytest.mark.parametrize("slice_s", [1.0, 2.0])
def test_power_needs_slices_of_two_seconds_and_memory_a_launch_of_this_size(tmp_path: Path, slice_s: float) -> None:
    read = {"power_w": 300.0, "memory_used_mib": 5000.0}
    samples = tuple(Sample(source="nvml", t_ns=second * S, values=read) for second in range(1, 20))
    slices = [(1, 2.0, 2.0 + slice_s), (2, 6.0, 6.0 + slice_s), (1, 10.0, 10.0 + slice_s), (2, 14.0, 14.0 + slice_s)]
    jobs = [steps(1, 20, 0.1, 10), held((5.5, 8.5), (13.5, 16.5))]
    alone = judge(tmp_path, jobs, 1, slices, samples, slice_s)
    both = judge(tmp_path, jobs, 2, slices, samples, slice_s)
    assert ("power_mean_w" in alone.metrics, "power_mean_w" in both.metrics) == (slice_s >= 2,) * 2
    assert "memory_peak_mib" not in alone.metrics and both.metrics["memory_peak_mib"] == 5000
    assert ("slices of 1 s are shorter than 2 s; set window.slice_s=2" in alone.tags.get(Tag.ABSENT_FIGURES, "")) is (
        slice_s < 2
    )
