"""The memory that a group is expected to need: the sum of its jobs' memory alone."""

from __future__ import annotations

import dataclasses

import pytest

from pipeline.base.domain.normalisation import MEMORY_FORECAST, MEMORY_PEAK
from pipeline.base.domain.records import Result
from pipeline.base.domain.tags import Tag
from pipeline.observe.baseline_comparison import Comparison
from pipeline.observe.group_result import GroupResult, JobResult
from pipeline.observe.study_progress import MemoryForecast, PastGroup
from tests.support.rows import group

CAPACITY_MIB = 81559


def on_gpu(*names, capacity_mib: int | None = CAPACITY_MIB, **changes):
    planned = group(*names, **changes)
    return dataclasses.replace(planned, device=dataclasses.replace(planned.device, memory_mib=capacity_mib))


def row(the_group, memory_mib, result=Result.OK, **tags) -> GroupResult:
    return GroupResult(group=the_group, result=result, reason="", metrics={MEMORY_PEAK: memory_mib}, tags=tags)


def measured(*rows: GroupResult) -> MemoryForecast:
    forecast = MemoryForecast([])
    for measured_row in rows:
        forecast.add(measured_row)
    return forecast


def test_copies_that_do_not_fit_are_counted():
    need = measured(row(on_gpu("a", sequential=True), 13400)).forecast(on_gpu(*"aaaaaaa"))
    assert need is not None and not need.fits and need.needed_mib == 7 * 13400
    assert need.words == "needs 91.6 of 79.6 GiB of memory: 6 copies fit (measured: 1 job, 13.1 GiB)"
    need = measured(row(on_gpu("a", sequential=True), 60000)).forecast(on_gpu("a", "a"))
    assert need is not None and "1 copy fits" in need.words


def test_a_mix_needs_the_sum_of_its_jobs():
    alone = [row(on_gpu(name, sequential=True), mib) for name, mib in (("a", 1024), ("b", 2048))]
    need = measured(*alone).forecast(on_gpu("a", "b", "b"))
    assert need is not None and need.fits
    assert need.words == "needs 5.0 of 79.6 GiB of memory (measured: each job alone, 1.0 and 2.0 GiB)"
    assert measured(*alone).forecast(on_gpu("a", "c")) is None


@pytest.mark.parametrize(
    "of_what",
    [
        on_gpu("a", "a", sequential=True),
        on_gpu("a"),
        on_gpu("a", "a", scenario="mig"),
        on_gpu("a", "a", scenario="streams"),
        on_gpu("a", "a", capacity_mib=None),
    ],
    ids=["one after another", "one job", "MIG", "one process", "device without memory"],
)
def test_some_groups_have_no_forecast(of_what):
    assert measured(row(on_gpu("a", sequential=True), 1000)).forecast(of_what) is None


@pytest.mark.parametrize(
    "alone",
    [
        row(on_gpu("a", sequential=True), 1000, result=Result.FAILED),
        row(on_gpu("a", sequential=True), 1000, **{Tag.INVALID: "overlap"}),
        row(on_gpu("a", scenario="mps"), 1000),
        row(on_gpu("a", "a", sequential=True), 1000),
    ],
    ids=["failed", "invalid", "under MPS", "not alone"],
)
def test_only_a_valid_run_alone_counts(alone):
    assert measured(alone).forecast(on_gpu("a", "a")) is None


def test_the_newest_earlier_run_alone_counts_until_this_study_has_one():
    alone = dataclasses.replace(on_gpu("a", sequential=True), key="key of a alone")
    past = [
        PastGroup(key=key, scenario="serial", jobs="a", window="", kind="steady", device="", on_top_s=1, memory_mib=mib)
        for key, mib in (("another", 7), (alone.key, None), (alone.key, 1000), (alone.key, 2000))
    ]
    forecast = MemoryForecast([alone, on_gpu("a", "a")], past)
    need = forecast.forecast(on_gpu("a", "a"))
    assert need is not None and need.needed_mib == 2000
    forecast.add(row(alone, 1500))
    need = forecast.forecast(on_gpu("a", "a"))
    assert need is not None and need.needed_mib == 3000


def test_a_row_has_the_sum_of_its_jobs_alone_beside_what_was_measured():
    def with_memory(the_group, mib):
        jobs = tuple(
            JobResult(job=job, result=Result.OK, reason="", metrics={MEMORY_PEAK: mib}) for job in the_group.jobs
        )
        return GroupResult(group=the_group, result=Result.OK, reason="", jobs=jobs)

    comparison = Comparison()
    alone, pair = with_memory(group("a", sequential=True), 1364.0), with_memory(group("a", "a"), 1370.0)
    comparison.add(alone)
    comparison.add(pair)
    assert comparison.get_latest(pair).metrics[MEMORY_FORECAST] == 2728
    assert MEMORY_FORECAST not in comparison.get_latest(alone).metrics
    streams = with_memory(group("a", "a", scenario="streams"), 900.0)
    comparison.add(streams)
    assert MEMORY_FORECAST not in comparison.get_latest(streams).metrics
