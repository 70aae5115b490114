"""The runs of an experiment as a store has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.base.domain.tags import GROUP, JOB, PREFIX
from tests import fail_everywhere

_OF_EXPERIMENT = "FROM runs JOIN experiments USING (experiment_id) {} WHERE experiments.name = '{}'"
_ORDER = " ORDER BY runs.start_time, runs.rowid"


@dataclass(slots=True)
class StoredRun:
    """One run: of a group, or of a job, whose `parent` is that of its group.

    Attributes:
        tags: ours have their names without the prefix.
    """

    run_id: str
    name: str
    status: str
    tags: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def parent(self) -> str | None:
        return self.tags.get("mlflow.parentRunId")

    @property
    def is_invalid(self) -> bool:
        return "invalid" in self.tags

    @property
    def marks(self) -> str:
        """Return why the row is invalid, and what is noted beside it."""
        return "; ".join(
            text for tag in ("invalid", "stalled", "flag", "damaged_events") if (text := self.tags.get(tag))
        )


def read_runs(database: Path, experiment: str) -> list[StoredRun]:
    """Read the runs of an experiment, in the order in which they began; none of a store that is not there."""
    if not database.exists():
        return []

    def select(columns: str, join: str = "", then: str = "") -> Sequence[Sequence[object]]:
        return fail_everywhere.query(database, f"SELECT {columns} {_OF_EXPERIMENT.format(join, experiment)}{then}")

    rows = select("runs.run_uuid, runs.name, runs.status", then=_ORDER)
    runs = {str(run_id): StoredRun(str(run_id), str(name), str(status)) for run_id, name, status in rows}
    for run_id, key, value in select("runs.run_uuid, tags.key, tags.value", "JOIN tags USING (run_uuid)"):
        if str(run_id) in runs:  # and has not begun since
            runs[str(run_id)].tags[str(key)] = str(value)
    for run in runs.values():
        # Tags for programs have the prefix of MLflow's own tags.
        names = {key: key.removeprefix("mlflow.") for key in run.tags if key.startswith(f"mlflow.{PREFIX}")}
        run.tags = {names.get(key, key).removeprefix(PREFIX): value for key, value in run.tags.items()}
    of_metrics = "JOIN latest_metrics metric USING (run_uuid)"
    for run_id, key, metric in select("runs.run_uuid, metric.key, metric.value", of_metrics, " AND NOT metric.is_nan"):
        if str(run_id) in runs:
            runs[str(run_id)].metrics[str(key)] = float(str(metric))
    return list(runs.values())


def groups_of(runs: Sequence[StoredRun]) -> list[StoredRun]:
    return [run for run in runs if run.tags.get("role") == GROUP]


def jobs_of(runs: Sequence[StoredRun], group: StoredRun) -> list[StoredRun]:
    return [run for run in runs if run.tags.get("role") == JOB and run.parent == group.run_id]
