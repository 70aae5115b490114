"""The groups of a bundle, read without MLflow and a database; its artifacts are extracted once they are needed."""

from __future__ import annotations

import atexit
import functools
from contextlib import ExitStack
from pathlib import Path

from pipeline.base.domain import layout
from pipeline.base.system.errors import ConfigError, TrackingError
from pipeline.clean import temporary_folder
from pipeline.record import group_record
from pipeline.record.group_record import GroupRecord
from pipeline.record.store import bundle_archive
from pipeline.record.store.local_store import is_server


def is_bundle(location: Path | str) -> bool:
    """Return whether a location of results is a bundle, not a folder or a server."""
    return not is_server(location) and Path(location).is_file()


@functools.lru_cache(maxsize=1)
def read_records(file: Path) -> tuple[str, tuple[GroupRecord, ...]]:
    """Read the experiment of a bundle and the records of its groups, oldest first.

    Raises:
        ConfigError: the file is not a bundle of this version.
    """
    with temporary_folder.hold_scratch() as folder:
        experiment = bundle_archive.extract(file, folder, only_records=True)
        return experiment, read_folder(file, folder)


def read_folder(file: Path, folder: Path) -> tuple[GroupRecord, ...]:
    """Read the records of a bundle that was extracted to a folder, oldest first.

    Raises:
        ConfigError: a record is impossible.
    """
    groups = []
    for path in folder.glob(f"{bundle_archive.GROUPS}/*/{layout.RECORD}"):
        try:
            group = group_record.parse(path.read_bytes(), path.relative_to(folder), is_printed=True)
        except TrackingError as error:
            raise ConfigError(f"{file} has an impossible record: {error}; do not use this file") from error
        if group.run_id != path.parent.name:
            raise ConfigError(f"{file}: {path.relative_to(folder)} is not that of its folder; do not use this file")
        groups.append(group)
    return tuple(sorted(groups, key=lambda group: (group.start_ms, group.run_id)))


@functools.cache
def extract(file: Path) -> Path:
    """Extract a bundle to a temporary folder, which is removed at the end of the process.

    Raises:
        ConfigError: the file is not a complete bundle of this version.
    """
    stack = ExitStack()
    atexit.register(stack.close)
    folder = stack.enter_context(temporary_folder.hold_scratch())
    bundle_archive.extract(file, folder)
    return folder


def locate(file: Path, run_id: str) -> Path:
    """Return the folder with the artifacts of a group or job of a bundle.

    Raises:
        ConfigError: the file is not a complete bundle of this version.
        TrackingError: the bundle does not have the run.
    """
    if (place := _list_places(file).get(run_id)) is None:
        raise TrackingError(f"{file} has no run {run_id}")
    return extract(file) / bundle_archive.GROUPS / place


@functools.lru_cache(maxsize=1)
def _list_places(file: Path) -> dict[str, str]:
    """Map the ids of all groups and jobs of a bundle to their folders below `GROUPS`."""
    places = {}
    for group in read_records(file)[1]:
        places[group.run_id] = f"{group.run_id}/{layout.ARTIFACTS}"
        places |= {job.run_id: f"{group.run_id}/{job.folder}" for job in group.jobs}
    return places
