"""The groups of an experiment with selected tags.

A local store is read with SQL if MLflow's version is tested, otherwise through MLflow.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.base.domain.layout import DATABASE
from pipeline.base.domain.stored_names import FACTS
from pipeline.base.domain.tags import GROUP, fact_tag, read_facts, stored_name
from pipeline.base.mlflow_internals import database_tables
from pipeline.record.store import results
from pipeline.record.store.local_store import is_server


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRun:
    """The run of a group: times in ms since the epoch, and facts from its tags."""

    name: str
    status: str
    start_ms: int
    end_ms: int | None
    facts: Mapping[str, str]


def read_groups(where: Path | str, experiment: str, names: Collection[str]) -> list[GroupRun]:
    """Return all groups of an experiment, oldest first, with at least the facts `names` if their tags contain them.

    Raises:
        TrackingError: the store or experiment does not exist or is not readable.
    """
    if not is_server(where) and (runs := _read_database(Path(where) / DATABASE, experiment, names)):
        return runs
    return [convert_run(run) for run in results.find_runs(where, experiment, GROUP)]


def convert_run(run: Any) -> GroupRun:
    """Convert an MLflow run."""
    return GroupRun(
        name=run.info.run_name,
        status=run.info.status,
        start_ms=run.info.start_time,
        end_ms=run.info.end_time,
        facts=read_facts(run.data.tags),
    )


def _read_database(database: Path, experiment: str, names: Collection[str]) -> list[GroupRun]:
    """Read groups without MLflow; return an empty list if this fails, for example without write permission."""
    # Tags that earlier versions stored are read by their old names.
    old = {new: old for old, new in FACTS.items()}
    keys = {
        key: name
        for name in names
        for key in (fact_tag(name), stored_name(fact_tag(name)), *([fact_tag(old[name])] if name in old else []))
    }
    return [
        GroupRun(
            name=run.name,
            status=run.status,
            start_ms=run.start_ms,
            end_ms=run.end_ms,
            facts={keys[key]: value for key, value in run.tags.items()},
        )
        for run in database_tables.read_groups(database, experiment, keys)
    ]
