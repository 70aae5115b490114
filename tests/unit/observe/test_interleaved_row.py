"""Rows of groups that were measured in slices of a launch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.domain.records import Result
from pipeline.base.domain.samples import Sample
from pipeline.base.domain.tags import Tag
from pipeline.base.domain.window import Window, WindowKind
from pipeline.launch.interleaving import Slice
from pipeline.observe import group_row
from pipeline.observe.group_result import GroupResult
from pipeline.observe.observation import Observation
from tests.support.rows import FIELDS, S, group, state, steps

SLICES = [(1, 2.0, 3.0), (2, 4.0, 5.0), (1, 6.0, 7.0), (2, 8.0, 9.0)]


def judge(
    folder: Path,
    events_of_jobs: list[list[dict[str, Any]]],
    num_jobs: int,
    slices: list[tuple[int, float, float]] = SLICES,
    samples: tuple[Sample, ...] = (),
    slice_s: float = 1.0,
) -> GroupResult:
    window = Window(kind=WindowKind.INTERLEAVED, seconds=2 * slice_s, settle_s=0.1, slice_s=slice_s)
    toys = group(*"a" * num_jobs, window=window)
    states = [
        state(folder, job, events, told_ns=20 * S) for job, events in zip(toys.jobs, events_of_jobs, strict=False)
    ]
    parts = [Slice(num_jobs=number, begin_ns=int(begin * S), end_ns=int(end * S)) for number, begin, end in slices]
    seen = Observation(batches=[states], samples=samples, fields=FIELDS, slices=parts, jobs_at_first_steps={0: 1, 1: 2})
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


def test_a_slice_begins_with_the_first_step_of_its_last_job(tmp_path: Path) -> None:
    late = held((4.35, 5.2), (7.5, 9.2))
    row = judge(tmp_path, [steps(1, 10, 0.1, 10), late], 2)
    assert row.metrics["window_s"] == pytest.approx(2 - 0.45)
    assert row.metrics["throughput_total_samples_per_s"] == pytest.approx(200)
    assert not row.marks.invalid


@pytest.mark.parametrize("spans", [[(4.55, 5.2), (7.5, 9.2)], [(7.5, 9.2)]])
def test_a_slice_of_which_less_than_half_is_left_makes_the_row_invalid(tmp_path: Path, spans) -> None:
    row = judge(tmp_path, [steps(1, 10, 0.1, 10), held(*spans)], 2)
    words = "of 2 slices; raise window.slice_s"
    assert words in row.marks.invalid or (row.result is Result.FAILED and "raise window.slice_s" in row.reason)


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
    assert ("window.slice_s=1 is below 2 s" in alone.tags.get(Tag.ABSENT_FIGURES, "")) is (slice_s < 2)
