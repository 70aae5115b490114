"""How fast the host was for a group, and whether its jobs waited for their host process more than for the device."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from pipeline.observe.group_result import JobResult

BUSY_PROCESS_PCT = 90.0
IDLE_GRACT_RATIO = 0.9
"""A job is bound by the host if a process of it kept a core this busy while kernels ran for less of the time."""

LOOP = "host_loop_ms"
_LOOPS = ("host_loop_before_ms", "host_loop_after_ms")
_BUSIEST = "process_cpu_mean_pct"
_MEANS = (_BUSIEST, "run_queue_delay_pct", "involuntary_switches_per_s", "cpu_clock_mean_mhz")


def loop(job: JobResult) -> float | None:
    """The mean of what the job measured before and after its work."""
    measured = [value for name in _LOOPS for _, _, value in job.series.get(name, ())]
    return statistics.fmean(measured) if measured else None


def figures(jobs: Sequence[JobResult], of_device: Mapping[str, float]) -> dict[str, float]:
    """The figures of a group from those of its jobs and of its device; each is absent where a job lacks it.

    The loop is the median over the jobs, the others are means; `host_bound_ratio` is the share of the jobs that are
    bound by the host, absent where no listener read GRACT.
    """
    found = {}
    loops = [loop(job) for job in jobs]
    if loops and None not in loops:
        found[LOOP] = statistics.median(filter(None, loops))
    for name in _MEANS:
        values = [job.metrics[name] for job in jobs if name in job.metrics]
        if values and len(values) == len(jobs):
            found[name] = statistics.fmean(values)
    gract = of_device.get("gract_mean_ratio")
    if gract is not None and _BUSIEST in found:
        bound = [job.metrics[_BUSIEST] >= BUSY_PROCESS_PCT and gract < IDLE_GRACT_RATIO for job in jobs]
        found["host_bound_ratio"] = statistics.fmean(bound)
    return found
