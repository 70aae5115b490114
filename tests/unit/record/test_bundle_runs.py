"""Runs that are read from a bundle without a database are those of its store."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.domain.tags import GROUP, JOB
from pipeline.base.mlflow_internals import database_tables
from pipeline.base.system.errors import TrackingError
from pipeline.record.store import bundle, results
from pipeline.record.store.local_store import Store, open_store

pytest_plugins = ["tests.support.tracking_fixtures"]

RUN: dict[str, Any] = {
    "run_id": "0123456789abcdef" * 2,
    "name": "naive-2x-toy",
    "status": "FINISHED",
    "start_ms": 1_700_000_000_000,
    "end_ms": None,
    "user": "",
    "tags": {"a": "1", "collocation.role": "group", "collocation.neighbour": "old name"},
    "params": {"degree": "2"},
    "metrics": {
        "loss": [[2.0, 5, 0], [None, 7, 1], [1.5, 9, 2]],
        "speed": [[3.5, 5, 0]],
        "late": [[1, 5, 0], [None, 6, 0]],
    },
}


@pytest.fixture
def store(tmp_path: Path, template_store: Path) -> Store:
    """A store with two groups of the experiment `study`."""
    shutil.copytree(template_store, tmp_path / "mlruns")
    opened = open_store(tmp_path / "mlruns")
    experiment_id = opened.open_experiment("study")
    artifacts = tmp_path / "mlruns" / "artifacts" / "study"
    runs = [RUN, {**RUN, "run_id": "f" * 32, "start_ms": RUN["start_ms"] + 1}]
    database_tables.insert_runs(tmp_path / "mlruns" / "mlflow.db", experiment_id, artifacts.as_uri(), runs)
    for run in runs:
        (artifacts / run["run_id"] / "artifacts").mkdir(parents=True)
        (artifacts / run["run_id"] / "artifacts" / "group.json").write_text("{}")
    return opened


def list_parts(run: Any) -> list[object]:
    about = [run.info.run_id, run.info.run_name, run.info.status, run.info.start_time, run.info.end_time]
    return [*about, run.data.tags, run.data.params, {key: repr(number) for key, number in run.data.metrics.items()}]


def test_runs_are_read_from_a_bundle_as_from_its_store(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "study.tar.xz"
    bundle.export(store, "study", file)
    both = [results.find_runs(file, "study", GROUP), results.read_runs(store, "study", GROUP)]
    from_file, from_store = ([*map(list_parts, runs)] for runs in both)
    assert from_file == from_store and len(from_file) == 2
    assert results.find_runs(file, "study", JOB) == []
    with pytest.raises(TrackingError, match="has no experiment 'none'; available: 'study'"):
        results.find_runs(file, "none", GROUP)
