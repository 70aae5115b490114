"""What the groups of an experiment say of themselves by a few tags, without the rest of their runs.

A local store is read by SQL, where MLflow is one of those that were tried; another one through MLflow.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.base.domain.layout import DATABASE
from pipeline.base.domain.tags import GROUP, fact_tag, facts_of, stored_name
from pipeline.base.mlflow_internals import database_tables
from pipeline.record.store import results
from pipeline.record.store.local import is_server


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
    """Read groups without MLflow; none if that cannot be done, as in a folder that may not be written."""
    # What an earlier version stored is read by the name of then.
    keys = {key: name for name in names for key in (fact_tag(name), stored_name(fact_tag(name)))}
    return [
        Told(
            name=run.name,
            status=run.status,
            start_ms=run.start_ms,
            end_ms=run.end_ms,
            facts={keys[key]: value for key, value in run.tags.items()},
        )
        for run in database_tables.read_groups(database, experiment, keys)
    ]
