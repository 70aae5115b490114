"""Figures of the host's load for a group, and jobs that waited for the host instead of the device."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from pipeline.observe.group_result import JobResult

BUSY_PROCESS_PCT = 90.0
IDLE_GRACT_RATIO = 0.9
"""A job is host-bound if one of its processes used at least `BUSY_PROCESS_PCT` of a core while GRACT was below
`IDLE_GRACT_RATIO`."""

FOREIGN_LOAD = "other programs used"
MOST_WAIT_PCT = 20.0
_MOST_FOREIGN_SHARE, _MOST_IDLE_SHARE = 0.1, 0.2
"""Other programs slowed a job if three conditions hold: the job waited for CPUs for more than `MOST_WAIT_PCT` of the
time, other programs used more than `_MOST_FOREIGN_SHARE` of its CPUs, and less than `_MOST_IDLE_SHARE` was idle."""

_BUSIEST = "process_cpu_mean_pct"
_WAIT, _CPU = "run_queue_delay_pct", "host_cpu_mean_pct"
_FIGURES = {
    **dict.fromkeys((_BUSIEST, _WAIT, "involuntary_switches_per_s", "cpu_clock_mean_mhz"), ""),
    _CPU: "host_cpu_total_pct",
    "host_memory_peak_mib": "host_memory_total_mib",
}
"""Name of the group's total of each figure of a process; empty if the group has their mean, under the same name."""


def compute_figures(
    processes: Sequence[JobResult], of_device: Mapping[str, float], *, is_in_turn: bool
) -> dict[str, float]:
    """Return the host figures of a group: means over the processes of its jobs, and totals unless they ran in turn.

    A figure is missing if a process or the device lacks it. `host_bound_ratio` is the share of host-bound processes.
    """
    metrics = {}
    for name, total in _FIGURES.items():
        values = [process.metrics[name] for process in processes if name in process.metrics]
        if not values or len(values) < len(processes):
            continue
        if not total:
            metrics[name] = statistics.fmean(values)
        elif not is_in_turn:
            metrics[total] = math.fsum(values)
    gract = of_device.get("gract_mean_ratio")
    if gract is not None and _BUSIEST in metrics:
        bound = [process.metrics[_BUSIEST] >= BUSY_PROCESS_PCT and gract < IDLE_GRACT_RATIO for process in processes]
        metrics["host_bound_ratio"] = statistics.fmean(bound)
    return metrics


def describe_foreign_load(jobs: Sequence[JobResult], of_device: Mapping[str, float], own_pct: float) -> str:
    """Name the jobs, including co-runners, that waited for CPUs that other programs used; empty if none or unknown.

    Of jobs that share a process, `jobs` has one, with the figures of the process.

    `own_pct` is the CPU usage of the orchestrator and its samplers, in per cent of a core.
    """
    busy, idle = of_device.get("busy_mean_cpus"), of_device.get("idle_mean_cpus")
    if busy is None or idle is None or any(_CPU not in job.metrics for job in jobs):
        return ""
    num_cpus, foreign = busy + idle, busy - (sum(job.metrics[_CPU] for job in jobs) + own_pct) / 100
    if foreign < _MOST_FOREIGN_SHARE * num_cpus or idle > _MOST_IDLE_SHARE * num_cpus:
        return ""
    waits = {job.job.name: wait for job in jobs if (wait := _compute_wait_pct(job)) > MOST_WAIT_PCT}
    if not waits:
        return ""
    longest = max(waits, key=waits.__getitem__)
    who = f"job {longest}" if len(waits) == 1 else f"{len(waits)} jobs, such as {longest},"
    return (
        f"{who} waited for a CPU for "
        f"{waits[longest]:.0f} % of the time while {FOREIGN_LOAD} {foreign:.1f} of {num_cpus:.0f} CPUs"
    )


def _compute_wait_pct(job: JobResult) -> float:
    """Return how long a job waited for a CPU: the smaller one of its shares of runnable time and of all time."""
    wait, cpu = job.metrics.get(_WAIT, 0.0), job.metrics[_CPU]
    return min(wait, 100 * wait / (wait + cpu)) if wait > 0 else 0.0
