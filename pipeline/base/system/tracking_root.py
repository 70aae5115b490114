"""The folder of the local store and the spool, `tracking.root`."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

DEFAULT = Path("mlruns")
EXPERIMENT = "collocation"
"""Default of `tracking.experiment`."""
_IGNORE = "# Written by gpu-collocation when it created this folder; delete this file to commit the folder.\n*\n"


def make(root: Path) -> None:
    """Create the folder, if missing, with a `.gitignore` that excludes it from a surrounding repository.

    An existing folder gets no `.gitignore`, because its owner may commit files in it.

    Raises:
        OSError: the folder cannot be created.
    """
    root.parent.mkdir(parents=True, exist_ok=True)
    try:
        root.mkdir()
    except FileExistsError:
        if not root.is_dir():
            raise
        return
    with suppress(OSError):  # a full disk is reported by later writes
        (root / ".gitignore").write_text(_IGNORE, encoding="utf-8")
