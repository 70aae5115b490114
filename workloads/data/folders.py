"""Folders of data that the first of several processes makes, and where they lie."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path


def cache_folder(root: str | Path | None, name: str) -> Path:
    """Return the root of a cache; if not given, the folder of this name in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return Path(root) if root else cache / "gpu-collocation" / name


def make_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return a folder that `make` fills, unless it is there; it appears complete or not at all.

    One process of the machine makes it, under a lock, and the others wait.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed, however this process ends
        if not folder.is_dir():
            partial = folder.with_name(f"{folder.name}.partial")
            shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed: we hold the lock
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
