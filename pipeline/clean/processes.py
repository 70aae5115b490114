"""Search and end of every process that a group of jobs started, also outside the group's sessions.

Every process of a group has the group's mark in its environment, which children inherit. A job that was forked from a
server has the environment of the server; there, the mark is the name of a memory mapping, which children inherit too.
The mark also identifies a process that left its session, or whose parent ended; no process of another program has it.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

MARK_VARIABLE = "COLLOCATION_GROUP"
FORKED = "forked"
"""The mark of a fork server, in whose forks the mapping has the mark (`workloads/fork_server.py`)."""
KILL_LIMIT_S = 30.0
"""Time to wait for a killed process, in seconds; the process first frees its memory, which needs a CPU."""
_FORKED_VARIABLE = f"{MARK_VARIABLE}={FORKED}".encode()
_MAPPED_MARK = re.compile(rb"/memfd:(" + MARK_VARIABLE.encode() + rb"=\S+)")
_LOOK_S = 0.02
_EMPTY_LOOKS = 2  # a new child may be missing in the first look, while it replaces its program (exec)


def list_marked(mark: str) -> list[int]:
    """List the PIDs of the living processes that have the mark, without this process."""
    return [int(entry.name) for entry in _iterate_processes() if _has_mark(entry, mark)]


def list_marks() -> frozenset[str]:
    """List the marks of all living processes whose environment this user may read."""
    prefix = f"{MARK_VARIABLE}=".encode()
    variables = (item for entry in _iterate_processes() for item in _read_environ(entry))
    return frozenset(os.fsdecode(item.removeprefix(prefix)) for item in variables if item.startswith(prefix))


def send_signal(mark: str, signum: int) -> int:
    """Signal every process that has the mark; return the number of signalled processes."""
    count, opened = 0, dict[int, int]()
    try:
        _open_marked(mark, opened)
        for descriptor in opened.values():
            with contextlib.suppress(OSError):  # the process has just ended
                signal.pidfd_send_signal(descriptor, signum)
                count += 1
    finally:
        for descriptor in opened.values():
            os.close(descriptor)
    return count


def kill_descendants(pid: int) -> None:
    """Kill all descendants of a process, with or without a mark."""
    import psutil

    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()


def end(mark: str, grace_s: float) -> int:
    """End every process that has the mark, and wait until all have ended; return the number of these processes.

    All processes, including those started meanwhile, receive SIGTERM and, after the grace period, SIGKILL. A process
    that was found once counts until the kernel reports its end, because its environment is empty while it replaces its
    program (`exec`). A process that still has the mark after the return hangs in the kernel.
    """
    opened: dict[int, int] = {}
    try:
        for signum, limit_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, KILL_LIMIT_S)):
            if _end_all(mark, opened, signum, limit_s):
                break
        return len(opened)
    finally:
        for descriptor in opened.values():
            os.close(descriptor)


def _end_all(mark: str, opened: dict[int, int], signum: int, limit_s: float) -> bool:
    deadline, signalled, num_empty_looks = time.monotonic() + limit_s, set[int](), 0
    while True:
        _open_marked(mark, opened)
        alive = _list_alive(opened)
        num_empty_looks = 0 if alive else num_empty_looks + 1
        if num_empty_looks == _EMPTY_LOOKS:
            return True
        for pid in alive - signalled:
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(opened[pid], signum)
        signalled |= alive
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_S)


def _open_marked(mark: str, opened: dict[int, int]) -> None:
    """Open a descriptor of each process that has the mark and no open descriptor.

    The mark is read again while the descriptor is open, because the kernel may have reused the PID after the first
    reading. A process descriptor never refers to another process.
    """
    for pid in list_marked(mark):
        if pid in opened:
            continue
        with contextlib.suppress(OSError):  # the process has just ended
            descriptor = os.pidfd_open(pid)
            if _has_mark(Path("/proc") / str(pid), mark):
                opened[pid] = descriptor
            else:
                os.close(descriptor)


def _list_alive(opened: dict[int, int]) -> set[int]:
    """List the PIDs of the processes that have not ended; a zombie has ended."""
    poller = select.poll()
    for descriptor in opened.values():
        poller.register(descriptor, select.POLLIN)
    ended = {descriptor for descriptor, _ in poller.poll(0)}
    return {pid for pid, descriptor in opened.items() if descriptor not in ended}


def _iterate_processes() -> Iterator[Path]:
    own_pid = str(os.getpid())
    with os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdigit() and entry.name != own_pid:
                yield Path(entry.path)


def _has_mark(entry: Path, mark: str) -> bool:
    return f"{MARK_VARIABLE}={mark}".encode() in _read_environ(entry)


def _read_environ(entry: Path) -> list[bytes]:
    """Read the environment variables of a process, with the mark of a fork; none for another user's or a zombie."""
    try:
        variables = (entry / "environ").read_bytes().split(b"\0")
        return variables + (
            _MAPPED_MARK.findall((entry / "maps").read_bytes()) if _FORKED_VARIABLE in variables else []
        )
    except OSError:
        return []


def list_tree(pid: int) -> set[int]:
    """List the PIDs of a process and all its descendants, without processes that have just ended."""
    import psutil

    try:
        return {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}
    except psutil.Error:
        return {pid}
