"""The processes of one group: spawned together, released together, ended together.

A job is a process group and a session of its own, so that signals reach what it forked as well. Nothing here decides
what an ending means: `JobState` keeps the facts, `pipeline/measure.py` judges them.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from pipeline import events, layout, processes
from pipeline.channel import PROTOCOL, Channel
from pipeline.errors import LaunchError
from pipeline.launch import Process, Starter
from pipeline.types import Interpreter, Job, Limits, Slot, Window, WindowKind

# From "everybody is ready" to the common start: long enough that the slowest process is asleep waiting for it.
_START_DELAY_NS = 50_000_000
_TERM_GRACE_S = 5.0
_UNKNOWN_STATUS = 255
# What a job must not inherit: it would change how the GPU is shared, or where its own MLflow calls go.
_DROPPED_PREFIXES = ("CUDA_MPS_", "MLFLOW_")
_DROPPED = frozenset({"CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"})


@dataclass(slots=True)
class JobState:
    """What is known of one job while it runs.

    Attributes:
        started_ns: when its process was started.
        stopped_ns: when it was told to stop, if it was.
        overdue: which deadline it missed, in words.
        fault: what else it did wrong, in words.
        cpus: the CPUs that it is bound to, if it is.
        signalled: that we ended it by a signal.
        profiler: what its leading process is, if not the job itself; a job under one is never started warm.
        speaker_pid: the process that speaks the job protocol, if that is not the leading one.
        bye_ns: when it reported the end of its work.
    """

    job: Job
    folder: Path
    process: Process | None = None
    pid: int | None = None
    is_ready: bool = False
    bye: str | None = None
    exit_status: int | None = None
    exit_ns: int | None = None
    started_ns: int | None = None
    stopped_ns: int | None = None
    overdue: str | None = None
    fault: str | None = None
    signalled: bool = False
    cpus: Sequence[int] = ()
    profiler: str | None = None
    speaker_pid: int | None = None
    bye_ns: int | None = None

    @property
    def working_pid(self) -> int | None:
        """The process that does the work: below a profiler, the one that speaks the job protocol."""
        return self.pid if self.speaker_pid is None else self.speaker_pid

    @property
    def has_left(self) -> bool:
        """Whether its work is over: the process is gone, or its profiler is still writing its report."""
        return self.has_ended or (self.profiler is not None and self.bye is not None)

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self.exit_status is not None

    @property
    def is_lost(self) -> bool:
        """Whether it ended without anybody knowing how, so that its number may be somebody else's by now."""
        return self.exit_status == _UNKNOWN_STATUS and self.fault is not None

    @property
    def went_wrong(self) -> bool:
        """Whether it ended in any other way than by finishing its work."""
        return bool(self.overdue or self.fault) or (self.has_ended and (self.exit_status != 0 or self.bye != "ok"))


