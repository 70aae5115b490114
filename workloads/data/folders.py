"""Cache folders, each created by the first of several processes that needs it."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path


def cache_folder(root: str | Path | None, name: str) -> Path:
    """Return the root of a cache: the given folder, or by default the folder `name` in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return Path(root) if root else cache / "gpu-collocation" / name


def make_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return a folder; if it does not exist, create it with `make`. An incomplete folder is never visible.

    One process of the machine creates the folder, under a lock; other processes that need the folder wait.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the lock is released when the file is closed, even if this process is killed
        if not folder.is_dir():
            partial = folder.with_name(f"{folder.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)  # left by a killed process, because this one holds the lock
            partial.mkdir()
            make(partial)
            _sync(partial)
            partial.rename(folder)
            _sync(folder.parent)
    return folder


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
