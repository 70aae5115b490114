"""State of one job while it runs: how it was started, what it reported, how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.base.domain import layout
from pipeline.base.domain.records import Job, Result
from pipeline.base.system import regular_files, secrets
from pipeline.launch.lifetime import WHOLE_TIME, Lifetime
from pipeline.launch.spawn import Process


@dataclass(frozen=True, slots=True)
class Ending:
    """Result and reason of something that ended, in words without secrets; no words if it ended well."""

    result: Result
    reason: str = ""

    def __post_init__(self) -> None:
        """Mask the reason, which may hold what a program wrote."""
        object.__setattr__(self, "reason", secrets.mask_text(self.reason))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStart:
    """Process of a job, just after `at_ns`; no `cpus` if it is bound to none.

    Attributes:
        oom_kills: as `cgroup.count_oom_kills` counted them then.
    """

    process: Process
    at_ns: int
    cpus: Sequence[int] = ()
    oom_kills: int | None = None


@dataclass(slots=True, kw_only=True)
class ProtocolReport:
    """Messages of the job over the job protocol.

    Attributes:
        pid: the process that speaks, if that is not the leading one.
        bye: how its work ended, in its own word; `None` before that.
        bye_ns: when it said so.
    """

    pid: int | None = None
    is_ready: bool = False
    is_held: bool = False
    bye: str | None = None
    bye_ns: int | None = None


@dataclass(slots=True, kw_only=True)
class JobEnd:
    """End of a job as the orchestrator saw it.

    Attributes:
        told_ns: when it was told to stop, if it was.
        was_signalled: that we ended it by a signal.
        noticed: what the orchestrator saw go wrong with it: a missed deadline, an end too early.
        status: its exit status, or minus the signal that ended it; `None` while it runs.
        is_lost: that nobody knows how it ended, so that its number may be somebody else's by now.
        at_ns: when its process was gone.
        oom_kills: as `cgroup.count_oom_kills` counted them then.
    """

    told_ns: int | None = None
    was_signalled: bool = False
    noticed: Ending | None = None
    status: int | None = None
    is_lost: bool = False
    at_ns: int | None = None
    oom_kills: int | None = None


@dataclass(slots=True, kw_only=True)
class JobState:
    """One job of a group that runs.

    Attributes:
        folder: its files; absolute.
        profiler: what its leading process is, if not the job itself; a job under one is never started warm.
        released_ns: when it was to begin, if it was released from the barrier.
    """

    job: Job
    folder: Path
    profiler: str | None = None
    released_ns: int | None = None
    started: ProcessStart | None = None
    said: ProtocolReport = field(default_factory=ProtocolReport)
    ended: JobEnd = field(default_factory=JobEnd)

    @property
    def pid(self) -> int | None:
        return None if self.started is None else self.started.process.pid

    @property
    def lifetime(self) -> Lifetime:
        """Lifetime of the job: its end is measured after it, the others before what they are of."""
        ends = [t_ns for t_ns in (self.said.bye_ns, self.ended.at_ns) if t_ns is not None]
        return Lifetime(
            begin_ns=0 if self.started is None else self.started.at_ns,
            released_ns=self.released_ns or 0,
            end_ns=min(ends, default=WHOLE_TIME.end_ns),
        )

    @property
    def working_pid(self) -> int | None:
        """PID of the process that does the work: below a profiler, the one that speaks the job protocol."""
        return self.pid if self.said.pid is None else self.said.pid

    @property
    def num_oom_kills(self) -> int:
        """Number of processes that the kernel killed for lack of memory while it ran, in the whole group."""
        before = None if self.started is None else self.started.oom_kills
        return 0 if before is None or self.ended.oom_kills is None else self.ended.oom_kills - before

    @property
    def has_ended(self) -> bool:
        return self.ended.status is not None

    @property
    def has_left(self) -> bool:
        """True once its work is over: the process is gone, or its profiler still writes its report."""
        return self.has_ended or (self.profiler is not None and self.said.bye is not None)

    @property
    def ended_well(self) -> bool:
        """True if it finished its work: it said so, left with status 0, and nobody saw a fault."""
        return self.ended.noticed is None and self.ended.status == 0 and self.said.bye == "ok"

    @property
    def went_wrong(self) -> bool:
        return self.ended.noticed is not None or (self.has_ended and not self.ended_well)

    @property
    def bytes_to_read(self) -> int:
        is_output_read = self.job.workload.rate.pattern is not None
        num_bytes = 0
        for name in (layout.EVENTS, layout.REQUESTS, *([layout.STDOUT, layout.STDERR] if is_output_read else [])):
            with suppress(OSError):
                num_bytes += regular_files.measure_size(self.folder / name)
        return num_bytes

    def notice(self, result: Result, reason: str) -> None:
        """Keep what the orchestrator sees go wrong; of several things, the first one."""
        self.ended.noticed = self.ended.noticed or Ending(result, reason)
