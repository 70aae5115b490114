"""MLflow's database modules and tables."""

from __future__ import annotations

import itertools
import json
import math
import re
import sqlite3
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

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

_MOST_MS = 9_000_000_000_000
"""Latest start of a run, in the year 2255: pandas counts nanoseconds in 64 bits."""

_BATCH = 50
"""Runs that are inserted at a time."""

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


def read_complete_runs(database: Path, experiment_id: str) -> list[dict[str, Any]]:
    """Return the active runs of an experiment with all params, tags and points of metrics, oldest first.

    Raises:
        sqlite3.Error: the database is not readable.
    """
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as store:
        store.row_factory = sqlite3.Row
        store.execute("BEGIN")  # all queries see one state
        chosen = (int(experiment_id),)
        condition = "experiment_id = ? AND lifecycle_stage = 'active'"
        runs: dict[str, dict[str, Any]] = {
            row["run_id"]: {**row, "tags": {}, "params": {}, "metrics": {}}
            for row in store.execute(
                "SELECT run_uuid AS run_id, name, status, start_time AS start_ms, end_time AS end_ms, "  # noqa: S608
                "coalesce(user_id, '') AS user, artifact_uri FROM runs "
                f"WHERE {condition} ORDER BY start_time, run_uuid",
                chosen,
            )
        }
        for table in ("tags", "params"):
            for run_id, key, value in store.execute(
                f"SELECT run_uuid, key, value FROM {table} JOIN runs USING (run_uuid) "  # noqa: S608
                f"WHERE {condition} ORDER BY {table}.rowid",
                chosen,
            ):
                runs[run_id][table][key] = value
        for run_id, key, value, t_ms, step, is_nan in store.execute(
            "SELECT run_uuid, key, value, timestamp, step, is_nan FROM metrics JOIN runs USING (run_uuid) "  # noqa: S608
            f"WHERE {condition} ORDER BY metrics.rowid",
            chosen,
        ):
            runs[run_id]["metrics"].setdefault(key, []).append([None if is_nan else value, t_ms, step])
    return list(runs.values())


def parse_runs(lines: Iterable[str], *, has_series: bool = True) -> Iterator[dict[str, Any]]:
    """Yield the runs in lines as `read_complete_runs` writes them, without their artifact URIs.

    Without `has_series`, a metric has its newest point only.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: one is not such a run, or is listed twice.
    """
    run_ids = set[str]()
    for line in lines:
        if line == "\n":
            continue
        run = _check_run(json.loads(line))
        if run["run_id"] in run_ids:
            raise ValueError("a run is listed twice")
        run_ids.add(run["run_id"])
        if not has_series:  # of many runs, so equal texts are kept once
            newest = {key: [max(points, key=_rank_point)] for key, points in run["metrics"].items() if points}
            run["metrics"] = {sys.intern(key): points for key, points in newest.items()}
            for table in ("tags", "params"):
                run[table] = {sys.intern(key): sys.intern(text) for key, text in run[table].items()}
        yield run


def _rank_point(point: Sequence[Any]) -> tuple[int, int, float]:
    value, t_ms, step = point
    return step, t_ms, -math.inf if value is None else value


def _check_run(run: Any) -> dict[str, Any]:
    if not re.fullmatch("[0-9a-f]{32}", run["run_id"]):
        raise ValueError(f"{str(run['run_id'])[:40]!r} is not a run id")
    if run["status"] not in ("RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED"):
        raise ValueError(f"run {run['run_id']} has the unknown status {str(run['status'])[:40]!r}")
    pairs = [*run["tags"].items(), *run["params"].items()]
    texts = [*(text for pair in pairs for text in pair), *run["metrics"], run["name"], run.get("user", "")]
    if not all(type(text) is str for text in texts):
        raise TypeError(f"run {run['run_id']} has a name, tag or param that is not a text")
    "".join(texts).encode()  # half of a surrogate pair is refused
    points = [point for series in run["metrics"].values() for point in series]
    values = [value for value, _, _ in points if value is not None]
    steps = [number for _, t_ms, step in points for number in (t_ms, step)]
    times = [run["start_ms"], 0 if run["end_ms"] is None else run["end_ms"]]
    if not {int, float} >= set(map(type, values)) or not {int} >= set(map(type, (*steps, *times))):
        raise TypeError(f"run {run['run_id']} has a time or metric that is not a number")
    is_possible = all(map(math.isfinite, values)) and max(map(abs, steps), default=0) < 1 << 63
    if not is_possible or not all(0 <= time < _MOST_MS for time in times):
        raise ValueError(f"run {run['run_id']} has an impossible time or metric")
    return dict(run)


def insert_runs(database: Path, experiment_id: str, artifacts_uri: str, runs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Insert runs that a database lacks, a batch at a time; return their ids.

    Raises:
        sqlite3.Error: the database is not writable.
    """
    run_ids = list[str]()
    with closing(sqlite3.connect(database, timeout=60, isolation_level=None)) as store:
        store.execute("BEGIN IMMEDIATE")
        known = {run_id for (run_id,) in store.execute("SELECT run_uuid FROM runs")}
        new = (run for run in runs if run["run_id"] not in known)
        while batch := list(itertools.islice(new, _BATCH)):
            run_ids += (run["run_id"] for run in batch)
            store.executemany(
                "INSERT INTO runs (run_uuid, name, source_type, source_name, entry_point_name, user_id, status, "
                "start_time, end_time, source_version, lifecycle_stage, artifact_uri, experiment_id) "
                "VALUES (:run_id, :name, 'UNKNOWN', '', '', :user, :status, :start_ms, :end_ms, '', 'active', "
                ":artifacts_uri || '/' || :run_id || '/artifacts', :experiment)",
                [
                    {"user": "", **run, "artifacts_uri": artifacts_uri, "experiment": int(experiment_id)}
                    for run in batch
                ],
            )
            for table in ("tags", "params"):
                rows = [(key, value, run["run_id"]) for run in batch for key, value in run[table].items()]
                store.executemany(f"INSERT INTO {table} (key, value, run_uuid) VALUES (?, ?, ?)", rows)  # noqa: S608
            for table, choose in (("metrics", list), ("latest_metrics", lambda points: [max(points, key=_rank_point)])):
                points = [
                    (key, 0.0 if value is None else value, t_ms, run["run_id"], step, value is None)
                    for run in batch
                    for key, points in run["metrics"].items()
                    if points
                    for value, t_ms, step in choose(points)
                ]
                names = "(key, value, timestamp, run_uuid, step, is_nan) VALUES (?, ?, ?, ?, ?, ?)"
                store.executemany(f"INSERT OR IGNORE INTO {table} {names}", points)
        store.execute("COMMIT")
    return run_ids
