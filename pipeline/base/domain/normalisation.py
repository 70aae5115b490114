"""Baselines, figures of jobs that ran together normalised by them, and the selection of independent values.

Used for the table at the end of a study and for its report.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from pipeline.base.domain import service_figures, work_units
from pipeline.base.domain.window import WindowKind

SPEEDUP, SLOWDOWN, FAIRNESS = "speedup_vs_serial_ratio", "slowdown_worst_ratio", "fairness_jain_ratio"
BIT_IDENTICAL = "bit_identical_ratio"
MEMORY_PEAK, MEMORY_FORECAST = "memory_peak_mib", "memory_forecast_mib"
MEAN_SLOWDOWN, P99_SLOWDOWN = "latency_mean_slowdown_worst_ratio", "latency_p99_slowdown_worst_ratio"
_OF_LATENCY = {MEAN_SLOWDOWN: service_figures.MEAN, P99_SLOWDOWN: service_figures.P99}


class ComparedJob(NamedTuple):
    """The figures of one job, by name.

    Attributes:
        unit: the work unit of the job.
        is_given: whether the user set the job's rate, which then does not show its speed.
        together: the figures when run with the other jobs of the group.
        alone: the figures of the baseline; empty if there is none.
        has_same_arrivals: whether the baseline had the same arrivals; otherwise latencies are not compared.
    """

    unit: str
    is_given: bool
    together: Mapping[str, float]
    alone: Mapping[str, float]
    has_same_arrivals: bool = True


def rate_name(window: WindowKind, unit: str) -> str:
    """Name the figure by which jobs are compared: seconds for a fixed amount of work, otherwise work per second."""
    return "makespan_s" if window is WindowKind.WORK else work_units.rate_of(unit)


def compared_names(unit: str) -> tuple[str, ...]:
    """Name all figures of a job whose comparisons may need a baseline."""
    return (work_units.rate_of(unit), "makespan_s", MEMORY_PEAK, *_OF_LATENCY.values())


def average_figures(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Average the figures that all runs have."""
    shared_names = set.intersection(*(set(run) for run in runs)) if runs else set()
    return {name: statistics.fmean(run[name] for run in runs) for name in shared_names}


def normalise(
    window: WindowKind,
    jobs: Sequence[ComparedJob],
    *,
    is_sequential: bool = False,
    has_co_runners: bool = False,
    adds_memory: bool = True,
    serial_s: float | None = None,
    makespan_s: float | None = None,
) -> dict[str, float]:
    """Compute speed-up over serial, the largest slowdown, Jain's fairness and forecast memory; missing if unknown.

    For jobs with a given rate, slowdowns of latency replace these figures. The other jobs of such a group have a
    slowdown, but the group has neither speed-up nor fairness.

    Args:
        window: the measured window.
        jobs: the jobs of the group.
        is_sequential: whether the jobs ran one after another.
        has_co_runners: whether co-runners used a share of the device; the group then has no speed-up and no fairness.
        adds_memory: whether the jobs need the sum of their memory alone; otherwise there is no forecast.
        serial_s: for fixed work, the measured time of the jobs one after another; if missing, the sum of their times
            alone is used.
        makespan_s: for fixed work, the total time of the jobs together.
    """
    figures = _compare_latencies(jobs)
    is_added = len(jobs) > 1 and adds_memory and not is_sequential and not has_co_runners
    if is_added and all(MEMORY_PEAK in job.alone for job in jobs):
        figures[MEMORY_FORECAST] = sum(job.alone[MEMORY_PEAK] for job in jobs)
    unpaced = [job for job in jobs if not job.is_given]
    rates = [(_rate(window, job.unit, job.together), _rate(window, job.unit, job.alone)) for job in unpaced]
    complete_pairs = [(colocated, alone) for colocated, alone in rates if colocated and alone]
    # Without fixed work, serial jobs have separate windows and thus no common rate.
    is_rate = window is not WindowKind.WORK
    if not complete_pairs or len(complete_pairs) < len(unpaced) or (is_rate and is_sequential and len(jobs) > 1):
        return figures
    progress = [colocated / alone if is_rate else alone / colocated for colocated, alone in complete_pairs]
    figures[SLOWDOWN] = 1 / min(progress)
    if len(unpaced) < len(jobs) or has_co_runners:
        return figures
    if is_rate:
        figures[SPEEDUP] = sum(progress)
    elif makespan_s:
        figures[SPEEDUP] = (serial_s or sum(alone for _, alone in complete_pairs)) / makespan_s
    figures[FAIRNESS] = sum(progress) ** 2 / (len(progress) * sum(value * value for value in progress))
    return figures


