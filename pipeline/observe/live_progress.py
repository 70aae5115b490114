"""Progress of the running jobs, for the live view and for exporters."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pipeline.base.domain import layout
from pipeline.base.domain.records import Group, Job
from pipeline.base.domain.running_group import RunningGroup
from pipeline.launch import events

_RATE_OVER_NS = 5_000_000_000  # short enough for a current rate, long enough for several steps


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNow:
    """Progress of one job.

    Attributes:
        phase: phase that the job reported; `waiting` before its first message, `ended` after its process exited.
        total: work since the job's start, in its work unit.
        per_s: work per second, over the last seconds; `None` if unknown.
    """

    job: Job
    phase: str
    epoch: int | None
    total: float | None
    per_s: float | None


class LiveJobs:
    """A reader of the jobs' event files, which derives rates from its earlier readings."""

    def __init__(self, group: Group, running: RunningGroup, now_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._group, self._running, self._now_ns = group, running, now_ns
        self._seen: dict[int, deque[tuple[int, int, float]]] = {job.index: deque() for job in group.jobs}

    def read(self) -> list[JobNow]:
        alive = self._running.pids()
        return [self._read(job, job.index in alive) for job in self._group.jobs]

    def _read(self, job: Job, is_alive: bool) -> JobNow:
        reported = events.read_progress(self._running.folder / layout.job_path(job.index) / layout.EVENTS)
        phase = reported.phase if is_alive else "ended" if reported.t_ns else "waiting"
        per_s = self._compute_per_s(job.index, reported) if is_alive else None
        return JobNow(job=job, phase=phase, epoch=reported.epoch, total=reported.total, per_s=per_s)

    def _compute_per_s(self, index: int, reported: events.JobProgress) -> float | None:
        if reported.t_ns is None or reported.total is None:
            return None
        seen, now_ns = self._seen[index], self._now_ns()
        seen.append((now_ns, reported.t_ns, reported.total))
        while len(seen) > 2 and seen[1][0] <= now_ns - _RATE_OVER_NS:
            seen.popleft()  # always keep one older reading, which a rare caller needs for a rate
        (_, begin_ns, before), (_, end_ns, after) = seen[0], seen[-1]
        return (after - before) / ((end_ns - begin_ns) / 1e9) if end_ns > begin_ns else None
