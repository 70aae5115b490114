"""Relocation of a moved local store: rewrites the absolute paths in its database. Does not import MLflow."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from pipeline.base.domain.layout import DATABASE, STORE_LOCK
from pipeline.base.mlflow_internals import database_tables
from pipeline.base.system import locks
from pipeline.base.system.errors import ConfigError, TrackingError
from pipeline.record.store.local_store import BUSY_TIMEOUT_S, find_foreign_root


def relocate(root: Path, old_root: Path | None = None, place: Path | None = None) -> dict[str, int]:
    """Rewrite the artifact paths of a moved store; return the number of rewritten rows by `table.column`.

    By default, the former folder is read from the database. `place` is the folder of the artifacts if it is not `root`.

    Raises:
        ConfigError: `root` contains no store.
        TrackingError: the database cannot be rewritten, or contains paths of several former folders.
    """
    root = root.absolute()
    place = place or root
    database = root / DATABASE
    if not database.exists():
        raise ConfigError(
            f"{root} contains no tracking store: {DATABASE} is missing; specify the folder of a study with --root"
        )
    try:
        with (
            locks.hold_lock(root / STORE_LOCK),
            closing(sqlite3.connect(database, timeout=BUSY_TIMEOUT_S, isolation_level=None)) as connection,
        ):
            connection.execute("BEGIN IMMEDIATE")
            old = old_root.absolute() if old_root else _find_old_root(connection, place)
            counts = {} if old is None or old == place else database_tables.move_paths(connection, old, place)
            elsewhere = _find_old_roots(connection, place)
            connection.execute("COMMIT")
    except (OSError, sqlite3.Error) as error:
        raise TrackingError(
            f"could not relocate the tracking store in {root}: {error}; check its permissions"
        ) from error
    if not counts and elsewhere:
        raise TrackingError(
            f"no artifact path begins with {old}; choose another folder for --from: {', '.join(map(str, elsewhere))}"
        )
    return counts


def _find_old_roots(connection: sqlite3.Connection, root: Path) -> list[Path]:
    locations = database_tables.read_artifact_locations(connection)
    return sorted({old for location in locations if (old := find_foreign_root(location, root)) is not None})


def _find_old_root(connection: sqlite3.Connection, root: Path) -> Path | None:
    roots = _find_old_roots(connection, root)
    if len(roots) > 1:
        places = ", ".join(map(str, roots))
        raise TrackingError(
            f"the store in {root} contains paths of several former folders ({places}); run this command once for each "
            "folder, with --from=FOLDER"
        )
    return roots[0] if roots else None
