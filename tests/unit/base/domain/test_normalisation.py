"""Figures of jobs that ran together, against what each did alone."""

from __future__ import annotations

import pytest

from pipeline.base.domain.normalisation import (
    FAIRNESS,
    MEAN_SLOWDOWN,
    P99_SLOWDOWN,
    SLOWDOWN,
    SPEEDUP,
    ComparedJob,
    normalise,
    rate_name,
)
from pipeline.base.domain.window import WindowKind

STEADY, WORK = WindowKind.STEADY, WindowKind.WORK


def compared(kind: WindowKind, *rates: tuple[float | None, float | None], unit: str = "samples") -> list[ComparedJob]:
    name = rate_name(kind, unit)
    figures = [[{} if rate is None else {name: rate} for rate in both] for both in rates]
    return [ComparedJob(unit, False, together, alone) for together, alone in figures]


def service(together: dict[str, float], alone: dict[str, float], *, is_given: bool = True) -> ComparedJob:
    return ComparedJob("requests", is_given, together, alone)


def test_in_a_steady_window_progress_adds_up() -> None:
    normalised = normalise(STEADY, compared(STEADY, (50.0, 100.0), (30.0, 40.0)))
    assert normalised == {SPEEDUP: 1.25, SLOWDOWN: 2.0, FAIRNESS: pytest.approx(1.25**2 / (2 * (0.25 + 0.5625)))}


def test_jobs_that_count_in_different_units_are_each_compared_with_themselves() -> None:
    mix = compared(STEADY, (50.0, 100.0)) + compared(STEADY, (3.0, 4.0), unit="sequences")
    assert normalise(STEADY, mix) == normalise(STEADY, compared(STEADY, (50.0, 100.0), (30.0, 40.0)))


def test_a_fixed_amount_of_work_is_compared_with_the_measured_total_else_with_the_sum() -> None:
    jobs = compared(WORK, (20.0, 10.0), (16.0, 14.0))
    assert normalise(WORK, jobs, serial_s=25.0, makespan_s=20.0)[SPEEDUP] == 1.25
    assert normalise(WORK, jobs, makespan_s=20.0)[SPEEDUP] == 1.2
    assert normalise(WORK, jobs) == {SLOWDOWN: 2.0, FAIRNESS: pytest.approx(1.375**2 / (2 * (0.25 + 0.875**2)))}


@pytest.mark.parametrize("rates", [[], [(50.0, None)], [(None, 50.0)], [(50.0, 100.0), (30.0, 0.0)]])
def test_what_is_not_known_of_each_job_is_known_of_none(rates: list[tuple[float | None, float | None]]) -> None:
    assert normalise(STEADY, compared(STEADY, *rates)) == {}
    assert normalise(WORK, compared(WORK, *rates), serial_s=1.0, makespan_s=1.0) == {}


def test_jobs_in_turn_have_a_common_rate_only_for_a_fixed_amount_of_work() -> None:
    rates = [(50.0, 100.0), (30.0, 40.0)]
    assert normalise(STEADY, compared(STEADY, *rates), is_sequential=True) == {}
    assert normalise(STEADY, compared(STEADY, *rates[:1]), is_sequential=True)[SPEEDUP] == 0.5
    assert normalise(WORK, compared(WORK, *rates), is_sequential=True, makespan_s=70.0)[SPEEDUP] == 2.0


def test_a_service_at_a_given_rate_is_compared_by_its_latency_and_not_by_its_rate() -> None:
    rate = {"throughput_requests_per_s": 100.0}
    fast = service(rate | {"latency_mean_ms": 6.0, "latency_p99_ms": 30.0}, rate | {"latency_mean_ms": 4.0})
    slow = service(rate | {"latency_mean_ms": 8.0}, rate | {"latency_mean_ms": 4.0})
    # Of one of them the p99 was not measured alone: that of the group's worst is not known.
    assert normalise(STEADY, [fast, slow]) == {MEAN_SLOWDOWN: 2.0}
    alone = fast._replace(alone=rate | {"latency_mean_ms": 4.0, "latency_p99_ms": 10.0})
    assert normalise(STEADY, [alone]) == {MEAN_SLOWDOWN: 1.5, P99_SLOWDOWN: 3.0}
    # With other arrivals than alone, a service may be slower by chance.
    assert normalise(STEADY, [alone, slow._replace(has_same_arrivals=False)]) == {MEAN_SLOWDOWN: 1.5, P99_SLOWDOWN: 3.0}
    assert normalise(STEADY, [alone._replace(has_same_arrivals=False)]) == {}
    as_fast_as_it_can = alone._replace(is_given=False)
    of_rates = dict.fromkeys((SPEEDUP, SLOWDOWN, FAIRNESS), 1.0)
    assert normalise(STEADY, [as_fast_as_it_can]) == of_rates | {MEAN_SLOWDOWN: 1.5, P99_SLOWDOWN: 3.0}


def test_of_a_training_beside_a_service_is_known_what_the_one_kept_and_what_the_other_paid() -> None:
    rate = {"throughput_requests_per_s": 100.0}
    mix = [*compared(STEADY, (80.0, 100.0)), service(rate | {"latency_mean_ms": 8.0}, rate | {"latency_mean_ms": 4.0})]
    assert normalise(STEADY, mix) == {SLOWDOWN: 1.25, MEAN_SLOWDOWN: 2.0}