def _rate(window: WindowKind, unit: str, figures: Mapping[str, float]) -> float | None:
    return figures.get(rate_name(window, unit))


def _compare_latencies(jobs: Sequence[ComparedJob]) -> dict[str, float]:
    """Return the largest ratio of latencies among the services whose baseline had the same arrivals.

    The slowest of several services with other arrivals would be slower than one service by chance.
    """
    slowdowns = {}
    served = [
        job
        for job in jobs
        if job.has_same_arrivals and (service_figures.MEAN in job.together or service_figures.MEAN in job.alone)
    ]
    for name, latency in _OF_LATENCY.items():
        ratios = [
            job.together[latency] / job.alone[latency]
            for job in served
            if latency in job.together and job.alone.get(latency)
        ]
        if ratios and len(ratios) == len(served):
            slowdowns[name] = max(ratios)
    return slowdowns


def select_independent(by_block: Mapping[int, float], gpus: Mapping[int, str]) -> list[float]:
    """Return independent values: for one GPU the values of its blocks, for several GPUs the median of each GPU.

    Blocks of several GPUs have different distributions, so an interval over all blocks is too narrow.
    `tests/unit/report/test_report_statistics.py` computes the error.

    Args:
        by_block: a value per block, in the order of blocks.
        gpus: the GPU of each block; blocks without a GPU count as blocks of one GPU.
    """
    of_each: dict[str, list[float]] = defaultdict(list)
    for block, value in by_block.items():
        of_each[gpus.get(block, "")].append(value)
    if len(of_each) == 1:
        return list(by_block.values())
    return [statistics.median(values) for values in of_each.values()]


R = TypeVar("R")
J = TypeVar("J")
Jobs = tuple[str, ...]
"""The workload digests of a group's jobs, in order."""


@dataclass(slots=True)
class Baselines(Generic[R, J]):
    """Serial groups of one block, one GPU and one combination of settings, by their jobs."""

    _own: dict[str, list[J]] = field(default_factory=lambda: defaultdict(list))
    _mixes: dict[Jobs, tuple[R, Sequence[J]]] = field(default_factory=dict)

    def add(self, group: R, digests: Jobs, jobs: Sequence[J]) -> None:
        """Add a group with its jobs."""
        if len(digests) == 1:
            self._own[digests[0]] += jobs
        else:
            self._mixes[digests] = (group, jobs)

    def find_runs_alone(self, digest: str, mix: Jobs) -> list[J]:
        """Find a job's runs alone; without any, its runs in the serial group of the same mix, else of any mix."""
        if digest in self._own:
            return self._own[digest]
        same = self._same(mix)
        mixes = self._mixes if same is None else {same: self._mixes[same]}
        turns = (
            (digest_of_job, job)
            for digests, (_, jobs) in mixes.items()
            for digest_of_job, job in zip(digests, jobs, strict=True)
        )
        return [job for digest_of_job, job in turns if digest_of_job == digest]

    def find_serial_group(self, mix: Jobs) -> R | None:
        """Find the serial group of the same jobs, preferably in this order; `None` if there is none."""
        same = self._same(mix)
        return None if same is None else self._mixes[same][0]

    def _same(self, mix: Jobs) -> Jobs | None:
        of_any = (digests for digests in self._mixes if sorted(digests) == sorted(mix))
        return mix if mix in self._mixes else next(of_any, None)
