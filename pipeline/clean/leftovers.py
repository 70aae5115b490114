"""Processes and folders of a group outside its spool folder, and their removal after a kill.

A group has processes, whose environment contains the group's id as a mark, and one temporary folder for sockets and
pipes, whose paths must be short. Both can be found from the id alone, even if the orchestrator is killed at any
instruction. The orchestrator holds a lock on the folder; if the lock is free, the orchestrator has exited.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from pipeline.base.domain.layout import SHARED_PREFIX
from pipeline.base.system import words
from pipeline.clean import processes, temporary_folder

_GRACE_S = 2.0
_PARENT = Path("/tmp")  # noqa: S108  a socket's path is limited to 107 bytes; names are random and folders private
_ID = re.compile("[0-9a-f]{12}")


def scratch_path(spool_id: str) -> Path:
    """Return the group's folder for sockets and pipes."""
    return _PARENT / f"{SHARED_PREFIX}{spool_id[:12]}"


def hold_scratch(spool_id: str) -> AbstractContextManager[Path]:
    """Create and lock the group's folder; remove it at the end of the context."""
    return temporary_folder.hold(_PARENT, SHARED_PREFIX, spool_id[:12])


def clear(spool_id: str) -> int:
    """End the group's remaining processes and remove its folder; return the number of these processes."""
    ended = processes.end(spool_id, _GRACE_S)
    _remove(scratch_path(spool_id), [spool_id])
    return ended


def find_abandoned() -> dict[Path, list[int]]:
    """Find the folders of this user's killed orchestrators, with the PIDs of their processes that still run."""
    folders = temporary_folder.find_abandoned(_PARENT, SHARED_PREFIX, _ID.pattern)
    marks = processes.list_marks() if folders else frozenset()
    return {
        folder: sorted(pid for mark in _select_marks(folder, marks) for pid in processes.list_marked(mark))
        for folder in folders
    }


def clear_abandoned(folder: Path) -> list[int]:
    """End the processes of an abandoned folder's group, and remove the folder.

    Returns the PIDs of processes that do not end. For these, the folder stays, and the next start finds them again.
    """
    marks = _select_marks(folder, processes.list_marks())
    for mark in marks:
        processes.end(mark, _GRACE_S)
    return _remove(folder, marks)


def _remove(folder: Path, marks: Sequence[str]) -> list[int]:
    hanging = sorted(pid for mark in marks for pid in processes.list_marked(mark))
    if hanging:
        pids = ", ".join(map(str, hanging))
        words.say(f"warning: processes {pids} survive SIGKILL; {folder} stays until they have ended")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    return hanging


def clear_all_abandoned() -> None:
    """Remove the leftovers of all killed orchestrators of this user, and report the ended processes."""
    for folder, pids in find_abandoned().items():
        if pids:
            words.say(f"ending processes that a killed orchestrator left: {', '.join(map(str, pids))}")
        clear_abandoned(folder)


def _select_marks(folder: Path, marks: frozenset[str]) -> list[str]:
    start = folder.name.removeprefix(SHARED_PREFIX)
    return sorted(mark for mark in marks if _ID.fullmatch(start) and mark.startswith(start))
