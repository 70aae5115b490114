"""Bundles: one file with everything that a report of an experiment needs, without a database.

A bundle is an archive (`bundle_archive.py`) of the folders of groups. It does not name the file system, users and hosts
of the measuring machine (`portable_paths.py`). A bundle may come from a stranger: nothing of it is executed, and it is
checked before anything is written elsewhere.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from pipeline.base.domain import layout
from pipeline.base.domain.package_locks import make_portable
from pipeline.base.system import words
from pipeline.base.system.errors import ConfigError, TrackingError
from pipeline.base.system.words import announce, format_count
from pipeline.clean import temporary_folder
from pipeline.record import group_folder, group_record
from pipeline.record.group_record import GroupRecord
from pipeline.record.store import bundle_archive, bundle_reader, results, run_artifacts, upload
from pipeline.record.store.local_store import Store, describe_error, explain_missing, open_store, translate_errors
from pipeline.record.store.portable_paths import PortablePaths

_NAMES_FOLDERS = frozenset((layout.CONFIG, layout.GROUP, layout.JOB_FILE))
_SERIES_POINTS = 10_000
"""Most points of a series that an import sends to MLflow: those that the exported store had."""


@announce("writing the bundle")
def export(store: Store, experiment: str, file: Path) -> int:
    """Write the bundle of an experiment; return its number of groups.

    Raises:
        ConfigError: the store has no such experiment, or `file` cannot be written.
        TrackingError: the store cannot be read.
    """
    with translate_errors(f"could not read experiment {experiment!r} from {store.uri}"):
        stored = store.client.get_experiment_by_name(experiment)
        experiments = sorted(listed.name for listed in store.client.search_experiments())
    if stored is None or stored.lifecycle_stage != "active":
        raise ConfigError(explain_missing(experiment, store.uri, experiments, "choose another with --experiment: "))
    groups = results.read_stored_groups(store, experiment)
    with translate_errors(f"could not add a salt for names to experiment {experiment!r} of {store.uri}"):
        salt = store.read_salt(experiment, creates=True)
    with temporary_folder.hold_scratch() as scratch:
        artifacts = dict(_list_artifacts(store, groups, scratch))
        try:
            bundle_archive.write(file, experiment, dict(_make_portable(groups, artifacts, salt)))
        except OSError as error:
            raise ConfigError(f"could not write {file}: {error.strerror}; choose another file with --out") from error
    return len(groups)


def _list_artifacts(store: Store, groups: Sequence[GroupRecord], scratch: Path) -> Iterator[tuple[str, Path]]:
    """Yield the artifacts of groups and their jobs, by their names in the bundle.

    Files that jobs left in their output folder, such as checkpoints, belong to the user and are left out.
    """
    for group in groups:
        places = {group.run_id: layout.ARTIFACTS} | {job.run_id: job.folder for job in group.jobs}
        for run_id, place in places.items():
            folder = run_artifacts.fetch_all(store, run_id, scratch)
            for path in sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()):
                name = path.relative_to(folder).as_posix()
                is_output = place != layout.ARTIFACTS and name.startswith(f"{layout.OUTPUT}/")
                if not is_output and (place, name) != (layout.ARTIFACTS, layout.RECORD):
                    yield f"{bundle_archive.GROUPS}/{group.run_id}/{place}/{name}", path


def unpack(file: Path, root: Path) -> str:
    """Send the groups of a bundle to a local store; return the experiment. Groups in the store stay.

    Raises:
        ConfigError: the file is not a complete bundle of this version.
        TrackingError: the store cannot be written.
    """
    root = root.absolute()
    with temporary_folder.hold_scratch() as scratch:
        folder = scratch / layout.SPOOL
        folder.mkdir()
        experiment = bundle_archive.extract(file, folder)
        groups = bundle_reader.read_folder(file, folder)
        store = open_store(root)
        stored_ids = {group.spool_id for group in results.read_stored_groups(store, experiment)}
        for group in groups:
            if group.is_closed and group.spool_id not in stored_ids:
                place = folder / bundle_archive.GROUPS / group.run_id
                imported = dataclasses.replace(group, experiment=experiment, uri=None)
                group_folder.write_json(place / layout.RECORD, imported)
                try:
                    upload.send(lambda _: store, place, series_points=_SERIES_POINTS)
                except Exception as error:
                    raise TrackingError(
                        f"could not write the groups of {file} to {root}: {describe_error(error)}; import it again"
                    ) from error
    if num_open := sum(not group.is_closed for group in groups):
        words.say(f"note: {format_count(num_open, 'group')} of {file} had not ended and was not imported")
    return experiment


def _make_portable(
    groups: Sequence[GroupRecord], artifacts: Mapping[str, Path], salt: str
) -> Iterator[tuple[str, Path | bytes]]:
    """Yield the files of a bundle without paths, users and hosts of the machine; binary artifacts stay as they are."""
    paths = PortablePaths(groups, salt)
    for name in (name for name in artifacts if PurePosixPath(name).name in _NAMES_FOLDERS):
        paths.read_text(_read_text(artifacts[name]) or "")
    for group in groups:
        record = group_record.encode(paths.mask_record(group))
        yield f"{bundle_archive.GROUPS}/{group.run_id}/{layout.RECORD}", record.encode()
    portable_texts: dict[tuple[str, bytes], bytes] = {}  # most runs have the same environment and changes
    for name, path in artifacts.items():
        text = _read_text(path)
        if text is None:
            yield name, path
            continue
        file = PurePosixPath(name).name
        key = file, hashlib.sha256(text.encode()).digest()
        if key not in portable_texts:
            portable = paths.mask_artifact(file, make_portable(text) if file == layout.ENVIRONMENT else text)
            portable_texts[key] = portable.encode()
        yield name, portable_texts[key]


def _read_text(path: Path) -> str | None:
    """Read a text with its line endings; `None` for a binary file."""
    content = path.read_bytes()
    try:
        return None if b"\0" in content else content.decode()
    except UnicodeDecodeError:
        return None
