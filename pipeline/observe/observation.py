"""Everything that was observed of a group, from which its row is computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.base.domain.samples import Sample
from pipeline.launch.interleaving import Slice
from pipeline.launch.job_state import JobState
from pipeline.observe.changed_files import Changes
from pipeline.observe.clock import ClockRecord
from pipeline.observe.fields import Fields
from pipeline.observe.group_result import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Everything that was observed while a group ran.

    Attributes:
        batches: jobs that ran at the same time: one batch for a collocated group, one per job for a sequential group.
        places: placement of each job, if the job was started.
        reason: why the group ended early, if no job was the cause.
        launched: all jobs of an interleaved launch, if its other numbers of jobs include more jobs.
        slices: slices of an interleaved launch, including slices with other numbers of jobs.
        jobs_at_first_steps: number of jobs that ran when a job of an interleaved launch made its first steps, by its
            index.
        idle_w, waiting_w: power of the device without jobs, and while the jobs wait at the barrier, if measured.
        changed: files below the working directory that changed while the group ran, if they were searched.
        tool_cpu_s, tool_wall_s: CPU time of the orchestrator and its samplers in the window, and the window's length.
    """

    batches: Sequence[Sequence[JobState]]
    samples: Sequence[Sample]
    fields: Fields = field(default_factory=Fields)
    places: Sequence[dict[str, str]] = ()
    reason: str | None = None
    interrupted: bool = False
    tool_cpu_s: float | None = None
    tool_wall_s: float | None = None
    idle_w: float | None = None
    waiting_w: float | None = None
    spans: Sequence[Span] = ()
    tags: tuple[tuple[str, str], ...] = ()
    changed: Changes | None = None
    clock: ClockRecord = field(default_factory=ClockRecord)
    launched: Sequence[JobState] = ()
    slices: Sequence[Slice] = ()
    jobs_at_first_steps: Mapping[int, int] = field(default_factory=dict)
