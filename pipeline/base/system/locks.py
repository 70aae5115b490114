"""Locks on open files (flock), which the kernel releases when their last holder ends for any reason.

A lock belongs to the open file, not to the process: a child that inherits the descriptor also holds it. Files are
opened close-on-exec, so a program inherits a descriptor only if it is passed explicitly.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# One folder for all users, independent of TMPDIR. /tmp is unsuitable, because a restart empties it: an Ampere GPU keeps
# MIG mode across a restart, and the record that MIG mode must be disabled would be lost.
DEFAULT_FOLDER = Path("/var/tmp")  # noqa: S108
"""Default of `gpu.lock_dir`."""


def open_file(path: Path) -> int:
    """Open a lock file, created if necessary, and return its descriptor."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def take(descriptor: int) -> None:
    """Take the lock exclusively, after waiting for it."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)


def try_take(descriptor: int, *, is_shared: bool = False) -> bool:
    """Take the lock, exclusive or shared, if that needs no waiting; return whether it was taken.

    Changing between exclusive and shared releases the lock in between.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_free(path: Path) -> bool:
    """Return whether no process holds the lock of a file or folder, which is opened read-only.

    Raises:
        OSError: the file does not exist or is a link.
    """
    # Non-blocking, because opening a pipe would otherwise wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return try_take(descriptor, is_shared=True)
    finally:
        os.close(descriptor)


def drop(descriptor: int) -> None:
    """Release the lock before the descriptor is closed."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a folder, or of a file, created if necessary, after waiting for it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if path.is_dir() else open_file(path)
    try:
        take(descriptor)
        yield
    finally:
        os.close(descriptor)
