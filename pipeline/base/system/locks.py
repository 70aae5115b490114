"""Locks on open files (flock), which the kernel drops when their last holder dies, however it dies.

A lock belongs to the opened file and not to the process: a child that inherits the descriptor holds it too. Files are
opened close-on-exec, so only a descriptor that is passed on by intent is inherited by a program.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# One place for all users, whatever TMPDIR says. Not /tmp, which a restart empties: an Ampere GPU keeps MIG mode over
# it, and nobody would know any more that it is to be switched off.
DEFAULT_FOLDER = Path("/var/tmp")  # noqa: S108
"""`gpu.lock_dir`, unless a study has another."""


def open_file(path: Path) -> int:
    """Open a lock file, made if need be, and return its descriptor."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)


def take(descriptor: int) -> None:
    """Take the lock for this holder alone; waits for it."""
    fcntl.flock(descriptor, fcntl.LOCK_EX)


def try_take(descriptor: int, *, is_shared: bool = False) -> bool:
    """Take the lock, alone or with other sharers, if that needs no waiting; returns whether it did.

    A change from one to the other drops the lock in between.
    """
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if is_shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_free(path: Path) -> bool:
    """Tell whether nobody holds the lock of a file or folder, which is only read.

    Raises:
        OSError: it is not there, or it is a link.
    """
    # Not to be kept waiting by a pipe in its place.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return try_take(descriptor, is_shared=True)
    finally:
        os.close(descriptor)


def drop(descriptor: int) -> None:
    """Drop the lock before the descriptor is closed."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)


@contextmanager
def hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a folder, or of a file, made if need be, and wait for it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC) if path.is_dir() else open_file(path)
    try:
        take(descriptor)
        yield
    finally:
        os.close(descriptor)
