"""A bundle of a tracking server: equal to the bundle of the store that its runs came from."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from pipeline.record.store import bundle, bundle_archive
from pipeline.record.store.local_store import open_store
from pipeline.report import bundle_command
from tests.support.bundles import EXPERIMENT, make_runs
from tests.support.mlflow_server import kill, start_server
from tests.support.slurm_cluster import free_ports

pytestmark = [pytest.mark.slow, pytest.mark.covers("pipeline/record/store", "pipeline/report")]


def test_a_server_and_a_store_give_the_same_runs_and_artifacts(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    server = start_server(tmp_path, port)
    try:
        uri = f"http://127.0.0.1:{port}"
        runs = send(uri)
        out = tmp_path / "study.tar.xz"
        assert bundle_command.main(["--uri", uri, "--experiment", EXPERIMENT, "--out", str(out)]) == 0
        assert bundle_command.main(["--uri", uri, "--experiment", "none", "--out", str(out)]) == 2
    finally:
        kill(server)
    folder = tmp_path / "extracted"
    folder.mkdir()
    assert bundle_archive.extract(out, folder) == EXPERIMENT
    read = [json.loads(line) for line in (folder / bundle_archive.RUNS).read_text().splitlines()]
    assert [run["name"] for run in read] == [run["name"] for run in runs]
    assert [run["metrics"] for run in read] == [run["metrics"] for run in runs]
    (data,) = {run["params"].get("--data") for run in read} - {None}
    assert re.fullmatch(r"\$FOLDER_[0-9a-f]{6}/images", data) and "a246bb" not in data  # the digest without a salt
    stdout = folder / "artifacts" / read[0]["run_id"] / "logs" / "stdout.log"
    assert stdout.read_text() == "$WORKING_FOLDER/x\n"
    assert bundle.open_bundle(out).client.get_experiment_by_name(EXPERIMENT) is not None


def send(uri: str) -> list[dict]:
    """Log the runs of a study to a server, the last one with NaN and several points."""
    client = open_store(Path(), uri).client
    experiment_id = client.create_experiment(EXPERIMENT)
    runs = make_runs()[:3]
    runs[-1]["metrics"]["loss"] = [[2.0, 5, 0], [None, 7, 1], [1.5, 9, 2]]
    for number, run in enumerate(runs):
        run["start_ms"] += number  # the order of runs that start together depends on their ids
        sent = client.create_run(experiment_id, start_time=run["start_ms"], tags=run["tags"], run_name=run["name"])
        run_id = sent.info.run_id
        for key, value in run["params"].items():
            client.log_param(run_id, key, value)
        for key, points in run["metrics"].items():
            for value, t_ms, step in points:
                client.log_metric(run_id, key, float("nan") if value is None else value, t_ms, step)
        client.set_terminated(run_id, end_time=run["end_ms"])
        if run is runs[0]:
            client.log_text(run_id, "/home/alice/study/x\n", "logs/stdout.log")
    return runs
