"""Check whether another user could replace the files at a path. Reads only.

The check matters if root runs an environment that was built days ago: below a folder such as /tmp, another user may
have replaced a file that was removed in the meantime.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

_WHOLE_MAP = "0 0 4294967295"
_MOST_LINKS = 40  # Source: path_resolution(7)


def find_replaceable_part(path: Path) -> Path | None:
    """Find the first part of an absolute path that users other than root and this user can change; else `None`.

    Every link on the path is checked as well. Write permission for this user's group is accepted.
    """
    for part in _iterate_parts(path):
        try:
            status = part.lstat()
        except OSError:
            # A user who can write the parent folder can create the missing part.
            return part if _is_open_to_others(part.parent.stat()) else None
        if status.st_uid not in _list_trusted_owners():
            return part
        is_sticky_folder = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
        if not stat.S_ISLNK(status.st_mode) and not is_sticky_folder and _is_open_to_others(status):
            return part
    return None


def _is_open_to_others(status: os.stat_result) -> bool:
    return bool(status.st_mode & 0o002) or (status.st_mode & 0o020 != 0 and status.st_gid not in (0, os.getegid()))


def _iterate_parts(path: Path) -> Iterator[Path]:
    """Yield every folder, link and file on a path, from the root up to the first missing part."""
    folder, remaining, num_links = Path("/"), list(path.parts[1:]), 0
    yield folder
    while remaining:
        name = remaining.pop(0)
        if name == "..":
            folder = folder.parent
            continue
        part = folder / name
        yield part
        if not part.is_symlink():
            folder = part
            continue
        num_links += 1
        if num_links > _MOST_LINKS:
            return
        target = part.readlink()
        remaining = [*(target.parts[1:] if target.is_absolute() else target.parts), *remaining]
        folder = Path("/") if target.is_absolute() else folder


def _list_trusted_owners() -> set[int]:
    owners = {0, os.geteuid()}
    # If a container's user map lacks the machine's root, root's files seem to belong to the overflow user.
    if " ".join(Path("/proc/self/uid_map").read_text(encoding="ascii").split()) != _WHOLE_MAP:
        owners.add(int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii")))
    return owners
