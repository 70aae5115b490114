"""The folder of the local store and the spool, `tracking.root`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

DEFAULT = Path("mlruns")
EXPERIMENT = "collocation"
"""`tracking.experiment`, unless a study has another."""
_IGNORE = "# Written by gpu-collocation when it made this folder; remove it to commit what is here.\n*\n"


def make(root: Path) -> None:
    """Make the folder, if it is not there, with a `.gitignore` that keeps it out of a repository around it.

    A folder that was there may hold what its owner commits, and gets none.

    Raises:
        OSError: it cannot be made.
    """
    root.parent.mkdir(parents=True, exist_ok=True)
    try:
        root.mkdir()
    except FileExistsError:
        if not root.is_dir():
            raise
        return
    with suppress(OSError):  # a full disk says so to whoever needs room
        (root / ".gitignore").write_text(_IGNORE, encoding="utf-8")