class JobGroup:
    """A context in which the jobs live; leaving it ends every process, whatever happened.

    Args:
        jobs: what to start.
        slots: where, one a job.
        starters: what starts them, one a job.
        folder: the group's folder; job `i` gets `jobs/<i>` below it.
        mark: what every process of the group carries in its environment (`pipeline/processes.py`).
        scratch: short-lived folder with a short path, for the control socket.
        pin_cpus: give each job an equal share of the CPUs.
        profiler: the program that the starters put before the command of each job, if there is one.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        slots: Sequence[Slot],
        starters: Sequence[Starter],
        folder: Path,
        limits: Limits,
        *,
        mark: str,
        scratch: Path,
        pin_cpus: bool = False,
        profiler: str | None = None,
    ) -> None:
        self._profiler = profiler
        self._slots, self._starters, self._limits, self._pin_cpus = slots, starters, limits, pin_cpus
        self._mark, self._socket = mark, scratch / "control"
        self.states = [JobState(job=job, folder=folder / layout.job_path(job.index)) for job in jobs]
        self._by_index = {state.job.index: state for state in self.states}

    def __enter__(self) -> JobGroup:
        """Start all jobs, or none: those already started are ended if one cannot be."""
        self._channel = Channel(self._socket, self._message, self._exited)
        try:
            places = zip(self.states, self._slots, self._starters, strict=True)
            for position, (state, slot, starter) in enumerate(places):
                self._start(state, slot, starter, position)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End every process group: TERM, then KILL after a grace period; also what ended jobs left behind."""
        try:
            for signum in (signal.SIGTERM, signal.SIGKILL):
                if self._all_gone():
                    break
                self._signal(signum)
                deadline_ns = _deadline(_TERM_GRACE_S)
                # A stray child wakes nobody up when it ends, so this looks now and then.
                while not self._all_gone() and time.monotonic_ns() < deadline_ns:
                    self._channel.pump(self._all_ended, min(deadline_ns, _deadline(0.05)))
                    if self._all_ended():
                        time.sleep(0.01)
        finally:
            for state in self.states:
                if state.process is not None and state.has_ended:
                    state.process.reap()
            self._channel.close()

    def pids(self) -> Mapping[int, int]:
        """Job index to PID, for the jobs that are alive; below a profiler, of the process that it profiles."""
        return {s.job.index: s.working_pid for s in self.states if s.working_pid is not None and not s.has_ended}

    def wait_ready(self) -> None:
        """Wait until every job stands at the barrier.

        Raises:
            LaunchError: a job ended first, or not all were ready in time.
        """
        in_time = self._channel.pump(
            lambda: self._failed() or self._any_ended() or all(s.is_ready for s in self.states),
            _deadline(self._limits.ready_s),
        )
        for state in self.states:
            if state.has_left and not state.went_wrong:
                state.fault = "ended before it was ready"
        if self._failed():
            raise LaunchError("a job ended before it was ready")
        if not in_time:
            for state in self.states:
                if not state.is_ready:
                    phase = events.read_progress(state.folder / layout.EVENTS).phase
                    state.overdue = f"not ready within {self._limits.ready_s:g} s (last phase: {phase})"
            raise LaunchError("not all jobs were ready in time")

    def measure(self, window: Window) -> None:
        """Release the jobs at one instant, wait through the window, and wait for their end.

        Returns when all jobs have ended, or as soon as one has gone wrong: then leaving the context ends the others.
        """
        start_ns = time.monotonic_ns() + _START_DELAY_NS
        for state in self.states:
            self._channel.send(state.job.index, type="go", start_ns=start_ns)
        if window.kind is WindowKind.STEADY:
            length_ns = int((window.settle_s + window.seconds) * 1e9)
            self._channel.pump(self._any_ended, start_ns + length_ns)
            if self._any_ended():
                for state in self.states:
                    if state.has_left and not state.went_wrong:
                        state.fault = "ended before it was told to stop"
                return
            self._stop()
        elif not self._channel.pump(lambda: self._failed() or self._all_ended(), _deadline(self._limits.group_s)):
            self._mark_overdue(f"did not end within limits.group_s={self._limits.group_s:g} s")

    def _stop(self) -> None:
        now = time.monotonic_ns()
        for state in self.states:
            state.stopped_ns = now
            self._channel.send(state.job.index, type="stop")
        if not self._channel.pump(lambda: self._failed() or self._all_ended(), _deadline(self._limits.stop_s)):
            self._mark_overdue(f"did not end within limits.stop_s={self._limits.stop_s:g} s of being told to stop")

    def _mark_overdue(self, reason: str) -> None:
        for state in self.states:
            if not state.has_ended:
                state.overdue = reason

    def _failed(self) -> bool:
        return any(state.went_wrong for state in self.states)

    def _any_ended(self) -> bool:
        return any(state.has_left for state in self.states)

    def _all_ended(self) -> bool:
        return all(state.has_ended for state in self.states if state.pid is not None)

    def _all_gone(self) -> bool:
        return self._all_ended() and not processes.marked(self._mark)

    def _signal(self, signum: int) -> None:
        for state in self.states:
            if state.pid is not None and not state.is_lost:
                state.signalled = state.signalled or not state.has_ended
                # The leader is not reaped before the end, so its number cannot belong to anybody else; only where the
                # fork server died, the system may have reaped it just now.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(state.pid, signum)
        processes.send_signal(self._mark, signum)

    def _start(self, state: JobState, slot: Slot, starter: Starter, position: int) -> None:
        job = state.job
        state.folder.mkdir(parents=True, exist_ok=True)  # the record of the group may have begun it
        spec = {"index": job.index, "socket": str(self._socket), "name": job.name, "argv": list(job.workload.argv)}
        (state.folder / layout.JOB_FILE).write_text(json.dumps(spec, indent=1), encoding="utf-8")
        state.profiler = self._profiler
        if self._pin_cpus:
            state.cpus = sorted(_share_of_cpus(position, len(self.states)))
        environ = self._environ(state, slot, starter.interpreter) | dict(slot.environ)
        stdout, stderr = state.folder / layout.STDOUT, state.folder / layout.STDERR
        state.started_ns = time.monotonic_ns()
        try:
            state.process = starter.start(
                job.workload.argv, environ | dict(job.workload.environ), stdout, stderr, state.cpus
            )
        except LaunchError as error:
            raise LaunchError(f"job {job.name}: {error}") from error
        state.pid = state.process.pid
        self._channel.watch(job.index, state.pid)

    def _environ(self, state: JobState, slot: Slot, interpreter: Interpreter) -> dict[str, str]:
        # A job's own MLflow calls go to files of its own: several jobs that write to one database while they are
        # measured would wait for each other. They reach the job's run when the window is over.
        return inherited_environ(interpreter.environ) | {
            "MLFLOW_TRACKING_URI": (state.folder / layout.SCRIPT_STORE).as_uri(),
            "MLFLOW_ALLOW_FILE_STORE": "true",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "CUDA_VISIBLE_DEVICES": slot.visible_devices,
            "COLLOCATION_JOB": str(state.folder),
            processes.MARK_VARIABLE: self._mark,
        }

    def _message(self, index: int, message: dict[str, object]) -> None:
        state = self._by_index.get(index)
        if state is None:
            return
        kind = message.get("type")
        if kind == "hello" and message.get("protocol") != PROTOCOL:
            state.fault = f"speaks version {message.get('protocol')} of the job protocol, not {PROTOCOL}"
        elif kind == "hello":
            pid = message.get("pid")
            # Anything could come over the socket; what we observe, and look for on the GPU, must be the group's.
            if state.profiler is not None and isinstance(pid, int) and pid in processes.marked(self._mark):
                state.speaker_pid = pid
        elif kind == "ready":
            state.is_ready = True
        elif kind == "bye":
            state.bye, state.bye_ns = str(message.get("status")), time.monotonic_ns()

    def _exited(self, index: int) -> None:
        state = self._by_index[index]
        assert state.process is not None
        try:
            state.exit_status = state.process.status()
        except LaunchError as error:
            state.exit_status, state.fault = _UNKNOWN_STATUS, f"ended, and how is not known: {error}"
        state.exit_ns = time.monotonic_ns()


