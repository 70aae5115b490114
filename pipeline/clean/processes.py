"""Finding and ending every process that a group of jobs started, also outside its session.

Every process of a group carries the group's mark in its environment, which children inherit. A process that left its
session, or whose parent died, is found by it; a process of somebody else never carries it.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

MARK_VARIABLE = "COLLOCATION_GROUP"
KILL_LIMIT_S = 30.0
"""The time to wait for a killed process, which frees its memory first and needs a CPU for that. Unit: s."""
_LOOK_S = 0.02
_EMPTY_LOOKS = 2  # a child that is just being made may replace its program at the first


def list_marked(mark: str) -> list[int]:
    """List the PIDs of the living processes that carry the mark, without this one."""
    return [int(entry.name) for entry in _iterate_processes() if _has_mark(entry, mark)]


def list_marks() -> frozenset[str]:
    """List every mark that a living process carries whose environment we may read."""
    prefix = f"{MARK_VARIABLE}=".encode()
    variables = (item for entry in _iterate_processes() for item in _read_environ(entry))
    return frozenset(os.fsdecode(item.removeprefix(prefix)) for item in variables if item.startswith(prefix))


def send_signal(mark: str, signum: int) -> int:
    """Signal every process that carries the mark; returns how many there were."""
    count, opened = 0, dict[int, int]()
    try:
        _open_marked(mark, opened)
        for descriptor in opened.values():
            with contextlib.suppress(OSError):  # it has just ended
                signal.pidfd_send_signal(descriptor, signum)
                count += 1
    finally:
        for descriptor in opened.values():
            os.close(descriptor)
    return count


def kill_descendants(pid: int) -> None:
    """Kill what descends from a process, whatever it carries."""
    import psutil

    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                child.kill()


def end(mark: str, grace_s: float) -> int:
    """End every process that carries the mark, and wait until all are gone; returns how many there were.

    They get TERM and, after the grace period, KILL, also those that they start meanwhile. What was seen once counts
    until the kernel says that it has ended: while a program is replaced by another (`exec`), its environment is empty.
    What still carries the mark afterwards hangs in the kernel.
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
    """Open a descriptor of each process that carries the mark and has none.

    A PID may be given to another program after the look. A process descriptor cannot: the mark is read again while it
    is open.
    """
    for pid in list_marked(mark):
        if pid in opened:
            continue
        with contextlib.suppress(OSError):  # it has just ended
            descriptor = os.pidfd_open(pid)
            if _has_mark(Path("/proc") / str(pid), mark):
                opened[pid] = descriptor
            else:
                os.close(descriptor)


def _list_alive(opened: dict[int, int]) -> set[int]:
    """List the PIDs whose processes have not ended; a zombie has."""
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
    """Read the variables of a process; none of a zombie or of another user's process."""
    try:
        return (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def list_tree(pid: int) -> set[int]:
    """List the process and all its descendants, without those that have just ended."""
    import psutil

    try:
        return {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}
    except psutil.Error:
        return {pid}
