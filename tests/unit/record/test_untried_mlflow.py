"""MLflow of a version that this project was not tried with: less is shown, nothing fails, one line says so."""

from __future__ import annotations

import logging
import re
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline import tracking
from pipeline.base import mlflow_internals
from pipeline.base.domain.layout import DATABASE
from pipeline.base.domain.tags import Tag
from pipeline.base.mlflow_internals import database_tables, pages
from pipeline.record.store import database_schema
from pipeline.record.store.links import make_ui_link
from pipeline.record.store.local_store import open_store, set_mlflow_defaults
from tests.support.tracking_cases import EXPERIMENT, PROJECT, client

pytest_plugins = ["tests.support.tracking_fixtures"]


@pytest.fixture
def untried(monkeypatch):
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "3.99.1" if name.startswith("mlflow") else real(name))
    mlflow_internals.warn_if_untried.cache_clear()
    yield
    mlflow_internals.warn_if_untried.cache_clear()


@pytest.mark.parametrize(
    ("number", "is_tried"),
    [("3.17.0", True), ("3.17.2.dev0", True), ("3.16.9", False), ("3.18", False), ("4.17.0", False), ("4", False)],
)
def test_the_range_of_versions(monkeypatch, number: str, is_tried: bool) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: number)
    assert mlflow_internals.is_tried() is is_tried


def test_the_installed_version_was_tried_and_pyproject_allows_it() -> None:
    assert mlflow_internals.is_tried()
    [(low, high)] = re.findall(r'"mlflow>=([\d.]+),<([\d.]+)"', (PROJECT / "pyproject.toml").read_text())
    first, end = mlflow_internals.TRIED
    assert first == tuple(map(int, low.split("."))) and end <= tuple(map(int, high.split(".")))


def test_nothing_else_knows_what_is_private() -> None:
    private = re.compile(r"mlflow\.(store|utils|_)|viewState|FROM (experiments|runs|tags)\b|\.artifact\.uploading")
    home = PROJECT / "pipeline" / "base" / "mlflow_internals"
    files = [file for name in ("pipeline", "listeners", "hydra_plugins") for file in (PROJECT / name).rglob("*.py")]
    knowing = {file for file in files if private.search(file.read_text(encoding="utf-8"))}
    assert {file.parent for file in knowing} == {home}


def test_a_tried_version_is_not_worth_a_line(caplog) -> None:
    mlflow_internals.warn_if_untried.cache_clear()
    set_mlflow_defaults()
    assert not caplog.records


def test_one_line_says_what_is_lost(untried, caplog) -> None:
    for _ in range(2):
        set_mlflow_defaults()
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert line.startswith("MLflow 3.99.1 is untested: its UI lacks the study's columns, ")
    assert line.endswith("; run pip install 'mlflow>=3.17,<3.18'") and "\n" not in line


@pytest.mark.slow
def test_a_store_is_made_used_and_upgraded_without_what_is_private(
    untried, tmp_path: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    imported, upgrades = [], []
    monkeypatch.setattr(database_tables, "import_module", lambda name: imported.append(name) or __import__(name))
    root = tmp_path / "store"
    store = open_store(root)
    experiment_id = store.open_experiment(EXPERIMENT, {"samples"})
    run = store.client.create_run(experiment_id, start_time=1, run_name="a", tags={Tag.ROLE: "group"})
    store = open_store(root)
    assert store.open_experiment(EXPERIMENT, {"requests"}) == experiment_id
    assert imported == ["mlflow"]
    assert pages.VIEW_TAG not in client(root).get_experiment(experiment_id).tags
    assert make_ui_link("http://h:1", "3") == "http://h:1/#/experiments/3/runs?workflowType=machine_learning"
    assert database_tables.read_groups(root / DATABASE, EXPERIMENT, [Tag.ROLE]) == []
    ended = SimpleNamespace(returncode=0)
    monkeypatch.setattr(database_schema.subprocess, "run", lambda argv, **_: upgrades.append(argv[3:6]) or ended)
    assert tracking.main(["upgrade", "--root", str(root)]) == 0
    assert upgrades == [["mlflow", "db", "upgrade"]]
    assert f"upgraded {root / DATABASE} for MLflow 3.99.1" in capsys.readouterr().out
    assert client(root).get_run(run.info.run_id).info.run_name == "a"


def test_status_says_the_same_through_mlflow(root: Path, request, capsys) -> None:
    store = open_store(root)
    tags = {Tag.ROLE: "group", "collocation.plan": "p", "collocation.plan_shards": "1x1", "collocation.plan_shard": "1"}
    tags |= {Tag.DIGEST: "d", Tag.RESULT: "ok"}
    run = store.client.create_run(store.open_experiment("e"), start_time=1, run_name="a", tags=tags)
    store.client.set_terminated(run.info.run_id, end_time=9)

    def status() -> str:
        assert tracking.main(["status", "--root", str(root), "--experiment", "e", "--json"]) == 0
        return capsys.readouterr().out

    tried = status()
    request.getfixturevalue("untried")
    assert status() == tried