def inherited_environ(of_interpreter: Iterable[tuple[str, str]] = ()) -> dict[str, str]:
    """What every job gets of our own environment, and of the variables that its interpreter brings."""
    every = os.environ | dict(of_interpreter)
    kept = {key: value for key, value in every.items() if not key.startswith(_DROPPED_PREFIXES) and key not in _DROPPED}
    return kept | {"PYTHONUNBUFFERED": "1"}


def _deadline(seconds: float) -> int:
    return time.monotonic_ns() + int(seconds * 1e9)


def _share_of_cpus(position: int, num_jobs: int) -> set[int]:
    """A share of the CPUs that we may use, at least one; threads of one core stay together."""
    cpus = sorted(os.sched_getaffinity(0), key=_core_of)
    if num_jobs > len(cpus):
        return {cpus[position % len(cpus)]}
    return set(cpus[position * len(cpus) // num_jobs : (position + 1) * len(cpus) // num_jobs])


def _core_of(cpu: int) -> tuple[int, int, int]:
    """Package and core of a CPU; on many machines CPU i and CPU i + n/2 are two threads of one core."""
    topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
    try:
        return (*(int((topology / name).read_text()) for name in ("physical_package_id", "core_id")), cpu)  # type: ignore[return-value]
    except (OSError, ValueError):
        return (0, cpu, cpu)
