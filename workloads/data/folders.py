"""Cache folders, each created by the first of several processes that needs it."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path


def cache_folder(root: str | Path | None, name: str) -> Path:
    """Return the root of a cache, by default the folder of this name in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return Path(root) if root else cache / "gpu-collocation" / name


def make_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return a folder, filled by `make` if it does not exist; it appears complete or not at all.

    One process of the machine fills it, under a lock; the other processes wait.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # held until the file is closed, however this process ends
        if not folder.is_dir():
            partial = folder.with_name(f"{folder.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)  # left by a killed process: we hold the lock
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
