"""The check that jobs used their GPU: each must once have a process in the driver's list of processes.

The nvml listener counts the listed processes of a job, and omits the count where a process of unknown origin is listed,
which may be a job's, or the list is empty although memory is in use: PIDs differ in a container, or are hidden there,
and a container's daemon starts a job's processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.base.domain.marks import NO_MARKS, Marks
from pipeline.base.domain.records import Group
from pipeline.base.domain.samples import NUM_GPU_PROCESSES
from pipeline.base.domain.sharing_modes import MIG, NAIVE, SERIAL, TIMESLICE
from pipeline.base.system.words import list_first
from pipeline.launch.job_state import JobState
from pipeline.observe.sample_figures import Readings, Subject

_LISTED_MODES = frozenset(mode.name for mode in (SERIAL, NAIVE, TIMESLICE, MIG))
"""Modes in which the driver lists each job; the clients of an MPS server are not in every list."""
_MIN_READINGS, _MOST_NAMES = 3, 3


def mark_unused_gpu(group: Group, states: Sequence[JobState], read: Mapping[Subject, Readings]) -> Marks:
    """Mark a group with jobs that were never on the GPU; a note if they may have been, as in jobs of few readings."""
    counts: dict[int | None, list[float]] = {}  # by PID, because jobs that share a process are counted as one
    for state in states:
        of_job = read.get((state.job.index, None), {})
        numbers = [num for (_, name), readings in of_job.items() if name == NUM_GPU_PROCESSES for _, num in readings]
        counts.setdefault(state.pid, []).extend(numbers)
    unseen = {state.job.name: num for state in states if (num := counts[state.pid]) and not any(num)}
    if not unseen or not group.device.is_gpu or group.device.is_simulated:
        return NO_MARKS
    text = f"no process of {list_first(list(unseen), _MOST_NAMES)} was on the GPU; check that the program finds CUDA"
    is_sure = group.scenario in _LISTED_MODES and min(map(len, unseen.values())) >= _MIN_READINGS
    return Marks(invalid=text) if is_sure else Marks(note=text)
