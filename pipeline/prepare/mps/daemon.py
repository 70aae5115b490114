"""One MPS daemon with its server, from its start to its end, by the control program.

A daemon is known by its pipe folder, which is ours alone: one that somebody else runs is never asked and never ended.
The control program's answers are judged by their text, since it rejects a command with exit status 0.
Source: NVIDIA MPS documentation (release 615), and what the programs of driver 580.159.04 print.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipeline.base import command
from pipeline.base.errors import CommandError, SharingError
from pipeline.base.programs import Programs
from pipeline.clean import processes
from pipeline.clean.journal import Journal
from pipeline.clean.kinds import undoes

log = logging.getLogger(__name__)

CONTROL = "nvidia-cuda-mps-control"
# Programs that know no versions ignore it, and in those that do it counts more than an option.
# Source: MPS documentation, release 615, mpsv3-interface.
_PROTOCOL = "CUDA_MPS_PROTOCOL_VERSION"
_LONGEST_SOCKET_PATH = 107  # bytes; Source: sun_path in unix(7)
_ASK_LIMIT_S = 10.0
_START_LIMIT_S = 60.0  # a server initialises CUDA first, which takes seconds without persistence mode
_CLIENTS_END_S = 2.0
_END_GRACE_S = 3.0
_LOOK_S = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """The control program, pointed at one daemon by its pipe folder. Without an answer it raises CommandError."""

    program: str
    pipes: Path

    def ask(self, text: str, limit_s: float | None = None) -> list[str]:
        """Send one command; returns the lines of the answer, which may as well say that the command was rejected."""
        limit_s = _ASK_LIMIT_S if limit_s is None else limit_s
        done = command.run([self.program], stdin=f"{text}\n", environ=self.environ(), timeout_s=limit_s)
        return [line.strip() for line in done.stdout.splitlines() if line.strip()]

    def list_pids(self, text: str) -> list[int]:
        """Send a command that is answered by PIDs, one a line; any other answer is a SharingError."""
        lines = self.ask(text)
        if not all(line.isdecimal() for line in lines):
            raise SharingError(f"the MPS daemon in {self.pipes} answered '{text}' with: {' / '.join(lines)}")
        return [int(line) for line in lines]

    def environ(self, **further: str) -> dict[str, str]:
        """Our environment without any word about another daemon, and with this one's pipe folder.

        It asks for the commands that are used here: from release 615 on, the program has others besides (MPS v3).
        """
        own = {k: v for k, v in os.environ.items() if not k.startswith("CUDA_MPS_") and k != "CUDA_VISIBLE_DEVICES"}
        return own | {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipes), _PROTOCOL: "2"} | further


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsDaemon:
    """A running daemon whose server, of this PID, is ready for clients. What it does not answer is a SharingError."""

    control: Control
    logs: Path
    server: int

    def clients(self) -> set[int]:
        """PIDs of the processes that are clients now."""
        try:
            return set(self.control.list_pids(f"get_client_list {self.server}"))
        except CommandError as error:
            raise SharingError(f"the MPS daemon is gone: {error}{_last_words(self.logs)}") from error

    def check_health(self) -> None:
        """Raise SharingError if the server ended, was replaced or is in FAULT: what ran under it does not count."""
        try:
            servers = self.control.list_pids("get_server_list")
            status = self.control.ask(f"get_server_status {self.server}")
        except CommandError as error:
            raise SharingError(f"the MPS daemon is gone: {error}{_last_words(self.logs)}") from error
        if servers != [self.server] or status != ["ACTIVE"]:
            raise SharingError(
                f"the MPS server {self.server} was replaced or is not active (status: {' / '.join(status) or 'none'}; "
                f"servers now: {servers or 'none'}). A fatal GPU error of one client takes all clients with it: see "
                f"stderr.log of the jobs{_last_words(self.logs)}"
            )


@contextmanager
def daemon(
    visible_device: str,
    scratch: Path,
    program: str,
    journal: Journal,
    divide: Callable[[Control], None] | None = None,
    *,
    number: int | None = None,
) -> Iterator[MpsDaemon]:
    """Run an MPS daemon of our own, with a server that is ready, and end both.

    Args:
        visible_device: UUID of the GPU or MIG device that it serves.
        scratch: of the group, whose owner removes it; pipes and logs go into `mps/` below it, or `mps-NUMBER/`.
        program: absolute path of the control program.
        journal: of the device; the daemon is in it before it is started.
        divide: makes static partitions, for which the daemon is then started, before there is a server.
        number: of this daemon, where the group has several.

    Raises:
        SharingError: it did not become ready, or did not end.
    """
    folder = scratch / ("mps" if number is None else f"mps-{number}")
    control = Control(program=program, pipes=folder / "pipe")
    longest = os.fsencode(control.pipes / "control_privileged")
    if len(longest) > _LONGEST_SOCKET_PATH:
        raise SharingError(
            f"the path of the MPS sockets is longer than {_LONGEST_SOCKET_PATH} bytes: {os.fsdecode(longest)}"
        )
    logs = folder / "log"
    for path in (control.pipes, logs):
        path.mkdir(parents=True)
    with journal.undoing("mps_daemon", pipes=str(control.pipes)):
        yield _start(control, logs, visible_device, divide)


@undoes("mps_daemon", "end the MPS daemon in {pipes}", ends_processes=True)
def end_daemon(programs: Programs, pipes: str) -> None:
    """Undo the start of a daemon of ours, in whatever state it is: the clients first, then server and daemon.

    Safe to repeat, and without the pipe folder: daemon and server carry a mark in their environment, so no other
    process is ever signalled, not even one that got the PID of the daemon.

    Raises:
        SharingError: something of it is still alive.
    """
    mark = _mark(Path(pipes))
    if processes.marked(mark):
        try:
            _quit(Control(program=programs.find(CONTROL), pipes=Path(pipes)))
            _wait(lambda: not processes.marked(mark), _END_GRACE_S)  # the answer may come before both are gone
        except (CommandError, SharingError) as error:
            log.info("the MPS daemon in %s is ended by signals, because it did not quit: %s", pipes, error)
    processes.end(mark, _END_GRACE_S)
    if left := processes.marked(mark):
        pids = ", ".join(map(str, left))
        raise SharingError(
            f"the MPS processes {pids} of {pipes} do not end, not even by SIGKILL: they hang in the driver; "
            "when they are gone, or after a restart of the machine: python -m pipeline.gpu clean"
        )


def _start(control: Control, logs: Path, visible_device: str, divide: Callable[[Control], None] | None) -> MpsDaemon:
    environ = control.environ(
        CUDA_MPS_LOG_DIRECTORY=str(logs),
        CUDA_VISIBLE_DEVICES=visible_device,
        **{processes.MARK_VARIABLE: _mark(control.pipes)},
    )
    attempt = f"starting MPS for {visible_device}"
    try:
        options = ["-d"] if divide is None else ["-d", "-S"]
        command.run([control.program, *options], environ=environ, timeout_s=_ASK_LIMIT_S)
        if not _wait(lambda: _answers(control), _ASK_LIMIT_S):
            raise SharingError(f"{attempt}: the daemon does not answer{_last_words(logs)}")
        if divide is not None:
            divide(control)
        # Without this the first client starts the server, and the time that it takes is that job's.
        reply = control.ask(f"start_server -uid {os.getuid()}")
        server = _wait_active(control)
    except CommandError as error:
        raise SharingError(f"{attempt}: {error}{_last_words(logs)}") from error
    if server is None:
        said = f", which answered '{' / '.join(reply)}'" if reply else ""
        raise SharingError(f"{attempt}: no server became active after start_server{said}{_last_words(logs)}")
    return MpsDaemon(control=control, logs=logs, server=server)


def _answers(control: Control) -> bool:
    try:
        control.ask("get_server_list")
    except CommandError as error:
        if error.status is None:
            raise
        return False
    return True


def _wait_active(control: Control) -> int | None:
    """PID of the server when it accepts clients; `None` if it ended instead, or took too long."""
    deadline = time.monotonic() + _START_LIMIT_S
    was_there = False
    while time.monotonic() < deadline:
        servers = control.list_pids("get_server_list")
        if was_there and not servers:
            return None
        was_there = was_there or bool(servers)
        if len(servers) == 1 and control.ask(f"get_server_status {servers[0]}") == ["ACTIVE"]:
            return servers[0]
        time.sleep(_LOOK_S)
    return None


def _quit(control: Control) -> None:
    """Ask the daemon to end. It waits for its clients, so those that stay are disconnected first."""
    for server in control.list_pids("get_server_list"):
        listing = f"get_client_list {server}"
        with suppress(SharingError):  # the server has ended meanwhile
            if not _wait(partial(_has_none, control, listing), _CLIENTS_END_S):
                # A client killed by a signal while its kernels run leaves the server in an undefined state.
                for client in control.list_pids(listing):
                    control.ask(f"terminate_client {server} {client}")
    control.ask("quit")


def _has_none(control: Control, listing: str) -> bool:
    return not control.list_pids(listing)


def _mark(pipes: Path) -> str:
    """What daemon and server carry in their environment, which a server inherits from its daemon."""
    return f"mps:{pipes}"


def _wait(is_true: Callable[[], bool], limit_s: float) -> bool:
    deadline = time.monotonic() + limit_s
    while not is_true():
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
    return True


def _last_words(logs: Path) -> str:
    """The end of the logs, which go with the group's folder."""
    words = ""
    for name in ("control.log", "server.log"):
        with suppress(OSError):
            lines = (logs / name).read_text(errors="replace").splitlines()
            words += f"; {name} ends with: {lines[-1]}" if lines else ""
    return words
