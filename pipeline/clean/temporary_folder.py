"""Temporary folders owned by a living process; the next process recognises those of a killed one as abandoned.

<parent>/<prefix>new-<PID>-<random>     being made, by the process of that number
<parent>/<prefix><name>                 locked by its maker, as long as that lives

A folder is locked before it has its name, so nobody takes one for abandoned that is just being made. Anybody may put
anything under such a name into a folder as /tmp: only real folders of our own user are ever opened, or removed.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.base.system import locks

_UNNAMED = "new-"


@contextmanager
def hold(parent: Path, prefix: str, name: str | None = None) -> Iterator[Path]:
    """Make a folder that only this user may enter, hold it, and remove it.

    The names of all such folders begin with the prefix; the rest is random if no name is given.
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


def find_abandoned(parent: Path, prefix: str, name: str) -> list[Path]:
    """Find the folders of this user whose maker is gone; `name` is a regular expression of what follows the prefix."""
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
    with suppress(OSError):  # just removed
        status = path.lstat()
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and locks.is_free(path)
    return False
