"""Relocation of a moved local store: rewrites the absolute paths in its database. Does not import MLflow."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from pipeline.base.domain.layout import DATABASE, STORE_LOCK
from pipeline.base.system import locks
from pipeline.base.system.errors import ConfigError, TrackingError
from pipeline.record.store.local_store import BUSY_TIMEOUT_S, find_foreign_root

_PATH_COLUMNS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
    ("trace_tags", "value"),
    ("workspaces", "default_artifact_root"),
    ("workspaces", "trace_archival_location"),
)
"""Columns with absolute artifact paths, which MLflow does not change. Columns that a store lacks are skipped."""


def relocate(root: Path, old_root: Path | None = None) -> dict[str, int]:
    """Rewrite the artifact paths of a moved store; return the number of rewritten rows by `table.column`.

    By default, the former folder is read from the database.

    Raises:
        ConfigError: `root` contains no store.
        TrackingError: the database cannot be rewritten, or contains paths of several former folders.
    """
    root = root.absolute()
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
            old = old_root.absolute() if old_root else _find_old_root(connection, root)
            counts = {} if old is None or old == root else _move_paths(connection, old, root)
            elsewhere = _find_old_roots(connection, root)
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
    rows = connection.execute("SELECT artifact_location FROM experiments")
    locations = [location for (location,) in rows if location]
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


def _move_paths(connection: sqlite3.Connection, old: Path, new: Path) -> dict[str, int]:
    """Move artifact paths from below one folder to below another; return the number of rows by `table.column`."""
    counts: dict[str, int] = {}
    for table, column in _PATH_COLUMNS:
        if column not in {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}:
            continue
        for before, after in ((f"{old.as_uri()}/", f"{new.as_uri()}/"), (f"{old}/", f"{new}/")):
            # Names come from the constant above; values are bound.
            statement = f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?"  # noqa: S608
            changed = connection.execute(statement, (after, len(before) + 1, len(before), before)).rowcount
            if changed:
                key = f"{table}.{column}"
                counts[key] = counts.get(key, 0) + changed
    return counts
