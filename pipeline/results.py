"""From MLflow back to tidy tables, and to the groups that need not run again.

Columns are named as in MLflow: `params.x`, `metrics.x`, `tags.x`. The `system/...` series are left out: a table has one
value a run, and the last sample of a series says nothing. What a run lacks is missing (NaN or None), never 0.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import TrackingError
from pipeline.store import DATABASE, Store, open_store
from pipeline.types import Result

if TYPE_CHECKING:
    import pandas as pd

GROUP, JOB = "group", "job"
ROLE_TAG = "collocation.role"
PARENT_TAG = "mlflow.parentRunId"
PAGE = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedGroup:
    """A group that ended, as `resume` needs it. What a run does not say is `None`."""

    digest: str
    result: Result
    block: int | None
    gpu_uuid: str | None
    boot_id: str | None
    run_id: str
    spool_id: str | None
    metrics: dict[str, float]
    reason: str | None = None
    first_losses: str | None = None
    settings: str | None = None


def find_finished(root_or_uri: Path | str, experiment: str) -> list[FinishedGroup]:
    """Every group of an experiment that ended, in whatever result; nothing if there is no such store or experiment.

    Args:
        root_or_uri: folder of a local store, or the URI of a tracking server.
        experiment: MLflow experiment.
    """
    store = _open(root_or_uri)
    return [] if store is None else find_finished_in(store, experiment)


def find_finished_in(store: Store, experiment: str) -> list[FinishedGroup]:
    """Like `find_finished`, in a store that is open."""
    finished = []
    for run in _runs(store, experiment, GROUP):
        tags = run.data.tags
        digest, result = tags.get("collocation.digest"), tags.get("collocation.result")
        if run.info.status == "RUNNING" or digest is None or result not in set(Result):
            continue
        block = tags.get("collocation.block")
        finished.append(
            FinishedGroup(
                digest=digest,
                result=Result(result),
                block=int(block) if block is not None and block.isdigit() else None,
                gpu_uuid=tags.get("collocation.gpu_uuid"),
                boot_id=tags.get("collocation.boot_id"),
                run_id=run.info.run_id,
                spool_id=tags.get("collocation.spool_id"),
                metrics=_figures(run),
                reason=tags.get("collocation.reason"),
                first_losses=tags.get("collocation.first_losses"),
                settings=tags.get("collocation.settings"),
            )
        )
    return finished


def load_groups(root_or_uri: Path | str, experiment: str) -> pd.DataFrame:
    """One row a group, in the order in which they began.

    Raises:
        TrackingError: there is no such store or experiment.
    """
    return _table(_existing(root_or_uri, experiment), experiment, GROUP)


def load(root_or_uri: Path | str, experiment: str) -> pd.DataFrame:
    """One row a job, its group's columns beside it with `group.` in front.

    Raises:
        TrackingError: there is no such store or experiment.
    """
    store = _existing(root_or_uri, experiment)
    jobs, groups = _table(store, experiment, JOB), _table(store, experiment, GROUP).add_prefix("group.")
    key = f"tags.{PARENT_TAG}"
    if key not in jobs:
        return jobs
    return jobs.merge(groups, how="left", left_on=key, right_on="group.run_id")


def find_runs(root_or_uri: Path | str, experiment: str, role: str) -> list[Any]:
    """Every MLflow run of one role (`GROUP` or `JOB`), oldest first, those that have not ended among them.

    Raises:
        TrackingError: there is no such store or experiment.
    """
    return _runs(_existing(root_or_uri, experiment), experiment, role)


def _open(root_or_uri: Path | str) -> Store | None:
    """The store; `None` for a folder without one, which is not made into one by looking."""
    if isinstance(root_or_uri, str) and "://" in root_or_uri:
        return open_store(Path(), root_or_uri)
    root = Path(root_or_uri)
    return open_store(root) if (root / DATABASE).exists() else None


def _existing(root_or_uri: Path | str, experiment: str) -> Store:
    store = _open(root_or_uri)
    if store is None or store.client.get_experiment_by_name(experiment) is None:
        raise TrackingError(f"there is no experiment {experiment!r} in {root_or_uri}")
    return store


def _runs(store: Store, experiment: str, role: str) -> list[Any]:
    """Every run of one role, oldest first, read page by page."""
    found = store.client.get_experiment_by_name(experiment)
    if found is None:
        return []
    runs: list[Any] = []
    token: str | None = None
    with _collector_paused():
        while True:
            page = store.client.search_runs(
                [found.experiment_id],
                f"tags.`{ROLE_TAG}` = '{role}'",
                max_results=PAGE,
                order_by=["attributes.start_time ASC"],
                page_token=token,
            )
            runs += page
            token = page.token
            if not token:
                return runs


@contextmanager
def _collector_paused() -> Iterator[None]:
    """MLflow makes an object of every tag, param and metric: collecting on the way took 60 % of reading 3,000 runs."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _figures(run: Any) -> dict[str, float]:
    return {key: value for key, value in run.data.metrics.items() if not key.startswith("system/")}


def _table(store: Store, experiment: str, role: str) -> pd.DataFrame:
    import pandas as pd

    rows = [
        {
            "run_id": run.info.run_id,
            "name": run.info.run_name,
            "status": run.info.status,
            "start_time": run.info.start_time,
            "end_time": run.info.end_time,
            **{f"params.{key}": value for key, value in run.data.params.items()},
            **{f"metrics.{key}": value for key, value in _figures(run).items()},
            **{f"tags.{key}": value for key, value in run.data.tags.items()},
        }
        for run in _runs(store, experiment, role)
    ]
    table = pd.DataFrame(rows, columns=None if rows else ["run_id", "name", "status", "start_time", "end_time"])
    for column in ("start_time", "end_time"):
        table[column] = pd.to_datetime(table[column], unit="ms", utc=True)
    return table
