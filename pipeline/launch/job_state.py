"""State of one job while it runs: its start, its reports, its end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.base.domain import layout
from pipeline.base.domain.records import Job, Result
from pipeline.base.system import regular_files, secrets
from pipeline.launch.spawn import Process


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """Instants of CLOCK_MONOTONIC in ns; the defaults impose no bound.

    Attributes:
        begin_ns: instant just before the start of the job's process.
        released_ns: instant at which the job was released from the barrier.
        end_ns: instant by which the job had sent its `bye` or had exited.
    """

    begin_ns: int = 0
    released_ns: int = 0
    end_ns: int = 2**63 - 1


WHOLE_TIME = Lifetime()
"""Lifetime without bounds, for a job that was not observed."""


@dataclass(frozen=True, slots=True)
class Ending:
    """Result of a job or group and its reason, without secrets; the reason is empty after success."""

    result: Result
    reason: str = ""

    def __post_init__(self) -> None:
        """Mask secrets in the reason, which may contain output of a program."""
        object.__setattr__(self, "reason", secrets.mask_text(self.reason))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStart:
    """Process of a job and the conditions of its start.

    Attributes:
        at_ns: instant just before the start.
        cpus: CPUs that the process is bound to; empty if it is not bound.
        oom_kills: count of `host_info.count_oom_kills` at the start.
    """

    process: Process
    at_ns: int
    cpus: Sequence[int] = ()
    oom_kills: int | None = None


@dataclass(slots=True, kw_only=True)
class ProtocolReport:
    """Messages of the job over the job protocol.

    Attributes:
        pid: PID of the process that sends the messages, if it is not the leading process.
        held_ns: instant of the report that the job is held; `None` while it works.
        bye: status that the job reported at the end of its work; `None` before.
        bye_ns: instant of this report.
    """

    pid: int | None = None
    is_ready: bool = False
    held_ns: int | None = None
    bye: str | None = None
    bye_ns: int | None = None


@dataclass(slots=True, kw_only=True)
class JobEnd:
    """End of a job as the orchestrator saw it.

    Attributes:
        told_ns: instant of the request to stop, if there was one.
        was_signalled: whether the orchestrator ended the job by a signal.
        signalled_ns: instant of the first such signal.
        noticed: first fault that the orchestrator observed, such as a missed deadline or an early end.
        status: exit status, or minus the signal that ended the process; `None` while it runs.
        is_lost: whether the exit status is unknown. The PID may then belong to another process.
        at_ns: instant at which the end of the process was seen.
        oom_kills: count of `host_info.count_oom_kills` at the end.
    """

    told_ns: int | None = None
    was_signalled: bool = False
    signalled_ns: int | None = None
    noticed: Ending | None = None
    status: int | None = None
    is_lost: bool = False
    at_ns: int | None = None
    oom_kills: int | None = None


@dataclass(slots=True, kw_only=True)
class JobState:
    """One job of a running group.

    Attributes:
        folder: absolute path of the job's folder.
        wrapper: program that is the job's leading process, if any: a profiler, or the program that starts a container.
            Such a job is never started warm.
        host_folder: folder with the output of the process that hosts the job with other jobs, if any.
        released_ns: instant at which the job is to begin, if it was released from the barrier.
        holds: times for which the job was held, without a time that has not ended.
    """

    job: Job
    folder: Path
    wrapper: str | None = None
    host_folder: Path | None = None
    released_ns: int | None = None
    started: ProcessStart | None = None
    holds: list[tuple[int, int]] = field(default_factory=list)
    said: ProtocolReport = field(default_factory=ProtocolReport)
    ended: JobEnd = field(default_factory=JobEnd)

    @property
    def pid(self) -> int | None:
        return None if self.started is None else self.started.process.pid

    @property
    def lifetime(self) -> Lifetime:
        """Lifetime of the job: begin and release are measured before the event, the end after it."""
        ends = [t_ns for t_ns in (self.said.bye_ns, self.ended.at_ns) if t_ns is not None]
        return Lifetime(
            begin_ns=0 if self.started is None else self.started.at_ns,
            released_ns=self.released_ns or 0,
            end_ns=min(ends, default=WHOLE_TIME.end_ns),
        )

    @property
    def working_pid(self) -> int | None:
        """PID of the process that does the work: with a wrapper, the process that uses the job protocol."""
        return self.pid if self.said.pid is None else self.said.pid

    @property
    def num_oom_kills(self) -> int:
        """Number of processes of all jobs that the kernel killed for lack of memory while this job ran."""
        before = None if self.started is None else self.started.oom_kills
        return 0 if before is None or self.ended.oom_kills is None else self.ended.oom_kills - before

    @property
    def has_ended(self) -> bool:
        return self.ended.status is not None

    @property
    def is_tenant(self) -> bool:
        """True if the process also runs other jobs."""
        return self.host_folder is not None

    @property
    def outlives_work(self) -> bool:
        """True if the process may go on after the job's work: its wrapper, or with other jobs."""
        return self.wrapper is not None or self.is_tenant

    @property
    def has_left(self) -> bool:
        """True once the work is over: the process has ended, or its wrapper or other jobs go on."""
        return self.has_ended or (self.outlives_work and self.said.bye is not None)

    @property
    def ended_well(self) -> bool:
        """True if the job reported `ok`, exited with status 0, and no fault was noticed."""
        return self.ended.noticed is None and self.ended.status == 0 and self.said.bye == "ok"

    @property
    def went_wrong(self) -> bool:
        has_failed = self.is_tenant and self.said.bye == "error"
        return self.ended.noticed is not None or has_failed or (self.has_ended and not self.ended_well)

    @property
    def bytes_to_read(self) -> int:
        is_output_read = self.job.workload.rate.is_printed
        num_bytes = 0
        for name in (layout.EVENTS, layout.REQUESTS, *([layout.STDOUT, layout.STDERR] if is_output_read else [])):
            with suppress(OSError):
                num_bytes += regular_files.measure_size(self.folder / name)
        return num_bytes

    def notice(self, result: Result, reason: str) -> None:
        """Record a fault that the orchestrator observed; only the first fault is kept."""
        self.ended.noticed = self.ended.noticed or Ending(result, reason)
