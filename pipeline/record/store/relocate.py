"""Moving a local store: the absolute paths inside its database follow the folder. Needs no MLflow."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from pipeline.base.domain.layout import DATABASE, STORE_LOCK
from pipeline.base.mlflow_internals import database_tables
from pipeline.base.system import locks
from pipeline.base.system.errors import ConfigError, TrackingError
from pipeline.record.store.local import BUSY_TIMEOUT_S, foreign_root


def relocate(root: Path, old_root: Path | None = None, place: Path | None = None) -> dict[str, int]:
    """Make the artifacts of a store that was copied or moved belong to its present place.

    Args:
        root: the store's folder, where it lies now.
        old_root: where it lay; found in the database if not given.
        place: the folder of the artifacts, if that is not the store's own.

    Returns:
        `table.column` to the number of rewritten rows; empty when everything was in place already.

    Raises:
        ConfigError: there is no store.
        TrackingError: it cannot be rewritten, or has several old places.
    """
    root = root.absolute()
    place = place or root
    database = root / DATABASE
    if not database.exists():
        raise ConfigError(
            f"there is no tracking store in {root}: {DATABASE} is missing; name the folder of a study with --root"
        )
    try:
        with (
            locks.held(root / STORE_LOCK),
            closing(sqlite3.connect(database, timeout=BUSY_TIMEOUT_S, isolation_level=None)) as connection,
        ):
            connection.execute("BEGIN IMMEDIATE")
            old = old_root.absolute() if old_root else _old_root(connection, place)
            counts = {} if old is None or old == place else database_tables.move_paths(connection, old, place)
            elsewhere = _old_roots(connection, place)
            connection.execute("COMMIT")
    except (OSError, sqlite3.Error) as error:
        raise TrackingError(f"could not relocate the tracking store in {root}: {error}") from error
    if not counts and elsewhere:
        raise TrackingError(f"no artifact path begins with {old}, but some with {', '.join(map(str, elsewhere))}")
    return counts


def _old_roots(connection: sqlite3.Connection, root: Path) -> list[Path]:
    locations = database_tables.read_artifact_locations(connection)
    return sorted({old for location in locations if (old := foreign_root(location, root)) is not None})


def _old_root(connection: sqlite3.Connection, root: Path) -> Path | None:
    found = _old_roots(connection, root)
    if len(found) > 1:
        places = ", ".join(map(str, found))
        raise TrackingError(
            f"the store in {root} names several old places ({places}): choose one with --from, then repeat"
        )
    return found[0] if found else None
