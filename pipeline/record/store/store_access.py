"""Opening an existing store to read it, also without write permission or after it was moved."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path

from pipeline.base.domain.layout import DATABASE, STORE_LOCK
from pipeline.base.system.errors import ConfigError, TrackingError
from pipeline.record.store.local_store import Store, is_server, open_store, set_mlflow_defaults
from pipeline.record.store.relocate import relocate


def open_if_there(root_or_uri: Path | str) -> Store | None:
    """Open a store; `None` for a folder without one, which stays without one.

    Raises:
        TrackingError: it cannot be used.
    """
    if is_server(root_or_uri):
        return open_store(Path(), str(root_or_uri))
    root = Path(root_or_uri).absolute()
    try:
        (root / DATABASE).stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise TrackingError(f"could not read the tracking store in {root}: {error.strerror}") from error
    return open_store(root) if is_writable(root) else _open_copy(root)


def open_named(root_or_uri: Path | str) -> Store:
    """Open the store that a user named with --root or --uri.

    Raises:
        ConfigError: the folder has none.
        TrackingError: it cannot be used.
    """
    set_mlflow_defaults()
    store = open_if_there(root_or_uri)
    if store is None:
        raise ConfigError(
            f"there is no tracking store in {root_or_uri}: {DATABASE} is missing; "
            "name the folder of a study (its tracking.root) with --root, or a server with --uri"
        )
    return store


def is_writable(root_or_uri: Path | str) -> bool:
    """Return whether this user may write to a store: sqlite needs its folder as well."""
    if is_server(root_or_uri):
        return True
    root = Path(root_or_uri)
    return all(os.access(path, os.W_OK) for path in (root, root / DATABASE))


@functools.cache
def _open_copy(root: Path) -> Store:
    """Open a copy of the database of a read-only store; its artifacts are read where they are."""
    folder = tempfile.TemporaryDirectory(prefix="colloc-store-")
    atexit.register(folder.cleanup)
    copy = Path(folder.name)
    try:
        _copy_database(root, copy)
        with suppress(FileNotFoundError):
            shutil.copyfile(root / STORE_LOCK, copy / STORE_LOCK)
    except (OSError, sqlite3.Error) as error:
        raise TrackingError(
            f"could not copy the read-only tracking store in {root} to {copy}: {error}; "
            "copy it to a writable folder, and name that"
        ) from error
    with suppress(TrackingError):  # what is read by a copy is often mounted where it was not written
        relocate(copy, place=root)
    return open_store(copy, upgrades=True)


def _copy_database(root: Path, copy: Path) -> None:
    """Copy the database with all that was committed, after a running write if possible."""
    try:
        with (
            closing(sqlite3.connect(f"{(root / DATABASE).as_uri()}?mode=ro", uri=True)) as source,
            closing(sqlite3.connect(copy / DATABASE)) as target,
        ):
            source.backup(target)
    except sqlite3.OperationalError:  # without the files beside it, sqlite would have to write to read
        (copy / DATABASE).unlink(missing_ok=True)
        shutil.copyfile(root / DATABASE, copy / DATABASE)
        with suppress(FileNotFoundError):
            shutil.copyfile(root / f"{DATABASE}-wal", copy / f"{DATABASE}-wal")
