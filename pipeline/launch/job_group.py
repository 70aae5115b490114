"""The processes of one group: spawned together, released together, ended together.

The members of a pack come and go instead: `add` starts one, `hold_process` stops it for a time, `remove` forgets it.

Each process has its own process group and session, so signals also reach its child processes. A job has a process of
its own, or the jobs whose slots name the same host program share one (`host_start.py`). `JobState` records how a job
ended; `pipeline/observe/endings.py` derives its result.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.domain import layout
from pipeline.base.domain.records import CpuPinning, Interpreter, Job, Limits, Result, Slot
from pipeline.base.domain.window import Window, WindowKind
from pipeline.base.domain.workload import fill_placeholders
from pipeline.base.system import host_info, secrets
from pipeline.base.system.errors import LaunchError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.base.system.words import group_by
from pipeline.clean import processes
from pipeline.launch import events, host_start, window_length
from pipeline.launch.channel import PROTOCOL, Channel
from pipeline.launch.environ import choose_ports, inherit_environ, list_client_cpus, share_cpus
from pipeline.launch.host_start import PreparedJob
from pipeline.launch.job_state import JobState, ProcessStart
from pipeline.launch.warm_start import Starter

# Delay from "all jobs are ready" to the common start: long enough for the slowest process to receive the message.
_START_DELAY_NS = 50_000_000
_TERM_GRACE_S = 5.0
_LOOK_S = 0.05  # interval at which the progress of co-runners is checked
_READ_S = 0.25  # interval at which the output of programs that end by themselves is read
_UNKNOWN_STATUS = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStart:
    """One job to start; `wrapper` is the name of the program that the starter puts before its command, if any."""

    job: Job
    slot: Slot
    starter: Starter
    wrapper: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFiles:
    """The folders of a group, and the mark of its processes.

    Attributes:
        folder: folder of the group; job `i` has the subfolder `jobs/<i>`.
        scratch: temporary folder with a short path, for the control socket.
        mark: value of the variable that marks every process of the group (`pipeline/clean/processes.py`).
    """

    folder: Path
    scratch: Path
    mark: str


class JobGroup:
    """A context in which jobs run at the same time; leaving it always ends every process.

    Args:
        block: number of the block, which is passed to the jobs.
        pin_cpus: the CPUs to which each job is bound.
        go_on: whether jobs continue when another job fails.
    """

    def __init__(
        self,
        starts: Sequence[JobStart],
        files: GroupFiles,
        limits: Limits,
        *,
        block: int = 1,
        pin_cpus: CpuPinning = CpuPinning.NONE,
        go_on: bool = False,
    ) -> None:
        self._starts, self._files, self._limits, self._pin_cpus = list(starts), files, limits, pin_cpus
        self._block, self._goes_on = block, go_on
        self.states = [
            JobState(job=start.job, folder=files.folder / layout.job_path(start.job.index), wrapper=start.wrapper)
            for start in starts
        ]
        self._by_index = {state.job.index: state for state in self.states}
        self._ports = choose_ports(len(starts))
        self._host_files: list[Path] = []
        self._on_hold: set[int] = set()

    def __enter__(self) -> JobGroup:
        """Start all jobs; if one cannot be started, end the others and raise."""
        self._channel = Channel(self._socket, self._handle_message, self._note_exit, self._note_fault)
        try:
            for members in group_by(range(len(self._starts)), self._identify_process).values():
                self._start(members)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        """End every process group, and processes left by ended jobs: SIGTERM, then SIGKILL after a grace period."""
        try:
            for signum, limit_s in ((signal.SIGTERM, _TERM_GRACE_S), (signal.SIGKILL, processes.KILL_LIMIT_S)):
                if self._are_all_gone():
                    break
                self._signal(signum)
                deadline_ns = _compute_deadline(limit_s)
                # The end of an orphaned child process raises no event, so its presence is checked repeatedly.
                while not self._are_all_gone() and time.monotonic_ns() < deadline_ns:
                    self._channel.pump(self._have_all_ended, min(deadline_ns, _compute_deadline(0.05)))
                    if self._have_all_ended():
                        time.sleep(0.01)
        finally:
            ended = [state.started.process for state in self.states if state.started is not None and state.has_ended]
            for process in {process.pid: process for process in ended}.values():
                process.reap()
            self._channel.close()
            for file in self._host_files:
                file.unlink(missing_ok=True)

    def add(self, start: JobStart) -> JobState:
        """Start one more job; its state says so if it cannot be started."""
        folder = self._files.folder / layout.job_path(start.job.index)
        state = JobState(job=start.job, folder=folder, wrapper=start.wrapper)
        self._starts.append(start)
        self._ports += choose_ports(1)
        self.states.append(state)
        self._by_index[start.job.index] = state
        try:
            self._start([len(self.states) - 1])
        except LaunchError as error:
            state.notice(Result.FAILED, str(error))
        return state

    def remove(self, state: JobState) -> None:
        """Kill the processes that an ended job left in its process group, and forget the job."""
        place = self.states.index(state)
        if state.started is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(state.started.process.pid, signal.SIGKILL)
            state.started.process.reap()
            self._channel.forget(state.started.process.pid)
        del self.states[place], self._starts[place], self._ports[place]

    def hold_process(self, state: JobState) -> None:
        """Stop the processes of a job until `resume_process`; they keep their memory."""
        state.said.held_ns = time.monotonic_ns()
        self._signal_job(state, signal.SIGSTOP)

    def resume_process(self, state: JobState) -> None:
        """Let the processes of a held job go on."""
        self._signal_job(state, signal.SIGCONT)
        if state.said.held_ns is not None:
            state.holds.append((state.said.held_ns, time.monotonic_ns()))
            state.said.held_ns = None

    def _signal_job(self, state: JobState, signum: int) -> None:
        if state.pid is not None and not state.has_ended:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(state.pid, signum)

    def release_ready(self, limit_s: float, admit: Callable[[JobState], None]) -> None:
        """Let each job begin as soon as it is ready, until a job has ended or the limit is over.

        `admit` is called with a job before it begins; if the job's state then has a fault, the job is killed instead.
        """
        deadline_ns = _compute_deadline(limit_s)

        def has_news() -> bool:
            for state in self.states:
                if state.said.is_ready and state.released_ns is None and not state.went_wrong:
                    admit(state)
                    if state.went_wrong:
                        self._signal_job(state, signal.SIGKILL)
                    else:
                        self.release([state])
            return any(state.has_ended for state in self.states)

        self._channel.pump(has_news, deadline_ns)

    def pids(self) -> Mapping[int, int]:
        """Return the PID of each running job by its index; with a wrapper, the PID of the job itself.

        Jobs that share a process have the same PID.
        """
        return {s.job.index: s.working_pid for s in self.states if s.working_pid is not None and not s.has_ended}

    def wait_ready(self) -> bool:
        """Wait until every job is at the barrier; return whether all are. If not, their states contain the reasons."""
        in_time = self._channel.pump(
            lambda: self.went_wrong or self._has_any_left() or all(state.said.is_ready for state in self.states),
            _compute_deadline(self._limits.ready_s),
        )
        self._notice_early(self.states, "ended before it was ready")
        if not in_time:
            for state in self.states:
                if not state.said.is_ready:
                    phase = events.read_progress(state.folder / layout.EVENTS).phase
                    late = f"not ready within limits.ready_s={self._limits.ready_s:g} s (last phase: {phase})"
                    state.notice(Result.TIMEOUT, late)
        return not self.went_wrong

    def wait_at_barrier(self, seconds: float) -> bool:
        """Let the jobs wait at the barrier; return whether none has left. If not, their states say why."""
        return self.wait_until(_compute_deadline(seconds))

    def measure(self, window: Window, is_over: Callable[[], bool] | None = None) -> None:
        """Release the jobs at one instant, wait for the window to pass, and wait for the jobs to end.

        Jobs that end by themselves are stopped as soon as `is_over` returns true, which is called a few times a second.
        Co-runners are released before the measured jobs, and are stopped after the measured jobs have ended.

        Returns when all jobs have ended, or, without `go_on`, as soon as one has failed; leaving the context then ends
        the others.
        """
        co_runners = [state for state in self.states if state.job.is_co_runner]
        measured = [state for state in self.states if not state.job.is_co_runner]
        if co_runners and not self._are_under_way(co_runners):
            return
        start_ns = self.release(measured)
        if window.kind is WindowKind.STEADY:
            seconds = self._choose_seconds(window, measured, start_ns)
            if seconds is None or not self.wait_until(start_ns + int((window.begin_s + seconds) * 1e9)):
                return
            self.stop(measured)
        elif self.wait_end(measured, is_over):
            self.stop(measured)
        self._notice_early(co_runners)
        if co_runners and not self.went_wrong:
            self.stop(co_runners)

    def wait_end(self, states: Sequence[JobState], is_over: Callable[[], bool] | None = None) -> bool:
        """Wait until jobs have ended by themselves, or until `is_over`; return whether it is over."""
        return self._wait_end(states, self._limits.group_s, f"limits.group_s={self._limits.group_s:g} s", is_over)

    def _choose_seconds(self, window: Window, states: Sequence[JobState], start_ns: int) -> float | None:
        """Return the length of the window, by need after the trial; `None` if a job has left."""
        readings = []
        for t_ns in window_length.list_reading_times_ns(window, start_ns):
            if not self.wait_until(t_ns):
                return None
            readings.append([events.read_progress(state.folder / layout.EVENTS) for state in states])
        return window_length.choose_seconds(window, readings)

    @property
    def went_wrong(self) -> bool:
        return any(state.went_wrong for state in self.states)

    def wait_until(self, t_ns: int) -> bool:
        """Let the jobs work until an instant; return whether none has left by then. If not, their states say why."""
        self._channel.pump(self._has_any_left, t_ns)
        self._notice_early(self.states)
        return not self._has_any_left()

    def wait(self, condition: Callable[[], bool], limit_s: float, look_s: float) -> bool:
        """Wait until a condition holds, or for `limit_s`; return whether no job has left meanwhile."""
        deadline_ns = _compute_deadline(limit_s)
        while not condition() and time.monotonic_ns() < deadline_ns:
            if not self.wait_until(_compute_deadline(look_s)):
                return False
        return True

    def hold(self, states: Sequence[JobState]) -> bool:
        """Hold jobs at their next step boundary; return whether all of them are held. If not, their states say why."""
        for state in states:
            self._on_hold.add(state.job.index)
            self._channel.send(state.job.index, type="hold")
        in_time = self._channel.pump(
            lambda: self._has_any_left() or all(state.said.held_ns is not None for state in states),
            _compute_deadline(self._limits.stop_s),
        )
        self._notice_early(self.states)
        for state in states if not in_time else ():
            if state.said.held_ns is None:
                state.notice(Result.TIMEOUT, f"was not held within limits.stop_s={self._limits.stop_s:g} s")
        return not self.went_wrong

    def resume(self, states: Sequence[JobState]) -> None:
        """Let those of these jobs that are held go on."""
        for state in states:
            if state.said.held_ns is not None:
                state.holds.append((state.said.held_ns, time.monotonic_ns()))
                state.said.held_ns = None
                self._on_hold.remove(state.job.index)
                self._channel.send(state.job.index, type="continue")

    def release(self, states: Sequence[JobState]) -> int:
        """Let jobs at the barrier begin at one instant, and return it."""
        start_ns = time.monotonic_ns() + _START_DELAY_NS
        for state in states:
            state.released_ns = start_ns
            self._channel.send(state.job.index, type="go", start_ns=start_ns)
        return start_ns

    def _are_under_way(self, co_runners: Sequence[JobState]) -> bool:
        self.release(co_runners)
        idle = list(co_runners)

        def are_working() -> bool:
            idle[:] = [state for state in idle if events.read_progress(state.folder / layout.EVENTS).total is None]
            return not idle

        self.wait(are_working, self._limits.ready_s, _LOOK_S)
        for state in idle if not self.went_wrong else ():
            state.notice(Result.TIMEOUT, f"made no step within limits.ready_s={self._limits.ready_s:g} s")
        return not self.went_wrong

    def stop(self, states: Sequence[JobState]) -> None:
        """Tell jobs to stop, and wait for their end."""
        now_ns = time.monotonic_ns()
        for state in states:
            state.ended.told_ns = now_ns
            self._channel.send(state.job.index, type="stop")
        self._wait_end(
            states, self._limits.stop_s, f"limits.stop_s={self._limits.stop_s:g} s after the request to stop"
        )

    def _wait_end(
        self, states: Sequence[JobState], limit_s: float, limit: str, is_over: Callable[[], bool] | None = None
    ) -> bool:
        """Wait until jobs have ended, or until `is_over`, while none goes wrong; return whether it is over."""
        waited_for = {state.job.index for state in states}
        running = [state for state in self.states if state.job.index not in waited_for and not state.has_left]

        def have_ended() -> bool:
            has_ended = all(state.has_ended for state in states if state.pid is not None)
            return has_ended or any(other.has_left for other in running) or (self.went_wrong and not self._goes_on)

        deadline_ns = _compute_deadline(limit_s)
        while is_over is not None and time.monotonic_ns() < deadline_ns:
            if self._channel.pump(have_ended, _compute_deadline(_READ_S)):
                return False
            if is_over():
                return True
        if not self._channel.pump(have_ended, deadline_ns):
            for state in states:
                if not state.has_ended:
                    state.notice(Result.TIMEOUT, f"did not end within {limit}")
        return False

    def _notice_early(self, states: Sequence[JobState], reason: str = "ended before the request to stop") -> None:
        for state in states:
            if state.has_left and not state.went_wrong:
                state.notice(Result.FAILED, reason)

    def _has_any_left(self) -> bool:
        return any(state.has_left for state in self.states)

    def _have_all_ended(self) -> bool:
        return all(state.has_ended for state in self.states if state.pid is not None)

    def _are_all_gone(self) -> bool:
        return self._have_all_ended() and not processes.list_marked(self._files.mark)

    def _signal(self, signum: int) -> None:
        for state in self.states:
            if state.pid is not None and not state.ended.is_lost:
                state.ended.was_signalled |= not state.has_ended
                state.ended.signalled_ns = state.ended.signalled_ns or time.monotonic_ns()
                if signum == signal.SIGKILL:  # includes descendants that have left the session and have no mark
                    processes.kill_descendants(state.pid)
                # The leader is reaped last, so its PID cannot belong to another process. If the fork server has died,
                # however, the system may have reaped the leader already.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(state.pid, signum)
                    if state.said.held_ns is not None:  # a stopped process handles no signal but SIGKILL
                        os.killpg(state.pid, signal.SIGCONT)
        processes.send_signal(self._files.mark, signum)

    def _identify_process(self, position: int) -> object:
        host = self._starts[position].slot.host
        return position if host is None else host

    def _start(self, members: Sequence[int]) -> None:
        """Start the process of the jobs at these positions: of one job, or of all jobs of a host program."""
        prepared = [self._prepare(position) for position in members]
        states, first = [self.states[position] for position in members], self._starts[members[0]]
        argv, environ, printed = prepared[0].argv, prepared[0].environ, states[0].folder
        if first.slot.host is not None:
            file = self._files.scratch / f"tenants-{states[0].job.index}.json"
            self._host_files.append(file)
            environ = host_start.write_file(file, first.slot.host, prepared)
            argv = [first.slot.host.script, str(file)]
            printed = self._files.folder / layout.host_path(states[0].job.index)
            printed.mkdir(parents=True)
            for state in states:
                state.host_folder = printed
        cpus = share_cpus(members[0], len(self.states), self._pin_cpus) if self._pin_cpus else []
        folder = states[0].folder / layout.OUTPUT if states[0].job.workload.is_in_own_folder else Path.cwd()
        oom_kills, at_ns = host_info.count_oom_kills(), time.monotonic_ns()
        try:
            process = first.starter.start(argv, environ, printed / layout.STDOUT, printed / layout.STDERR, cpus, folder)
        except LaunchError as error:
            raise LaunchError(f"job {states[0].job.name}: {error}") from error
        for state in states:
            state.started = ProcessStart(process=process, at_ns=at_ns, cpus=cpus, oom_kills=oom_kills)
            self._channel.watch(state.job.index, process.pid)

    def _prepare(self, position: int) -> PreparedJob:
        """Make the folder of a job; return what its program needs."""
        state, start = self.states[position], self._starts[position]
        job, slot = start.job, start.slot
        state.folder.mkdir(parents=True, exist_ok=True)  # the spool may have created the folder
        output = state.folder / layout.OUTPUT
        output.mkdir(exist_ok=True)
        argv = self._make_argv(job, output)
        shown_argv = secrets.mask_words(argv)  # masked, because the file becomes an artifact
        spec = {"index": job.index, "socket": str(self._socket), "name": job.name, "argv": shown_argv}
        spec |= {"block": self._block, "arrivals": f"{job.workload.program_digest}-{job.arrivals}"}
        spec["watches_output"] = job.workload.rate.is_printed
        spec |= {"copy": job.arrivals, **self._count_copies(start), "client_cpus": list_client_cpus(self._pin_cpus)}
        (state.folder / layout.JOB_FILE).write_text(json.dumps(spec, indent=1), encoding="utf-8")
        environ = self._make_environ(state, slot, start.starter.interpreter)
        environ |= self._ports[position] | dict(slot.environ) | dict(job.workload.environ)
        if job.workload.module_path:  # the module also needs `workloads`, which may be in another folder
            path = [*job.workload.module_path, environ.get("PYTHONPATH"), str(PROJECT_DIR)]
            environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, path)))
        return PreparedJob(folder=state.folder, argv=argv, environ=environ)

    def _count_copies(self, start: JobStart) -> dict[str, int]:
        """Return the number of measured jobs with this program, and of those of them on the same device."""
        digest, device = start.job.workload.digest, start.slot.visible_devices
        copies = [other for other in self._starts if other.job.workload.digest == digest and not other.job.is_co_runner]
        on_device = [other for other in copies if other.slot.visible_devices == device]
        return {"copies": len(copies) or 1, "copies_on_device": len(on_device) or 1}

    def _make_argv(self, job: Job, output: Path) -> list[str]:
        values = {"output_dir": output, "job": job.index, "degree": len(self._starts)}
        script = job.workload.script
        return [word if word == script else fill_placeholders(word, values) for word in job.workload.argv]

    @property
    def _socket(self) -> Path:
        return self._files.scratch / "control"

    def _make_environ(self, state: JobState, slot: Slot, interpreter: Interpreter) -> dict[str, str]:
        # A job's own MLflow calls write to a separate file store, because several jobs that write to one database
        # during the measurement would wait for each other. After the window they are copied into the job's run.
        return inherit_environ(interpreter.environ) | {
            "MLFLOW_TRACKING_URI": (state.folder / layout.SCRIPT_STORE).as_uri(),
            "MLFLOW_ALLOW_FILE_STORE": "true",
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "CUDA_VISIBLE_DEVICES": slot.visible_devices,
            "COLLOCATION_JOB": str(state.folder),
            "COLLOCATION_OUTPUT_DIR": str(state.folder / layout.OUTPUT),
            processes.MARK_VARIABLE: self._files.mark,
        }

    def _handle_message(self, index: int, message: dict[str, object]) -> None:
        state = self._by_index.get(index)
        if state is None:
            return
        kind = message.get("type")
        if kind == "hello" and message.get("protocol") != PROTOCOL:
            spoken = str(message.get("protocol"))[:20]
            state.notice(Result.FAILED, f"uses version {spoken} of the job protocol, not {PROTOCOL}")
        elif kind == "hello":
            pid = message.get("pid")
            # A job may send any PID, but only a process of the group may be observed and looked for on the GPU.
            if state.wrapper is not None and type(pid) is int and pid in processes.list_marked(self._files.mark):
                state.said.pid = pid
        elif kind == "ready":
            state.said.is_ready = True
        elif kind == "held" and index in self._on_hold:
            state.said.held_ns = state.said.held_ns or time.monotonic_ns()
        elif kind == "bye":
            state.said.bye, state.said.bye_ns = str(message.get("status")), time.monotonic_ns()

    def _note_fault(self, index: int, reason: str) -> None:
        self._by_index[index].notice(Result.FAILED, reason)

    def _note_exit(self, index: int) -> None:
        state = self._by_index[index]
        assert state.started is not None
        try:
            state.ended.status = state.started.process.status()
        except LaunchError as error:
            state.ended.status, state.ended.is_lost = _UNKNOWN_STATUS, True
            state.notice(Result.FAILED, f"ended with an unknown status: {error}")
        state.ended.at_ns, state.ended.oom_kills = time.monotonic_ns(), host_info.count_oom_kills()


def _compute_deadline(seconds: float) -> int:
    return time.monotonic_ns() + int(seconds * 1e9)
