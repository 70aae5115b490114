"""Figures of jobs that ran together, against what each did alone."""

from __future__ import annotations

import dataclasses

import pytest

from pipeline.base.domain import idle_measurements, service_figures
from pipeline.base.domain.normalisation import (
    FAIRNESS,
    MEAN_SLOWDOWN,
    P99_SLOWDOWN,
    SLOWDOWN,
    SPEEDUP,
    Baselines,
    ComparedJob,
    normalise,
    rate_name,
)
from pipeline.base.domain.records import ProfilerSpec
from pipeline.base.domain.window import Window, WindowKind
from tests.conftest import GPU
from tests.support.idle_groups import HOST, MPS, make_groups
from tests.support.rows import gpu_settings, workload

STEADY, WORK = WindowKind.STEADY, WindowKind.WORK


def make_compared_jobs(
    kind: WindowKind, *rates: tuple[float | None, float | None], unit: str = "samples"
) -> list[ComparedJob]:
    name = rate_name(kind, unit)
    figures = [[{} if rate is None else {name: rate} for rate in both] for both in rates]
    return [ComparedJob(unit, False, together, alone) for together, alone in figures]


def make_service(together: dict[str, float], alone: dict[str, float], *, is_given: bool = True) -> ComparedJob:
    return ComparedJob("requests", is_given, together, alone)


def test_in_a_steady_window_progress_adds_up() -> None:
    normalised = normalise(STEADY, make_compared_jobs(STEADY, (50.0, 100.0), (30.0, 40.0)))
    assert normalised == {SPEEDUP: 1.25, SLOWDOWN: 2.0, FAIRNESS: pytest.approx(1.25**2 / (2 * (0.25 + 0.5625)))}


def test_jobs_that_count_in_different_units_are_each_compared_with_themselves() -> None:
    mix = make_compared_jobs(STEADY, (50.0, 100.0)) + make_compared_jobs(STEADY, (3.0, 4.0), unit="sequences")
    assert normalise(STEADY, mix) == normalise(STEADY, make_compared_jobs(STEADY, (50.0, 100.0), (30.0, 40.0)))


def test_a_fixed_amount_of_work_is_compared_with_the_measured_total_else_with_the_sum() -> None:
    jobs = make_compared_jobs(WORK, (20.0, 10.0), (16.0, 14.0))
    assert normalise(WORK, jobs, serial_s=25.0, makespan_s=20.0)[SPEEDUP] == 1.25
    assert normalise(WORK, jobs, makespan_s=20.0)[SPEEDUP] == 1.2
    assert normalise(WORK, jobs) == {SLOWDOWN: 2.0, FAIRNESS: pytest.approx(1.375**2 / (2 * (0.25 + 0.875**2)))}


@pytest.mark.parametrize("rates", [[], [(50.0, None)], [(None, 50.0)], [(50.0, 100.0), (30.0, 0.0)]])
def test_what_is_not_known_of_each_job_is_known_of_none(rates: list[tuple[float | None, float | None]]) -> None:
    assert normalise(STEADY, make_compared_jobs(STEADY, *rates)) == {}
    assert normalise(WORK, make_compared_jobs(WORK, *rates), serial_s=1.0, makespan_s=1.0) == {}


def test_jobs_in_turn_have_a_common_rate_only_for_a_fixed_amount_of_work() -> None:
    rates = [(50.0, 100.0), (30.0, 40.0)]
    assert normalise(STEADY, make_compared_jobs(STEADY, *rates), is_sequential=True) == {}
    assert normalise(STEADY, make_compared_jobs(STEADY, *rates[:1]), is_sequential=True)[SPEEDUP] == 0.5
    assert normalise(WORK, make_compared_jobs(WORK, *rates), is_sequential=True, makespan_s=70.0)[SPEEDUP] == 2.0


def test_a_service_at_a_given_rate_is_compared_by_its_latency_and_not_by_its_rate() -> None:
    rate = {"throughput_requests_per_s": 100.0}
    fast = make_service(rate | {"latency_mean_ms": 6.0, "latency_p99_ms": 30.0}, rate | {"latency_mean_ms": 4.0})
    slow = make_service(rate | {"latency_mean_ms": 8.0}, rate | {"latency_mean_ms": 4.0})
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
    mix = [
        *make_compared_jobs(STEADY, (80.0, 100.0)),
        make_service(rate | {"latency_mean_ms": 8.0}, rate | {"latency_mean_ms": 4.0}),
    ]
    assert normalise(STEADY, mix) == {SLOWDOWN: 1.25, MEAN_SLOWDOWN: 2.0}


