"""What the groups of an experiment say of themselves by a few tags, without the rest of their runs.

A local store is asked by SQL: MLflow makes an object of every param and metric of every run, which takes ten times as
long as all else, and its import alone as long as an overview may. What cannot be read so is read through MLflow.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.base.layout import DATABASE
from pipeline.base.tags import GROUP, Tag, fact_tag, facts_of, stored_name
from pipeline.record.store import results
from pipeline.record.store.local import is_server

_GROUPS = """
    FROM experiments JOIN runs USING (experiment_id) JOIN tags AS role USING (run_uuid)
    WHERE experiments.name = :experiment AND runs.lifecycle_stage = 'active'
    AND role.key = :role_key AND role.value = :role
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A group's run: its times in ms since the epoch, and what its tags say."""

    name: str
    status: str
    start_ms: int
    end_ms: int | None
    facts: Mapping[str, str]


def groups(where: Path | str, experiment: str, names: Collection[str]) -> list[Told]:
    """Every group of an experiment, oldest first, with these facts at least, as far as its tags have them.

    Raises:
        TrackingError: there is no such store or experiment, or it cannot be read.
    """
    if not is_server(where) and (found := _read(Path(where) / DATABASE, experiment, names)):
        return found
    return [of(run) for run in results.find_runs(where, experiment, GROUP)]


def of(run: Any) -> Told:
    """What a run says, as MLflow has it."""
    return Told(
        name=run.info.run_name,
        status=run.info.status,
        start_ms=run.info.start_time,
        end_ms=run.info.end_time,
        facts=facts_of(run.data.tags),
    )


def _read(database: Path, experiment: str, names: Collection[str]) -> list[Told]:
    """What the database says; nothing if it cannot be read, as one whose folder may not be written."""
    # What an earlier version stored is read by the name of then.
    keys = {key: name for name in names for key in (fact_tag(name), stored_name(fact_tag(name)))}
    values = {"experiment": experiment, "role_key": Tag.ROLE.value, "role": GROUP}
    values |= {f"key{number}": key for number, key in enumerate(keys)}
    wanted = ", ".join(f":key{number}" for number in range(len(keys)))
    try:
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as store:
            store.execute("BEGIN")  # both answers are of one state
            runs = store.execute(
                f"SELECT run_uuid, runs.name, status, start_time, end_time {_GROUPS} ORDER BY start_time, run_uuid",
                values,
            ).fetchall()
            told = store.execute(
                "SELECT run_uuid, key, value FROM tags WHERE run_uuid IN "  # noqa: S608
                f"(SELECT run_uuid {_GROUPS}) AND key IN ({wanted})",
                values,
            ).fetchall()
    except sqlite3.Error:
        return []
    facts: dict[str, dict[str, str]] = defaultdict(dict)
    for run_id, key, value in told:
        facts[run_id][keys[key]] = value
    return [
        Told(name=name, status=status, start_ms=start, end_ms=end, facts=facts[run_id])
        for run_id, name, status, start, end in runs
    ]
