"""Files below the working directory that changed while jobs ran, and the job that wrote each file, if known.

The kernel does not record which process wrote a file, so the search for changed files runs after the jobs have ended.
The writer is known in two cases: the name of a TensorBoard file contains a process id, and a file that changed while
one job ran alone belongs to that job. The search begins at the files closest to the working directory, and ends after
20,000 files or 3 seconds.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.domain.workload import Workload
from pipeline.base.system.words import list_first
from pipeline.launch.events import Events
from pipeline.launch.job_state import JobState
from pipeline.observe.clock import ClockRecord

_MAX_ENTRIES, _MAX_S = 20_000, 3.0
# Caches, and folders of packages: large folders that jobs only read.
_PASSED_OVER = frozenset({"__pycache__", "node_modules", "site-packages"})
_MAX_NAMES = 8
_CLOCK_NS = 10_000_000  # largest delay of a file system's clock
_EVENT_FILE = "events.out.tfevents."
_NUMBER = re.compile(r"\.(\d+)(?=\.|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Files that changed below a folder, with their modification times in ns since the epoch.

    `is_whole` is true if all files were examined.
    """

    folder: Path
    files: Mapping[Path, int]
    is_whole: bool


def find_changes(
    folder: Path,
    t_ns: int,
    clock: ClockRecord,
    *,
    without: Collection[Path],
    inodes: Collection[tuple[int, int]] = (),
) -> Changes:
    """Find the files below a folder that changed since a monotonic instant.

    The search leaves out hidden files, links, other disks, the paths in `without`, and the files whose device and
    inode are in `inodes`.
    """
    files: dict[Path, int] = {}
    until_s = time.monotonic() + _MAX_S
    folders, seen, device = deque([folder]), 0, folder.stat().st_dev
    while folders:
        for entry in _scan(folders.popleft()):
            seen += 1
            if seen > _MAX_ENTRIES or time.monotonic() > until_s:
                return Changes(folder=folder, files=files, is_whole=False)
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            path = Path(entry.path)
            if path in without or (status.st_dev, status.st_ino) in inodes:
                continue
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _PASSED_OVER and status.st_dev == device:
                    folders.append(path)
            elif entry.is_file(follow_symlinks=False) and clock.find_instants_ns(status.st_mtime_ns)[-1] >= t_ns:
                files[path] = status.st_mtime_ns
    return Changes(folder=folder, files=files, is_whole=True)


def find_owners(
    changed: Changes | None, states: Sequence[JobState], logs: Mapping[int, Events], clock: ClockRecord
) -> dict[Path, int | None]:
    """Map each file to the index of the only job that can have written it, else to `None`; `logs` is by job index."""
    return {
        path: _find_owner(path, clock.find_instants_ns(wall_ns), states, logs)
        for path, wall_ns in (changed.files.items() if changed is not None else ())
    }


def describe_shared(folder: Path, owners: Mapping[Path, int | None], states: Sequence[JobState]) -> str:
    """Describe the files below the folder that several jobs may have written; empty if there are none.

    Copies of a program write files of the same names, also if the last of them to end wrote the file last; different
    programs do so only if both name the file.
    """
    programs = [state.job.workload for state in states if not state.job.workload.is_in_own_folder]
    by_script = {program.script: program for program in programs}
    num_copies = Counter(program.script for program in programs)
    have_copies = len(by_script) < len(programs)
    numbers_of = {  # numbers that distinguish the files of a copy
        state.job.index: {str(state.job.index), str(state.pid)}
        for state in states
        if num_copies[state.job.workload.script] > 1
    }
    files = sorted(
        path
        for path, index in owners.items()
        if (index is None and (have_copies or sum(_has_name(program, path.name) for program in by_script.values()) > 1))
        or (
            index in numbers_of
            and not path.name.startswith(_EVENT_FILE)
            and numbers_of[index].isdisjoint(re.findall(r"\d+", os.path.relpath(path, folder)))
        )
    )
    if not files or len(programs) < 2:
        return ""
    names = [os.path.relpath(path, folder) for path in files]
    return f"changed while {len(programs)} jobs ran: {list_first(names, _MAX_NAMES)}"


def _has_name(program: Workload, name: str) -> bool:
    """Return whether the arguments or the code of a program contain a file's name, apart from the digits in it."""
    parts = [part for part in re.split(r"\d+", name) if part]
    return any(all(part in text for part in parts) for text in ("\0".join(program.argv), *_read_sources(program)))


def _read_sources(program: Workload) -> Iterator[str]:
    for source in program.sources:
        with suppress(OSError):  # a job may have removed the file
            yield Path(source.path).read_text(encoding="utf-8", errors="replace")


def _find_owner(
    path: Path, instants_ns: Sequence[int], states: Sequence[JobState], logs: Mapping[int, Events]
) -> int | None:
    if path.name.startswith(_EVENT_FILE):
        numbers = set(map(int, _NUMBER.findall(path.name)))
        named = [state for state in states if numbers & {state.working_pid, *logs[state.job.index].processes}]
        if len(named) == 1:
            return named[0].job.index
    candidates = [state.job.index for state in states if any(_is_running(state, t_ns) for t_ns in instants_ns)]
    return candidates[0] if len(candidates) == 1 else None


def _is_running(state: JobState, t_ns: int) -> bool:
    is_over = state.ended.at_ns is not None and t_ns > state.ended.at_ns
    return state.started is not None and t_ns >= state.started.at_ns - _CLOCK_NS and not is_over


def _scan(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            yield from (entry for entry in entries if not entry.name.startswith("."))
    except OSError:
        return
