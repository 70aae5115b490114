"""Finding and ending everything that a group of jobs started, wherever it hides.

Every process of a group carries the group's mark in its environment, which children inherit. A process that left its
session, or whose parent died, is found by it; a process of somebody else never carries it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

MARK_VARIABLE = "COLLOCATION_GROUP"


def marked(mark: str) -> list[int]:
    """PIDs of the living processes that carry the mark, other than this one."""
    return [int(entry.name) for entry in _entries() if _carries(entry, mark)]


def marks() -> frozenset[str]:
    """Every mark that a living process carries whose environment we may read."""
    prefix = f"{MARK_VARIABLE}=".encode()
    variables = (item for entry in _entries() for item in _environ(entry))
    return frozenset(os.fsdecode(item.removeprefix(prefix)) for item in variables if item.startswith(prefix))


def send_signal(mark: str, signum: int) -> int:
    """Signal every process that carries the mark; returns how many there were.

    A PID may be given to another program between the look and the signal. A process descriptor cannot: the mark is
    read again while it is open.
    """
    count = 0
    for pid in marked(mark):
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            continue  # it has just ended
        try:
            if _carries(Path("/proc") / str(pid), mark):
                signal.pidfd_send_signal(descriptor, signum)
                count += 1
        except OSError:
            continue
        finally:
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
    """End every process that carries the mark: TERM, then KILL after the grace period; returns how many there were."""
    found = send_signal(mark, signal.SIGTERM)
    for signum, seconds in ((signal.SIGTERM, grace_s), (signal.SIGKILL, grace_s)):
        if signum == signal.SIGKILL:
            send_signal(mark, signum)
        deadline = time.monotonic() + seconds
        while marked(mark) and time.monotonic() < deadline:
            time.sleep(0.02)
    return found


def _entries() -> Iterator[Path]:
    own = str(os.getpid())
    with os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdigit() and entry.name != own:
                yield Path(entry.path)


def _carries(entry: Path, mark: str) -> bool:
    return f"{MARK_VARIABLE}={mark}".encode() in _environ(entry)


def _environ(entry: Path) -> list[bytes]:
    """The variables of a process; a zombie has none any more, and others' cannot be read."""
    try:
        return (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def tree_of(pid: int) -> set[int]:
    """The process and all its descendants; what has just ended is not among them."""
    import psutil

    try:
        return {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}
    except psutil.Error:
        return {pid}
