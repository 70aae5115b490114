"""The measurements of idle power that a study needs: each once for a GPU, before groups whose energy is measured.

Two kinds of power are called idle. An *idle* GPU has no context of a job. While jobs *wait* at the barrier, their
contexts are open, so the GPU has higher clocks, but no work. The second kind is measured in the first group of each
sharing mode and number of jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pipeline.base.domain.protocols import Listener
from pipeline.base.domain.records import Group
from pipeline.base.domain.samples import POWER, SAMPLED_S
from pipeline.base.domain.window import WindowKind
from pipeline.base.system import factory
from pipeline.base.system.words import format_count, format_duration

Key = tuple[str, str, int]
"""GPU, class of the sharing mode, and number of waiting jobs of a measurement; without jobs, the class is empty."""


def count_contexts(group: Group) -> int:
    """Count the jobs of a group that are at the barrier at the same time."""
    return 1 if group.sequential else len(group.jobs)


def make_key(group: Group, num_jobs: int) -> Key:
    """Return the key of the measurement with a number of waiting jobs."""
    return group.device.uuid, group.sharing.target if num_jobs else "", num_jobs


def get_seconds(group: Group, num_jobs: int) -> float:
    """Return the length of a group's measurement with a number of waiting jobs; 0 if the group needs none."""
    window, length_s = group.window, group.gpu.waiting_power_s if num_jobs else group.gpu.idle_power_s
    if not length_s or not group.device.is_gpu or not group.profiler.is_none:
        return 0.0
    if window.kind is WindowKind.INTERLEAVED and window.slice_s < SAMPLED_S:
        return 0.0  # such slices have no energy
    if num_jobs and any(job.workload.ends_by_itself for job in group.jobs):
        return 0.0  # a script opens its context after the barrier
    return length_s if build_power_listeners(group) else 0.0


def build_power_listeners(group: Group) -> list[Listener]:
    """Build the listeners of a group that read power."""
    listeners: list[Listener] = [
        factory.build_object(spec.build, interval_ms=spec.interval_ms) for spec in group.listeners
    ]
    return [
        listener
        for listener in listeners
        if any(field.name == POWER and field.summary is not None for field in listener.table.fields)
    ]


def plan_seconds(groups: Iterable[Group]) -> dict[int, float]:
    """Return the length of the measurements of each group that has any, by the group's number."""
    seconds: dict[int, float] = {}
    for group, _, length_s in _plan(groups):
        seconds[group.number] = seconds.get(group.number, 0.0) + length_s
    return seconds


def describe(groups: Iterable[Group]) -> str:
    """Describe the measurements of a study and their time; empty if there are none."""
    planned = list(_plan(groups))
    if not planned:
        return ""
    idle_s = max((length_s for _, num_jobs, length_s in planned if not num_jobs), default=0.0)
    waiting = [length_s for _, num_jobs, length_s in planned if num_jobs]
    parts = [f"{idle_s:g} s without jobs (gpu.idle_power_s)"] if idle_s else []
    if waiting:
        times = format_count(len(waiting), "time")
        parts.append(f"{times} {waiting[0]:g} s while jobs wait (gpu.waiting_power_s)")
    total = format_duration(sum(length_s for *_, length_s in planned))
    return f"idle power is measured once for all blocks, in {total}: {' and '.join(parts)}"


def _plan(groups: Iterable[Group]) -> Iterator[tuple[Group, int, float]]:
    """Yield the group, the number of waiting jobs and the length of each measurement."""
    planned_keys: set[Key] = set()
    launches: set[str] = set()
    for group in groups:
        if group.skip_reason is not None or group.launch in launches:
            continue  # a launch is measured with its first group, which has most jobs
        launches |= {group.launch} - {""}
        for num_jobs in (0, count_contexts(group)):
            key, length_s = make_key(group, num_jobs), get_seconds(group, num_jobs)
            if length_s and key not in planned_keys:
                planned_keys.add(key)
                yield group, num_jobs, length_s
