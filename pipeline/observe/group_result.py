"""Observations of a group, and the rows of a group and its jobs.

Instants are CLOCK_MONOTONIC in nanoseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.base.domain import work_units
from pipeline.base.domain.machine_state import MachineState
from pipeline.base.domain.marks import NO_MARKS, Marks, read_marks
from pipeline.base.domain.records import Group, Job, Result
from pipeline.base.domain.samples import Sample
from pipeline.launch.interleaving import Slice
from pipeline.launch.job_state import JobState
from pipeline.observe.changed_files import Changes
from pipeline.observe.clock import ClockRecord
from pipeline.observe.sample_figures import Fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One phase between two monotonic instants, of one job, or of the group if `job` is `None`."""

    name: str
    start_ns: int
    end_ns: int
    job: int | None = None

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """The result of one job.

    Attributes:
        metrics: figures by name; the name contains the unit.
        series: points `(step, monotonic ns, value)` by name.
        params: parameters that the job reported (torch version, parameters of the model, ...).
        place: placement of the job.
        error_output: the last lines of the job's stderr, or else of its stdout, if it failed.
        start_ns, end_ns: first and last instant of the job's measured work.
    """

    job: Job
    result: Result
    reason: str
    exit_status: int | None = None
    pid: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    series: dict[str, list[tuple[int, int, float]]] = field(default_factory=dict)
    params: dict[str, str] = field(default_factory=dict)
    place: dict[str, str] = field(default_factory=dict)
    spans: tuple[Span, ...] = ()
    error_output: tuple[str, ...] = ()

    @property
    def work_unit(self) -> str:
        """The work unit of the workload, or else of the rate that the program logged; empty if there is none."""
        return self.job.workload.work_unit or next(iter(work_units.find_common_units([self.metrics])), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """The row of a group.

    Attributes:
        spans: the phases of the group and of its jobs.
        spool_id: the group's name in the store.
        origin: machine state of the earlier start that ran the group; `None` if this start ran it.
    """

    group: Group
    result: Result
    reason: str
    jobs: tuple[JobResult, ...] = ()
    metrics: dict[str, float] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    spans: tuple[Span, ...] = ()
    spool_id: str | None = None
    origin: MachineState | None = None

    @property
    def machine_state(self) -> MachineState:
        return MachineState.read(self.group.device) if self.origin is None else self.origin

    @property
    def gpu_uuid(self) -> str:
        """The GPU that ran the group; an earlier start may have used another GPU than the plan names."""
        return dict(self.machine_state.facts).get("gpu_uuid", self.group.device.uuid)

    @property
    def marks(self) -> Marks:
        return read_marks(self.tags)

    @property
    def measured(self) -> tuple[JobResult, ...]:
        """The jobs without the co-runners."""
        return tuple(job for job in self.jobs if not job.job.is_co_runner)


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
        device_marks: marks from the health of the device, and what could not be checked of it.
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
    device_marks: Marks = NO_MARKS
    clock: ClockRecord = field(default_factory=ClockRecord)
    launched: Sequence[JobState] = ()
    slices: Sequence[Slice] = ()
    jobs_at_first_steps: Mapping[int, int] = field(default_factory=dict)
