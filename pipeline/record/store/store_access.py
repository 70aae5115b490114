"""Opening of an existing store for reading, also without write permission or after the store was moved."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import sqlite3
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from pipeline.base.domain.layout import DATABASE, STORE_LOCK
from pipeline.base.system import entry_points
from pipeline.base.system.errors import ConfigError, TrackingError
from pipeline.clean import temporary_folder
from pipeline.record.store import bundle_reader, run_artifacts
from pipeline.record.store.local_store import (
    Store,
    find_foreign_root,
    is_server,
    open_store,
    set_mlflow_defaults,
    translate_errors,
)


def open_if_there(root_or_uri: Path | str) -> Store | None:
    """Open a store; return `None` for a folder without a store, and create none.

    Raises:
        TrackingError: the store cannot be used.
    """
    if is_server(root_or_uri):
        return open_store(Path(), str(root_or_uri))
    root = Path(root_or_uri).absolute()
    try:
        (root / DATABASE).stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise TrackingError(
            f"could not read the tracking store in {root}: {error.strerror}; check its permissions"
        ) from error
    return open_store(root) if is_writable(root) else _open_copy(root)


def open_named(root_or_uri: Path | str) -> Store:
    """Open the store that a user specified with --root or --uri.

    Raises:
        ConfigError: the folder contains no store.
        TrackingError: the store cannot be used.
    """
    set_mlflow_defaults()
    store = open_if_there(root_or_uri)
    if store is None:
        exists = Path(root_or_uri).exists()
        problem = f"contains no tracking store: {DATABASE} is missing" if exists else "does not exist"
        raise ConfigError(
            f"{root_or_uri} {problem}; run a study first, or specify the folder of one (its tracking.root) with "
            "--root, or a server with --uri"
        )
    return store


def is_writable(root_or_uri: Path | str) -> bool:
    """Return whether this user may write to a store; SQLite must also write to the folder of the database."""
    if is_server(root_or_uri):
        return True
    root = Path(root_or_uri)
    return all(os.access(path, os.W_OK) for path in (root, root / DATABASE))


def explain_read_only(root_or_uri: Path | str, experiment: str) -> str:
    """Return why nothing can be added to an experiment, with a remedy; empty if it can.

    Raises:
        TrackingError: the store cannot be used.
    """
    if not is_writable(root_or_uri):
        return f"{root_or_uri} is read-only"
    store = open_named(root_or_uri)
    with translate_errors(f"could not read experiment {experiment!r} from {store.uri}"):
        stored = store.client.get_experiment_by_name(experiment)
    if store.root is None or stored is None or find_foreign_root(stored.artifact_location, store.root) is None:
        return ""
    command = entry_points.spell("tracking", "relocate", "--root", str(store.root))
    return f"{root_or_uri} was moved; run `{command}`"


@functools.cache
def _open_copy(root: Path) -> Store:
    """Copy the database of a read-only store and open the copy; artifacts are read from the original folder."""
    stack = ExitStack()
    atexit.register(stack.close)
    copy = stack.enter_context(temporary_folder.hold_scratch())
    try:
        _copy_database(root, copy)
        with suppress(FileNotFoundError):
            shutil.copyfile(root / STORE_LOCK, copy / STORE_LOCK)
    except (OSError, sqlite3.Error) as error:
        raise TrackingError(
            f"could not copy the read-only tracking store in {root} to {copy}: {error}; "
            "copy the store to a writable folder, and specify that folder"
        ) from error
    store = open_store(copy, upgrades=True)
    store.place = root  # often mounted at another path than at its creation
    return store


def _copy_database(root: Path, copy: Path) -> None:
    """Copy the database with all committed transactions, if possible after a running write has finished."""
    try:
        with (
            closing(sqlite3.connect(f"{(root / DATABASE).as_uri()}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(copy / DATABASE)) as target,
        ):
            source.backup(target)
    except sqlite3.OperationalError:  # without the -wal and -shm files, SQLite must write to read the database
        (copy / DATABASE).unlink(missing_ok=True)
        shutil.copyfile(root / DATABASE, copy / DATABASE)
        with suppress(FileNotFoundError):
            shutil.copyfile(root / f"{DATABASE}-wal", copy / f"{DATABASE}-wal")


def fetch(location: Path | str, run_id: str, name: str, scratch: Path) -> Path | None:
    """Return an artifact of a run, as a copy in `scratch` if it is not a file; `None` if the run does not have it.

    Raises:
        TrackingError: the artifacts cannot be read.
    """
    if not bundle_reader.is_bundle(location):
        return run_artifacts.fetch(open_named(location), run_id, name, scratch)
    try:
        path = bundle_reader.locate(Path(location), run_id) / name
    except ConfigError as error:
        raise TrackingError(str(error)) from error
    return path if path.is_file() else None
