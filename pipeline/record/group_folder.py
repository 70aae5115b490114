"""The spool folder of a group (`layout`): written, surveyed, and closed if its owner died.

This module must not import MLflow because the orchestrator uses it while it measures.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.base.domain import layout
from pipeline.base.domain.records import Result
from pipeline.base.system import json_decoder, locks, secrets
from pipeline.base.system.errors import TrackingError
from pipeline.clean import leftovers
from pipeline.launch.events import read_last_lines
from pipeline.record import group_record
from pipeline.record.group_record import AnyRun, GroupRecord
from pipeline.record.owner import Standing, find_written

TAIL_BYTES = 1 << 16
_CLOCK_ERROR_NS = 10**9
_TRIES = 100
_ABANDONED_S = 3600.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Group folders of a spool, by state.

    Attributes:
        ready: folders that can be sent, oldest first.
        busy: folders with a living owner.
        elsewhere: folders of other machines, whose owners may be alive, with the host of each.
        unreadable: folders with an unreadable record, with the error of each.
    """

    ready: tuple[Path, ...]
    busy: tuple[Path, ...]
    elsewhere: dict[Path, str]
    unreadable: dict[Path, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Amendment:
    """Figures and result of a group with a closed record, from a later comparison with a baseline."""

    experiment: str
    spool_id: str
    metrics: dict[str, float]
    result: str
    reason: str
    uri: str | None = None


def write_json(path: Path, content: object) -> None:
    """Replace a file atomically by the JSON of `content`."""
    text = json.dumps(content, default=read_fields)
    temporary_path = path.with_name(f".{path.name}.{os.getpid()}")
    temporary_path.write_text(text, encoding="utf-8")
    temporary_path.replace(path)


def write(folder: Path, record: GroupRecord) -> None:
    """Replace the record of a spool folder, with secrets masked."""
    write_json(folder / layout.RECORD, group_record.mask(record))


def write_amendment(spool_root: Path, amendment: Amendment) -> Path:
    """Merge an amendment with an unsent amendment of the same group, write it, and return its file."""
    folder = spool_root / layout.AMENDMENTS
    file = folder / f"{amendment.spool_id}.json"
    amendment = dataclasses.replace(amendment, reason=secrets.mask_text(amendment.reason))

    def add() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with locks.hold_lock(folder):
            earlier_metrics: dict[str, float] = {}
            with suppress(TrackingError):
                earlier_metrics = read_amendment(file).metrics
            write_json(file, dataclasses.replace(amendment, metrics=earlier_metrics | amendment.metrics))

    create_below_spool(add)
    return file


def create_below_spool(make: Callable[[], None]) -> None:
    """Create a file or folder below the spool; try again if a sender removed an empty parent folder meanwhile."""
    for _ in range(_TRIES):
        with suppress(FileNotFoundError, FileExistsError):
            return make()
    return make()


def remove_amendment(file: Path, amendment: Amendment) -> None:
    """Remove the file of an amendment that was sent, unless the file has changed since."""
    with locks.hold_lock(file.parent), suppress(TrackingError):
        if read_amendment(file) == amendment:
            file.unlink()


def read_amendment(file: Path) -> Amendment:
    """Read an amendment.

    Raises:
        TrackingError: the file cannot be read or is damaged.
    """
    try:
        return json_decoder.decode(Amendment, json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise TrackingError(f"could not read {file}: {error}") from error


def list_amendments(spool_root: Path) -> list[Path]:
    """List the files of unsent amendments."""
    return sorted((spool_root / layout.AMENDMENTS).glob("*.json"))


def survey(spool_root: Path, *, closes_lost: bool = False) -> Survey:
    """Close the records of dead owners, and list all group folders by state.

    Folders of living owners and of other machines remain unchanged. A folder without a record, which a full disk can
    cause, is removed. With `closes_lost`, records of other machines are also closed unless their files still change.
    """
    _remove_abandoned(spool_root)
    ready: list[tuple[int, Path]] = []
    busy: list[Path] = []
    remote_folders: dict[Path, str] = {}
    unreadable: dict[Path, str] = {}
    written = find_written(_find_doubtful(spool_root, closes_lost=closes_lost))
    for folder in _list_folders(layout.RECORD, spool_root):
        if folder.name.startswith(layout.SENT_PREFIX):
            shutil.rmtree(folder, ignore_errors=True)
            continue
        try:
            with _claim(folder) as free:
                record = group_record.read(folder)
                may_live = folder in written or (not closes_lost and not _is_over(record))
                if not free:
                    busy.append(folder)
                elif not record.is_closed and may_live:
                    remote_folders[folder] = record.host
                else:
                    ready.append((_close(folder, record).clock.wall_ns, folder))
        except (TrackingError, OSError) as error:
            log.warning("skipped a spool folder: %s", error)
            unreadable[folder] = str(error)
    sendable = tuple(folder for _, folder in sorted(ready))
    return Survey(ready=sendable, busy=tuple(busy), elsewhere=remote_folders, unreadable=unreadable)


def _remove_abandoned(spool_root: Path) -> None:
    for folder in _list_folders(layout.LOCK, spool_root):
        with suppress(OSError):
            # The owner of a new folder may not have written its record yet.
            is_old = time.time() - (folder / layout.LOCK).stat().st_mtime > _ABANDONED_S
            if is_old and not (folder / layout.RECORD).exists():
                with _claim(folder) as free:
                    if free:
                        shutil.rmtree(folder, ignore_errors=True)


def _find_doubtful(spool_root: Path, *, closes_lost: bool) -> Iterator[Path]:
    """Yield the folders whose open record is to be closed although no lock proves that the owner is dead."""
    standings = {Standing.BEFORE_BOOT, *([Standing.ELSEWHERE] if closes_lost else [])}
    for folder in _list_folders(layout.RECORD, spool_root):
        with suppress(TrackingError, OSError):
            record = group_record.read(folder)
            if not record.is_closed and record.owner.standing in standings:
                yield folder


def read_ended(spool_root: Path) -> list[GroupRecord]:
    """Read the records of ended groups that were not sent, including groups of dead owners, and change no file."""
    records = []
    for folder in _list_folders(layout.RECORD, spool_root):
        if folder.name.startswith(layout.SENT_PREFIX):
            continue
        try:
            # The lock is checked before the record is read: the owner could close the record in between.
            if not locks.is_free(folder / layout.LOCK):
                continue
            if _is_over(record := group_record.read(folder)):
                records.append(record if record.is_closed else _interrupt_record(folder, record))
        except (TrackingError, OSError) as error:
            if folder.exists():  # a folder that was sent meanwhile is not an error
                log.warning("the progress does not include a group: %s", error)
    return records


def _list_folders(name: str, spool_root: Path) -> list[Path]:
    """List the group folders that contain a file `name`, except links: they may point to another user's files."""
    folders = [path.parent for path in sorted(spool_root.glob(f"*/*/{name}"))]
    return [folder for folder in folders if not folder.is_symlink() and not folder.parent.is_symlink()]


def _is_over(record: GroupRecord) -> bool:
    """Return whether a group with a free lock has ended: locks of another machine may not be visible here."""
    return record.is_closed or record.owner.standing is not Standing.ELSEWHERE


def read_fields(record: Any) -> dict[str, Any]:
    """Convert a dataclass to a dict; unlike `dataclasses.asdict`, do not copy its values."""
    return {attribute.name: getattr(record, attribute.name) for attribute in dataclasses.fields(record)}


@contextmanager
def _claim(folder: Path) -> Iterator[bool]:
    """Try to hold the owner's lock, which prevents other processes from closing the folder at the same time."""
    handle = locks.open_file(folder / layout.LOCK)
    try:
        yield locks.try_take(handle)
    finally:
        os.close(handle)


def _close(folder: Path, record: GroupRecord) -> GroupRecord:
    if record.is_closed:
        return record
    # A folder of another user may name processes that do not belong to that user.
    ended = leftovers.clear(record.spool_id) if folder.stat().st_uid == os.geteuid() else 0
    if ended:
        processes = "1 process" if ended == 1 else f"{ended} processes"
        log.warning("ended %s of the killed orchestrator of %s", processes, folder.name)
    record = _interrupt_record(folder, record)
    write(folder, record)
    return record


def _interrupt_record(folder: Path, record: GroupRecord) -> GroupRecord:
    """Close an open record; each run ends at the last instant that its files prove."""
    modified_ns = (folder / layout.RECORD).stat().st_mtime_ns
    alive_ns = record.clock.monotonic_ns + (modified_ns - record.clock.wall_ns)
    jobs = []
    for job in record.jobs:
        path = folder / job.folder / layout.EVENTS
        if job.result is None and group_record.PACK in record.params and _has_ended_by_itself(path):
            job = dataclasses.replace(job, result=Result.OK, exit_status=0, end_ns=_find_last_instant(path, record))
        elif job.result is None:
            job = _interrupt(job, _find_last_instant(path, record) or alive_ns)
        jobs.append(job)
    ends = (alive_ns, _find_last_instant(folder / layout.SAMPLES, record), *(job.end_ns for job in jobs))
    return dataclasses.replace(_interrupt(record, max(end for end in ends if end is not None)), jobs=tuple(jobs))


def _has_ended_by_itself(path: Path) -> bool:
    """Return whether a script ended with status 0 before its orchestrator, which was killed, could record that."""
    ended = False
    for line in read_last_lines(path, TAIL_BYTES):
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            event = json.loads(line)
            ended |= event["event"] == "process_ended" and event["status"] == 0
            ended &= event["event"] != "error"
    return ended


def _interrupt(run: AnyRun, end_ns: int) -> AnyRun:
    return dataclasses.replace(run, result=Result.INTERRUPTED, end_ns=max(end_ns, run.start_ns))


def _find_last_instant(path: Path, record: GroupRecord) -> int | None:
    """Return the newest plausible `t_ns` of a JSON-lines file; jobs may write arbitrary lines to it."""
    with suppress(OSError):
        written_ns = record.clock.monotonic_ns + path.stat().st_mtime_ns - record.clock.wall_ns
        for line in reversed(read_last_lines(path, TAIL_BYTES)):
            with suppress(ValueError, KeyError, TypeError, OverflowError, RecursionError):
                t_ns = int(json.loads(line)["t_ns"])
                if record.start_ns <= t_ns <= written_ns + _CLOCK_ERROR_NS:
                    return t_ns
    return None
