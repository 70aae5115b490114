"""Temporary folders owned by a living process; later processes recognise the folders of a killed process as abandoned.

<parent>/<prefix>new-<PID>-<random>     a new folder, which the process with this PID is creating
<parent>/<prefix><name>                 a folder that its creator locks until it exits

A folder is locked before it gets its name, so a new folder never looks abandoned. Other users may create files or links
with such names in a parent such as /tmp, so only real folders of this user are opened or removed.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from pipeline.base.system import locks
from pipeline.base.system.errors import ConfigError

SCRATCH = "colloc-scratch-"
"""Prefix of the folders with temporary files, such as those of an unpacked bundle."""
_UNNAMED = "new-"
_RANDOM = "[a-z0-9_]+"  # as tempfile makes names


@contextmanager
def hold(parent: Path, prefix: str, name: str | None = None) -> Iterator[Path]:
    """Create and lock a folder that only this user may enter; remove it at the end of the context.

    The folder's name is the prefix and `name`, or the prefix and random characters.
    """
    unnamed = Path(tempfile.mkdtemp(prefix=f"{prefix}{_UNNAMED}{os.getpid()}-", dir=parent))
    lock = os.open(unnamed, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        locks.take(lock)
        folder = unnamed.rename(parent / f"{prefix}{name or unnamed.name.rpartition('-')[2]}")
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(lock)


@contextmanager
def hold_scratch(prefix: str = SCRATCH) -> Iterator[Path]:
    """Hold a folder for temporary files, below TMPDIR; first remove the folders that killed processes left.

    Raises:
        ConfigError: the folder cannot be created.
    """
    with ExitStack() as stack:
        try:
            remove_abandoned(prefix)
            folder = stack.enter_context(hold(Path(tempfile.gettempdir()), prefix))
        except OSError as error:
            raise ConfigError(f"temporary files cannot be written: {error}; set TMPDIR to a writable folder") from error
        yield folder


def remove_abandoned(prefix: str = SCRATCH) -> None:
    """Remove the folders below TMPDIR that killed processes of this user left."""
    for folder in find_abandoned(Path(tempfile.gettempdir()), prefix, _RANDOM):
        shutil.rmtree(folder, ignore_errors=True)


def find_abandoned(parent: Path, prefix: str, name: str) -> list[Path]:
    """Find this user's folders whose creator has exited; `name` is a regular expression for the rest of the name."""
    named = re.compile(re.escape(prefix) + name)
    return [
        path
        for path in sorted(parent.glob(f"{prefix}*"))
        if (named.fullmatch(path.name) or _has_lost_maker(path.name, prefix)) and _is_ours_and_free(path)
    ]


def _has_lost_maker(name: str, prefix: str) -> bool:
    start = prefix + _UNNAMED
    maker = name.removeprefix(start).partition("-")[0]
    return name.startswith(start) and maker.isdecimal() and not Path("/proc", maker).exists()


def _is_ours_and_free(path: Path) -> bool:
    with suppress(OSError):  # the folder has just been removed
        status = path.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and locks.is_free(path)
    return False
