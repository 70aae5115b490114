"""The machine whose orchestrator owns a group's folder, and whether that orchestrator can still be alive.

On the same running kernel, also across containers, a held file lock proves that the orchestrator is alive. After a
reboot, the machine is recognised by machine-id or host name. Several running machines (container images, virtual
machines) may have the same machine-id and host name. Therefore such a folder is watched first: the listeners of a
running group write to its files every second.
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
from pipeline.base.system.host_info import boot_id, machine_id

_WATCH_S = 3.0
_SILENT_S = 3600.0
"""A folder without a change for this long is not watched."""

_WRITTEN = (layout.RECORD, layout.SAMPLES)
_WRITTEN_OF_JOBS = (layout.EVENTS, layout.REQUESTS, layout.STDOUT, layout.STDERR)


class Standing(enum.Enum):
    """State of an owner whose lock is free."""

    DEAD = "same boot: a living owner would hold its lock"
    BEFORE_BOOT = "same machine, before its last boot"
    ELSEWHERE = "another machine, whose locks may not be visible here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The machine of an orchestrator; a field is empty if unknown."""

    host: str
    boot_id: str
    machine_id: str

    @classmethod
    def read(cls) -> Owner:
        """Return the identity of this machine in its current boot."""
        return cls(host=platform.node(), boot_id=boot_id(), machine_id=machine_id())

    @property
    def standing(self) -> Standing:
        """State of the owner, as this machine can determine it."""
        this_machine = Owner.read()
        if self.boot_id and self.boot_id == this_machine.boot_id:
            return Standing.DEAD
        is_this_machine = self.host == this_machine.host or (
            self.machine_id != "" and self.machine_id == this_machine.machine_id
        )
        if not is_this_machine:
            return Standing.ELSEWHERE
        return Standing.BEFORE_BOOT if self.boot_id and this_machine.boot_id else Standing.DEAD


def spell_close_command(root: Path) -> str:
    """Return the command that closes groups of lost machines in the spool of a store."""
    return entry_points.spell("tracking", "flush", "--root", str(root), "--close-lost")


def find_written(folders: Iterable[Path]) -> frozenset[Path]:
    """Find the folders that a process writes to, by watching the folders that changed within the last hour."""
    before = {folder: _read_times(folder) for folder in folders}
    now_ns = time.time_ns()
    recent = [folder for folder, state in before.items() if now_ns - max(state.values(), default=0) < _SILENT_S * 1e9]
    if recent:
        time.sleep(_WATCH_S)
    return frozenset(folder for folder in recent if _read_times(folder) != before[folder])


def _read_times(folder: Path) -> dict[tuple[Path, int], int]:
    """Return the modification time of each file that an owner or its jobs write, by path and size."""
    times = {}
    for path in _list_files(folder):
        try:
            # Opening a file makes a network file system fetch its current times; O_NONBLOCK: a pipe must not block.
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            status = os.fstat(descriptor)
            times[path, status.st_size] = status.st_mtime_ns
        finally:
            os.close(descriptor)
    return times


def _list_files(folder: Path) -> Iterator[Path]:
    yield from (folder / name for name in _WRITTEN)
    for job in folder.glob(f"{layout.JOBS}/*"):
        yield from (job / name for name in _WRITTEN_OF_JOBS)
