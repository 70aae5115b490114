"""Which groups of a study measure idle power, and how long it takes."""

from __future__ import annotations

import dataclasses

import pytest

from pipeline.base.domain import idle_measurements
from pipeline.base.domain.records import ProfilerSpec
from pipeline.base.domain.window import Window, WindowKind
from tests.conftest import GPU
from tests.support.idle_groups import HOST, MPS, make_groups
from tests.support.rows import gpu_settings, workload


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