def test_a_group_is_as_slow_as_its_slowest_service_and_what_one_lacks_it_lacks() -> None:
    fast = {"latency_mean_ms": 4.0, "latency_p99_ms": 9.0, "goodput_requests_per_s": 90.0, "rate_sustained_ratio": 1.0}
    slow = {"latency_mean_ms": 6.0, "goodput_requests_per_s": 70.0, "rate_sustained_ratio": 0.8}
    training = {"throughput_samples_per_s": 100.0}
    assert service_figures.summarise_group([fast, training]) == {
        "latency_mean_worst_ms": 4.0,
        "latency_p99_worst_ms": 9.0,
        "goodput_total_requests_per_s": 90.0,
        "rate_sustained_worst_ratio": 1.0,
    }
    assert service_figures.summarise_group([fast, slow]) == {
        "latency_mean_worst_ms": 6.0,
        "goodput_total_requests_per_s": 160.0,
        "rate_sustained_worst_ratio": 0.8,
    }
    assert service_figures.summarise_group([training]) == {}
    saturated = {"goodput_requests_per_s": 5.0, "rate_sustained_ratio": 0.4}  # some requests have no latency
    assert service_figures.summarise_group([fast, saturated]) == {
        "goodput_total_requests_per_s": 95.0,
        "rate_sustained_worst_ratio": 0.4,
    }


def make_baselines(*groups: tuple[str, str]) -> Baselines[str, str]:
    """Return groups of jobs, given as a name and the letters of the jobs; a job is named `<group>-<position>`."""
    baselines: Baselines[str, str] = Baselines()
    for name, jobs in groups:
        baselines.add(name, tuple(jobs), [f"{name}-{position}" for position in range(len(jobs))])
    return baselines


def test_a_run_of_its_own_comes_before_turns_in_the_same_mix_and_those_before_turns_in_any() -> None:
    groups = [("any", "bac"), ("other", "ab"), ("same", "ba"), ("own", "a"), ("again", "a")]
    growing = [make_baselines(*groups[:number]) for number in range(len(groups) + 1)]
    assert [baselines.find_runs_alone("a", ("b", "a")) for baselines in growing] == [
        [],
        ["any-1"],
        ["other-0"],
        ["same-1"],
        ["own-0"],
        ["own-0", "again-0"],
    ]
    assert [step.find_serial_group(("b", "a")) for step in growing] == [None, None, "other", "same", "same", "same"]
    assert growing[-1].find_runs_alone("d", ("a", "d")) == []


def test_several_turns_of_a_job_in_a_mix_all_count() -> None:
    assert make_baselines(("mix", "aba")).find_runs_alone("a", ("a", "a", "b")) == ["mix-0", "mix-2"]
    assert make_baselines(("one", "ab"), ("two", "ca")).find_runs_alone("a", ("a", "d")) == ["one-0", "two-1"]


def test_each_power_is_measured_in_the_first_group_that_needs_it():
    alone = {"sequential": True}  # of two jobs in turn
    groups = make_groups({"skip_reason": "no room"}, {}, {"block": 2}, alone, {"sharing": MPS}, {"sharing": MPS})
    groups += make_groups({"number": 7}, names="bbbb")
    assert idle_measurements.plan_seconds(groups) == {2: 14.0, 4: 4.0, 5: 4.0, 7: 4.0}
    assert idle_measurements.describe(groups) == (
        "idle power is measured once for all blocks, in 26 s: 10 s without jobs (gpu.idle_power_s) and "
        "4 times 4 s while jobs wait (gpu.waiting_power_s)"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"device": dataclasses.replace(GPU, kind="cpu")},
        {"listeners": (HOST,)},
        {"profiler": ProfilerSpec(name="nsys")},
        {"window": Window(kind=WindowKind.INTERLEAVED, seconds=4, settle_s=0.1, slice_s=1)},
        {"gpu": gpu_settings(idle_power_s=0.0, waiting_power_s=0.0)},
    ],
)
def test_nothing_is_measured_where_no_energy_is_or_where_it_is_switched_off(change):
    assert idle_measurements.plan_seconds(make_groups(change, change)) == {}
    assert idle_measurements.describe(make_groups(change)) == ""


def test_a_script_has_no_context_at_the_barrier():
    script = tuple(dataclasses.replace(job, workload=workload(ends_by_itself=True)) for job in make_groups({})[0].jobs)
    assert idle_measurements.plan_seconds(make_groups({"jobs": script})) == {1: 10.0}


def test_of_a_launch_only_the_group_with_most_jobs_waits():
    window = Window(kind=WindowKind.INTERLEAVED, seconds=8, settle_s=0.1, slice_s=2)
    shared = {"window": window, "launch": "one"}
    groups = [group for n in (7, 3, 2) for group in make_groups({"number": 8 - n} | shared, names="a" * n)]
    assert idle_measurements.plan_seconds(groups) == {1: 14.0}


def test_the_lengths_change_no_digest(make_plan):
    lengths = ["gpu.idle_power_s=0", "gpu.waiting_power_s=7"]
    assert make_plan([]).groups[0].key == make_plan(lengths).groups[0].key
    assert make_plan(lengths).groups[0].gpu.waiting_power_s == 7
