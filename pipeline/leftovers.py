"""What a group keeps outside its spool folder while it runs, and how that is cleared when its orchestrator is gone.

Two things: processes, which carry the group's id as their mark, and one short-lived folder for sockets and pipes,
whose paths must be short. Both can be found from the id alone, so nothing that is killed at any line is lost.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from pipeline import processes

_GRACE_S = 2.0


def scratch_folder(spool_id: str) -> Path:
    """The group's folder for sockets and pipes. Always below /tmp: a socket's path is limited to 107 bytes."""
    return Path("/tmp") / f"colloc-{spool_id[:12]}"  # noqa: S108  the name is random and the folder private


def clear(spool_id: str) -> int:
    """End what the group left running and remove its folder; returns how many processes there were."""
    ended = processes.end(spool_id, _GRACE_S)
    shutil.rmtree(scratch_folder(spool_id), ignore_errors=True)
    return ended
