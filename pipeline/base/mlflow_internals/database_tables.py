"""MLflow's database modules and tables."""

from __future__ import annotations

import re
import sqlite3
from collections import defaultdict
from collections.abc import Collection
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from pipeline.base.domain.tags import GROUP, Tag
from pipeline.base.mlflow_internals import is_tried

_SQL_STORE = "mlflow.store.tracking.sqlalchemy_store"
LOGGER_OF_DATABASES = "mlflow.store.db.utils"
"""Parent of loggers that print errors with tracebacks which are also raised."""


def import_all(*, with_database: bool) -> None:
    """Import MLflow with its database modules."""
    import_module(_SQL_STORE if with_database and is_tried() else "mlflow")


def make_database(file: Path, artifacts_uri: str) -> None:
    """Create a sqlite file with MLflow's tables and its experiment Default."""
    if is_tried():
        import_module(_SQL_STORE).SqlAlchemyStore(f"sqlite:///{file}", artifacts_uri).engine.dispose()
    else:
        import_module("mlflow").MlflowClient(f"sqlite:///{file}").search_experiments(max_results=1)


TABLES = frozenset({"experiments", "runs"})
REVISION = re.compile(r"[0-9a-f]{12,13}")
"""The form of revisions of MLflow's schema, which alembic stores in the database."""

PATH_COLUMNS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
    ("trace_tags", "value"),
    ("workspaces", "default_artifact_root"),
    ("workspaces", "trace_archival_location"),
)
"""Columns with absolute artifact paths. Columns that a store lacks are skipped."""

_GROUPS = """
    FROM experiments JOIN runs USING (experiment_id) JOIN tags AS role USING (run_uuid)
    WHERE experiments.name = :experiment AND runs.lifecycle_stage = 'active'
    AND role.key = :role_key AND role.value = :role
"""


class StoredRun(NamedTuple):
    """A run with some of its tags. Times are in ms since the epoch."""

    name: str
    status: str
    start_ms: int
    end_ms: int | None
    tags: dict[str, str]


def list_revisions() -> tuple[str | None, frozenset[str]] | None:
    """Return the newest and all known schema revisions of the installed MLflow; `None` if the version is untested."""
    if not is_tried():
        return None
    from alembic.script import ScriptDirectory

    revisions = ScriptDirectory(str(Path(str(import_module("mlflow.store.db_migrations").__file__)).parent))
    return revisions.get_current_head(), frozenset(script.revision for script in revisions.walk_revisions())


def read_experiment(database: Path, name: str, timeout_s: float) -> tuple[str, str] | None:
    """Return the lifecycle stage and the artifact location of an experiment; `None` if there is none.

    Raises:
        sqlite3.Error: the database is not readable.
    """
    statement = "SELECT lifecycle_stage, artifact_location FROM experiments WHERE name = ?"
    with closing(sqlite3.connect(database, timeout=timeout_s)) as connection:
        row: tuple[str, str] | None = connection.execute(statement, (name,)).fetchone()
    return row


def read_groups(database: Path, experiment: str, keys: Collection[str]) -> list[StoredRun]:
    """Return the runs of groups, oldest first, with these tags; none if the database or MLflow is not supported."""
    if not is_tried():
        return []
    values = {"experiment": experiment, "role_key": Tag.ROLE.value, "role": GROUP}
    values |= {f"key{number}": key for number, key in enumerate(keys)}
    placeholders = ", ".join(f":key{number}" for number in range(len(keys)))
    order = "ORDER BY start_time, run_uuid"
    try:
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as store:
            store.execute("BEGIN")  # both queries see one state
            runs = store.execute(f"SELECT run_uuid, runs.name, status, start_time, end_time {_GROUPS} {order}", values)
            rows = runs.fetchall()
            pairs = store.execute(
                "SELECT run_uuid, key, value FROM tags WHERE run_uuid IN "  # noqa: S608
                f"(SELECT run_uuid {_GROUPS}) AND key IN ({placeholders})",
                values,
            ).fetchall()
    except sqlite3.Error:
        return []
    tags: dict[str, dict[str, str]] = defaultdict(dict)
    for run_id, key, value in pairs:
        tags[run_id][key] = value
    return [StoredRun(name, status, start, end, tags[run_id]) for run_id, name, status, start, end in rows]


def read_artifact_locations(connection: sqlite3.Connection) -> list[str]:
    """Return the artifact locations of the experiments in a database."""
    return [row[0] for row in connection.execute("SELECT artifact_location FROM experiments") if row[0]]


def move_paths(connection: sqlite3.Connection, old: Path, new: Path) -> dict[str, int]:
    """Move artifact paths from below one folder to below another; return the number of rows by `table.column`."""
    counts: dict[str, int] = {}
    for table, column in PATH_COLUMNS:
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
