"""What a group keeps outside its spool folder while it runs, and how that is cleared when its orchestrator is gone.

Two things: processes, which carry the group's id as their mark, and one short-lived folder for sockets and pipes,
whose paths must be short. Both can be found from the id alone, so nothing that is killed at any line is lost. The
orchestrator holds a lock on the folder, so whoever finds it free knows that the orchestrator is gone.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline import processes

_GRACE_S = 2.0
_PARENT = Path("/tmp")  # noqa: S108  a socket's path is limited to 107 bytes; names are random and folders private
_NAME = re.compile(r"collocation-(?P<id>[0-9a-f]{12})")
_UNNAMED = "collocation-new-"


def scratch_folder(spool_id: str) -> Path:
    """The group's folder for sockets and pipes."""
    return _PARENT / f"collocation-{spool_id[:12]}"


@contextmanager
def scratch(spool_id: str) -> Iterator[Path]:
    """Make the group's folder, hold it, and remove it."""
    # It is locked before it has the name that others look for, so nobody takes it for abandoned.
    unnamed = Path(tempfile.mkdtemp(prefix=f"{_UNNAMED}{os.getpid()}-", dir=_PARENT))
    lock = os.open(unnamed, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = unnamed.rename(scratch_folder(spool_id))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


def clear(spool_id: str) -> int:
    """End what the group left running and remove its folder; returns how many processes there were."""
    ended = processes.end(spool_id, _GRACE_S)
    shutil.rmtree(scratch_folder(spool_id), ignore_errors=True)
    return ended


def find_abandoned() -> dict[Path, list[int]]:
    """The folders that killed orchestrators of this user left, each with the processes that its group left running."""
    marks = processes.marks()
    return {
        folder: sorted(pid for mark in _marks_of(folder, marks) for pid in processes.marked(mark))
        for folder in _folders()
        if _is_abandoned(folder)
    }


def clear_abandoned(folder: Path) -> None:
    """End what the group of an abandoned folder left running, and remove the folder."""
    for mark in _marks_of(folder, processes.marks()):
        processes.end(mark, _GRACE_S)
    shutil.rmtree(folder, ignore_errors=True)


def _folders() -> list[Path]:
    """Our folders of this kind, and those whose maker was killed before it could name them."""
    found = []
    for path in sorted(_PARENT.glob("collocation-*")):
        with suppress(OSError):  # just removed
            status = path.lstat()
            if (
                (_NAME.fullmatch(path.name) or _was_never_named(path.name))
                and path.is_dir()
                and not path.is_symlink()
                and status.st_uid == os.geteuid()
            ):
                found.append(path)
    return found


def _was_never_named(name: str) -> bool:
    maker = name.removeprefix(_UNNAMED).partition("-")[0]
    return name.startswith(_UNNAMED) and maker.isdecimal() and not Path("/proc", maker).exists()


def _is_abandoned(folder: Path) -> bool:
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


def _marks_of(folder: Path, marks: frozenset[str]) -> list[str]:
    name = _NAME.fullmatch(folder.name)
    return [] if name is None else sorted(mark for mark in marks if mark.startswith(name["id"]))
