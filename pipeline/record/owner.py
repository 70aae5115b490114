"""The machine whose orchestrator owns the folder of a group, and whether that can still be at work.

A lock tells it on the same running kernel, in whatever containers. A machine that has booted since runs nothing of the
group any more: it is known by its machine-id, or by its host name. Neither is certain: images of containers and virtual
machines come with a machine-id or a host name that several live machines then share. So such a folder is watched for a
moment first: the listeners of a group that runs write into it every second.
"""

from __future__ import annotations

import enum
import os
import platform
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.domain import layout
from pipeline.base.system import entry_points
from pipeline.base.system.host import boot_id, machine_id

_WATCH_S = 3.0
_SILENT_S = 3600.0
"""Whoever has not written for so long is not watched."""

_WRITTEN = (layout.RECORD, layout.SAMPLES)
_WRITTEN_OF_JOBS = (layout.EVENTS, layout.REQUESTS, layout.STDOUT, layout.STDERR)


class Standing(enum.Enum):
    """What is known of an owner whose lock is free."""

    DEAD = "of this boot: a living owner would hold its lock"
    BEFORE_BOOT = "of this machine before it was booted"
    ELSEWHERE = "of another machine, whose locks may mean nothing here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The machine of an orchestrator; empty is what it does not tell."""

    host: str
    boot_id: str
    machine_id: str

    @classmethod
    def here(cls) -> Owner:
        """Return this machine as it runs now."""
        return cls(host=platform.node(), boot_id=boot_id(), machine_id=machine_id())

    @property
    def standing(self) -> Standing:
        """What is known of it here and now."""
        here = Owner.here()
        if self.boot_id and self.boot_id == here.boot_id:
            return Standing.DEAD
        is_this_machine = self.host == here.host or (self.machine_id != "" and self.machine_id == here.machine_id)
        if not is_this_machine:
            return Standing.ELSEWHERE
        return Standing.BEFORE_BOOT if self.boot_id and here.boot_id else Standing.DEAD


def close_command(root: Path) -> str:
    """Return the command that closes what lost machines left open in the spool of a store."""
    return entry_points.spell("tracking", "flush", "--root", str(root), "--close-lost")


def find_written(folders: Iterable[Path]) -> frozenset[Path]:
    """Find the folders that somebody writes into; looks at those for a moment that were written within an hour."""
    before = {folder: _state(folder) for folder in folders}
    now_ns = time.time_ns()
    recent = [folder for folder, state in before.items() if now_ns - max(state.values(), default=0) < _SILENT_S * 1e9]
    if recent:
        time.sleep(_WATCH_S)
    return frozenset(folder for folder in recent if _state(folder) != before[folder])


def _state(folder: Path) -> dict[tuple[Path, int], int]:
    """When each file that a living owner or its jobs write was changed, by path and size."""
    found = {}
    for path in _files(folder):
        try:
            # A network file system asks its server anew when a file is opened; not to be kept waiting by a pipe.
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            status = os.fstat(descriptor)
            found[path, status.st_size] = status.st_mtime_ns
        finally:
            os.close(descriptor)
    return found


def _files(folder: Path) -> Iterator[Path]:
    yield from (folder / name for name in _WRITTEN)
    for job in folder.glob(f"{layout.JOBS}/*"):
        yield from (job / name for name in _WRITTEN_OF_JOBS)
