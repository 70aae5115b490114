"""How a group and its jobs ended: their figures and their phases. Instants are CLOCK_MONOTONIC in nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.base.domain.machine_state import MachineState
from pipeline.base.domain.marks import Marks, read_marks
from pipeline.base.domain.records import Group, Job, Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One phase, from and to monotonic instants; of one job, or of the group if `job` is `None`."""

    name: str
    start_ns: int
    end_ns: int
    job: int | None = None

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """How one job ended, with its own metrics and series.

    Attributes:
        metrics: name to value (units in names).
        series: name to points `(step, monotonic ns, value)`.
        params: what the job said of itself (torch version, parameters of the model, ...).
        place: where it ran.
        spans: its phases.
        error_output: the last lines of its error output, if it failed.
        start_ns, end_ns: first and last instant of its measured work, if it got there.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResult:
    """The row that a group ends in.

    Attributes:
        spans: the phases of the group and of its jobs.
        spool_id: names it in the store.
        origin: the state of the machine in which an earlier start ran it; `None` of a row of this start.
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
        """The state of the machine in which it ran."""
        return MachineState.read(self.group.device) if self.origin is None else self.origin

    @property
    def gpu_uuid(self) -> str:
        """The device that it ran on; of a group that an earlier start ran, another one than planned, perhaps."""
        return dict(self.machine_state.facts).get("gpu_uuid", self.group.device.uuid)

    @property
    def marks(self) -> Marks:
        return read_marks(self.tags)

    @property
    def measured(self) -> tuple[JobResult, ...]:
        """The jobs that are no neighbours."""
        return tuple(job for job in self.jobs if not job.job.is_neighbour)
