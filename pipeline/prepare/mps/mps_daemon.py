"""One MPS daemon with its server: started, checked and ended through the control program.

A daemon is identified by its pipe folder, which only this orchestrator uses; other users' daemons are never contacted.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipeline.base.domain.driver_programs import Programs
from pipeline.base.system import entry_points, helper_program
from pipeline.base.system.errors import CommandError, SharingError
from pipeline.clean import processes
from pipeline.clean.journal import Journal
from pipeline.clean.kinds import undoes
from pipeline.prepare.mps.control_program import CONTROL, ControlProgram

_PREFIX = re.compile(r"^.*?\s\d+\]\s*")  # `[2026-11-20 22:44:37.398 Control   524] `
_END = re.compile(r"Server \d+ exited with status|Server (\d+ )?encountered a fatal exception")
_TELLING = re.compile(
    r"\b(fail(ed|ure)?|errors?|fatal|exception|exited with status|invalid|insufficient|cannot|unable|denied|ignoring"
    r"|not permitted|(not|only) supported|no such|out of memory)\b",
    re.IGNORECASE,
)
# First lines of logs, lines about commands and their replies, and lines about clients in logs of healthy servers.
_CHATTER = re.compile(
    r"Starting control daemon|To connect CUDA|CUDA MPS Control binary|Using log directory"
    r"|Accepting connection|NEW UI|UI closed|Activating queued UI|Cmd:|Unknown command|Server (\d+ )?not found"
    r"|Removed Shm file|Invalid (percentage|priority)|No default pinned memory limit"
    r"|(GPU|MIG)-[0-9a-f-]+\s+[-\d]|chunks\s+chunks|GPU\s+Partition|\d+(\.\d+)?$|INITIALIZING$|ACTIVE$|FAULT$"
    r"|User did not send valid credentials"
)
_MOST_LINES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsLogs:
    """The log folder of one daemon; a log that cannot be read is treated as empty."""

    folder: Path

    @property
    def is_written(self) -> bool:
        """True if the daemon writes its log; a daemon that cannot write its log runs without one."""
        return bool(self._read("control.log"))

    def is_server_ready(self, server: int) -> bool:
        return f"NEW SERVER {server}: Ready" in self._read("control.log")

    def has_server_ended(self) -> bool:
        return any(_END.match(line) for line in self._read("control.log"))

    def explain(self) -> str:
        """Return the lines with the reason for a server's exit, for the end of an error message: two per log.

        Without such lines, return the last line of each log that is not about a command. The lines are copied into the
        message, because the logs are deleted with the group's folder.
        """
        words = ""
        for name in ("server.log", "control.log"):
            lines = [line for line in self._read(name) if line and _CHATTER.match(line) is None]
            telling = [line for line in lines if _TELLING.search(line)] or lines[-1:]
            if telling:
                words += f"; {name}: {' / '.join(dict.fromkeys(telling[-_MOST_LINES:]))}"
        return words

    def _read(self, name: str) -> list[str]:
        with suppress(OSError):
            lines = (self.folder / name).read_text(errors="replace").splitlines()
            return [_PREFIX.sub("", line).strip() for line in lines]
        return []


log = logging.getLogger(__name__)

_LONGEST_SOCKET_PATH = 107  # bytes; Source: sun_path in unix(7)
_ANSWER_LIMIT_S = 10.0
_START_LIMIT_S = 60.0  # a server first initialises CUDA, which takes seconds without persistence mode
_APPEAR_LIMIT_S = 5.0  # a server is listed as soon as its process starts
_CLIENTS_END_S = 2.0
_END_GRACE_S = 3.0
_LOOK_S = 0.02
_STATIC = "-S"
_REFUSAL, _NO_DAEMON = "Unrecognized option", "Cannot find MPS control daemon"
_HELP = "docs/mps.md#when-mps-does-not-start"


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsDaemon:
    """A running daemon whose server is ready for clients; a missing reply is a SharingError.

    Attributes:
        control: control program for this daemon.
        logs: logs of the daemon.
        server: PID of the server.
    """

    control: ControlProgram
    logs: MpsLogs
    server: int

    def list_clients(self) -> set[int]:
        try:
            return set(self.control.list_pids(f"get_client_list {self.server}"))
        except CommandError as error:
            raise SharingError(f"the MPS daemon is gone: {error}{self.logs.explain()}") from error

    def check_health(self) -> None:
        """Raise SharingError if the server exited, was replaced or is in FAULT: measurements under it are not valid.

        If the control program does not report the status, the list of servers and the log are checked instead.
        """
        try:
            servers = self.control.list_pids("get_server_list")
            status = self.control.read_status(self.server)
        except CommandError as error:
            raise SharingError(f"the MPS daemon is gone: {error}{self.logs.explain()}") from error
        is_active = status == "ACTIVE" if status is not None else not self.logs.has_server_ended()
        if servers != [self.server] or not is_active:
            status = "unknown to this control program" if status is None else status or "none"
            raise SharingError(
                f"the MPS server {self.server} was replaced or is not active (status: {status}; "
                f"servers now: {servers or 'none'}); look in stderr.log of the jobs for a fatal GPU error, which ends "
                f"all clients{self.logs.explain()}"
            )


@contextmanager
def run_daemon(
    visible_device: str,
    scratch: Path,
    program: str,
    journal: Journal,
    divide: Callable[[ControlProgram], None] | None = None,
    *,
    number: int | None = None,
) -> Iterator[MpsDaemon]:
    """Run a separate MPS daemon with a server that is ready for clients during the body; then end both.

    Pipes and logs are in `mps/` below the group's `scratch`, or in `mps-NUMBER/` if the group has several daemons.
    The journal records the daemon before its start. `divide` creates static partitions before the server starts.

    Raises:
        SharingError: the server did not become ready, or the daemon did not end.
    """
    folder = scratch / ("mps" if number is None else f"mps-{number}")
    control = ControlProgram(program=program, pipes=folder / "pipe")
    longest = os.fsencode(control.pipes / "control_privileged")
    if len(longest) > _LONGEST_SOCKET_PATH:
        raise SharingError(
            f"the path of the MPS sockets is longer than {_LONGEST_SOCKET_PATH} bytes: {os.fsdecode(longest)}"
        )
    logs = MpsLogs(folder=folder / "log")
    for path in (control.pipes, logs.folder):
        path.mkdir(parents=True)
    with journal.guard("mps_daemon", pipes=str(control.pipes)):
        yield _start(control, logs, visible_device, divide)


@undoes("mps_daemon", "end the MPS daemon in {pipes}", ends_processes=True)
def end_daemon(programs: Programs, pipes: str) -> None:
    """Undo the start of a daemon, whatever its state: end its clients, then server and daemon.

    Safe to repeat, also without the pipe folder. Daemon and server are found by a mark in their environment, so another
    process that reused the daemon's PID is never signalled.

    Raises:
        SharingError: a process of the daemon still runs.
    """
    mark = _make_mark(Path(pipes))
    if processes.list_marked(mark):
        try:
            _quit(ControlProgram(program=programs.find(CONTROL), pipes=Path(pipes)))
            _wait(lambda: not processes.list_marked(mark), _END_GRACE_S)  # both may still run when the reply arrives
        except (CommandError, SharingError) as error:
            log.info("the MPS daemon in %s is ended by signals, because it did not quit: %s", pipes, error)
    processes.end(mark, _END_GRACE_S)
    if survivors := processes.list_marked(mark):
        pids = ", ".join(map(str, survivors))
        raise SharingError(
            f"the MPS processes {pids} of {pipes} survive SIGKILL, because they hang in the driver; wait until they "
            f"exit, or restart the machine, then run: {entry_points.spell('gpu', 'clean')}"
        )


def _start(
    control: ControlProgram, logs: MpsLogs, visible_device: str, divide: Callable[[ControlProgram], None] | None
) -> MpsDaemon:
    environ = control.environ(
        CUDA_MPS_LOG_DIRECTORY=str(logs.folder),
        CUDA_VISIBLE_DEVICES=visible_device,
        **{processes.MARK_VARIABLE: _make_mark(control.pipes)},
    )
    try:
        _start_daemon(control, environ, ["-d"] if divide is None else ["-d", _STATIC])
        if divide is not None:
            divide(control)
        server = _start_server(control, logs)
    except (CommandError, SharingError) as error:
        raise SharingError(f"MPS did not start on {visible_device}: {error}{logs.explain()}") from error
    return MpsDaemon(control=control, logs=logs, server=server)


def _start_daemon(control: ControlProgram, environ: Mapping[str, str], options: Sequence[str]) -> None:
    """Start the daemon and wait for its first reply.

    A program may reject an option with exit status 0. Programs before R580 take other options than `-d` for a command
    to a daemon that runs.
    """
    done = helper_program.run([control.program, *options], environ=environ, timeout_s=_ANSWER_LIMIT_S, check=False)
    printed = done.printed_line.partition(" / ")[0].strip(" \0")
    command = f"{CONTROL} {' '.join(options)}"
    if printed.startswith(_REFUSAL) or (_STATIC in options and printed.startswith(_NO_DAEMON)):
        remedy = "; static partitions need driver R590 or newer" if _STATIC in options else ""
        raise SharingError(f"{command} was refused: {printed}{remedy}")
    if done.status != 0 and printed:
        raise SharingError(f"`{command}` ended with status {done.status}: {printed}")

    def has_answered() -> bool:
        if done.status == 0 and _answers(control):
            return True
        # Without a driver, programs from R580 on print nothing; that of R615 has exit status 0 and ends afterwards.
        if not processes.list_marked(environ[processes.MARK_VARIABLE]):
            raise SharingError(f"the daemon exited immediately; check that libcuda.so.1 and the driver work ({_HELP})")
        return False

    if not _wait(has_answered, _ANSWER_LIMIT_S):
        raise SharingError(f"the daemon does not reply{f'; it printed: {printed}' if printed else ''}")


def _answers(control: ControlProgram) -> bool:
    try:
        control.ask("get_server_list")
    except CommandError as error:
        if error.status is None:
            raise
        return False
    return True


def _start_server(control: ControlProgram, logs: MpsLogs) -> int:
    """Start the server before the first client, which would otherwise wait for it; return its PID when it is ready.

    Raises:
        SharingError: the server exited, is in FAULT, or was not ready in time.
        CommandError: the daemon does not reply.
    """
    reply: list[str] = []
    try:
        reply = control.ask_again(f"start_server -uid {os.getuid()}")
    except CommandError as error:
        if error.status is None:
            raise  # otherwise the reply was dropped, perhaps because a server exits; the log is checked below
    deadline = time.monotonic() + _START_LIMIT_S
    # The reply to a successful start is empty, so any text is a rejection.
    doubtful_until = time.monotonic() + (0 if reply else _APPEAR_LIMIT_S)
    while True:
        if logs.has_server_ended():
            raise SharingError(f"its server exited immediately ({_HELP})")
        servers = control.list_pids("get_server_list", _limit_left(deadline))
        status = control.read_status(servers[0], _limit_left(deadline)) if len(servers) == 1 else ""
        if status == "ACTIVE" or (status is None and logs.is_server_ready(servers[0])):
            return servers[0]
        if status is None and not logs.is_written:
            raise SharingError(
                "its control program has no get_server_status, and there is no control.log; use driver R550 or newer "
                f"({_HELP})"
            )
        if (not servers or status == "FAULT") and time.monotonic() > doubtful_until:
            answer = f"; the reply to start_server was: {' / '.join(reply)}" if reply else ""
            raise SharingError(f"{'its server is in FAULT' if servers else 'there is no server'}{answer} ({_HELP})")
        if time.monotonic() > deadline:
            untold = "; this control program has no get_server_status" if status is None else ""
            raise SharingError(f"its server was not ready within {_START_LIMIT_S:g} s{untold} ({_HELP})")
        time.sleep(_LOOK_S)


def _limit_left(deadline: float) -> float:
    """Return the time left, but enough for a reply: a daemon may not reply while its server initialises."""
    return max(_ANSWER_LIMIT_S, deadline - time.monotonic())


def _quit(control: ControlProgram) -> None:
    """Make the daemon quit. The daemon waits for its clients, so remaining clients are disconnected first."""
    for server in control.list_pids("get_server_list"):
        listing = f"get_client_list {server}"
        with suppress(SharingError):  # the server exited meanwhile
            if not _wait(partial(_has_no_client, control, listing), _CLIENTS_END_S):
                # Killing a client by a signal while its kernels run would leave the server in an undefined state.
                for client in control.list_pids(listing):
                    control.ask(f"terminate_client {server} {client}")
    try:
        control.ask("quit")
    except CommandError as error:
        if error.status is None:
            raise  # otherwise the daemon quits: the exit status is the exit status of its servers


def _has_no_client(control: ControlProgram, listing: str) -> bool:
    return not control.list_pids(listing)


def _make_mark(pipes: Path) -> str:
    return f"mps:{pipes}"


def _wait(is_true: Callable[[], bool], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while not is_true():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
    return True
