"""Figures of jobs that ran together, against what each did alone."""

from __future__ import annotations

import pytest

from pipeline.base.normalise import FAIRNESS, SLOWDOWN, SPEEDUP, normalise
from pipeline.base.records import WindowKind

STEADY, WORK = WindowKind.STEADY, WindowKind.WORK


def test_in_a_steady_window_progress_adds_up() -> None:
    found = normalise(STEADY, [(50.0, 100.0), (30.0, 40.0)])
    assert found == {SPEEDUP: 1.25, SLOWDOWN: 2.0, FAIRNESS: pytest.approx(1.25**2 / (2 * (0.25 + 0.5625)))}


def test_a_fixed_amount_of_work_is_compared_with_the_measured_total_else_with_the_sum() -> None:
    jobs = [(20.0, 10.0), (16.0, 14.0)]
    assert normalise(WORK, jobs, serial_s=25.0, makespan_s=20.0)[SPEEDUP] == 1.25
    assert normalise(WORK, jobs, makespan_s=20.0)[SPEEDUP] == 1.2
    assert normalise(WORK, jobs) == {SLOWDOWN: 2.0, FAIRNESS: pytest.approx(1.375**2 / (2 * (0.25 + 0.875**2)))}


@pytest.mark.parametrize("jobs", [[], [(50.0, None)], [(None, 50.0)], [(50.0, 100.0), (30.0, 0.0)]])
def test_what_is_not_known_of_each_job_is_known_of_none(jobs: list[tuple[float | None, float | None]]) -> None:
    assert normalise(STEADY, jobs) == {} == normalise(WORK, jobs, serial_s=1.0, makespan_s=1.0)


def test_jobs_in_turn_have_a_common_rate_only_for_a_fixed_amount_of_work() -> None:
    jobs = [(50.0, 100.0), (30.0, 40.0)]
    assert normalise(STEADY, jobs, is_sequential=True) == {}
    assert normalise(STEADY, jobs[:1], is_sequential=True)[SPEEDUP] == 0.5
    assert normalise(WORK, jobs, is_sequential=True, makespan_s=70.0)[SPEEDUP] == 2.0
