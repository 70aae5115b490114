"""Rows of a group and its jobs. Instants are CLOCK_MONOTONIC in nanoseconds."""

from __future__ import annotations

from dataclasses import dataclass, field

from pipeline.base.domain.machine_state import MachineState
from pipeline.base.domain.marks import Marks, read_marks
from pipeline.base.domain.records import Group, Job, Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One phase between monotonic instants; of one job, or of the group if `job` is `None`."""

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
        metrics: values by name; units in names.
        series: points `(step, monotonic ns, value)` by name.
        params: reported by the job (torch version, parameters of the model, ...).
        place: where it ran.
        error_output: the last lines of its error output, if it failed.
        start_ns, end_ns: first and last instant of its measured work.
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
    """The row of a group.

    Attributes:
        spans: the phases of the group and of its jobs.
        spool_id: its name in the store.
        origin: machine state of the earlier start that ran it; `None` for this start.
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
        """The device that it ran on; an earlier start may have used another one than planned."""
        return dict(self.machine_state.facts).get("gpu_uuid", self.group.device.uuid)

    @property
    def marks(self) -> Marks:
        return read_marks(self.tags)

    @property
    def measured(self) -> tuple[JobResult, ...]:
        """The jobs that are no co-runners."""
        return tuple(job for job in self.jobs if not job.job.is_co_runner)
