"""Bundles and stores of the state before records become bundles whose figures are the same."""

from __future__ import annotations

import io
import json
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks import convert_bundle
from pipeline.base.domain.records import Result
from pipeline.base.domain.window import WindowKind
from pipeline.record.store import bundle_archive, bundle_reader
from pipeline.report.read import rows

GROUP_ID, JOB_ID = "a" * 32, "b" * 32
SETTINGS = {"device": "H100", "window": "steady, 5 s after 1 s", "neighbours": "1x tiny", "GPUs beside": "1"}


def make_runs() -> list[dict[str, Any]]:
    """Return a group and its job, as MLflow had them, with names of an earlier version."""
    common = {
        "collocation.study": "s",
        "collocation.block": "2",
        "collocation.device": "H100",
        "collocation.gpu_uuid": "GPU-1",
        "collocation.plan_unit": "3",
        "collocation.plan_units": "1x3",
        "collocation.beside": "1",
        "collocation.host": "h",
        "collocation.command_line": "run.py unit=1 gpu.beside=1 degree=2 -- train.py unit=1",
        "collocation.result": "ok",
    }
    planned = json.dumps({"settings": SETTINGS, "options": {"profile": "auto"}})
    later = json.dumps([{"plan": "p2", "plan_units": "2x1", "plan_unit": "2"}])
    group = common | {
        "collocation.role": "group",
        "mlflow.collocation.digest": "d",
        "mlflow.collocation.planned": planned,
        "mlflow.collocation.rates": "{}",
        "mlflow.collocation.taken_over_by": later,
        "collocation.stalled": "job 1 stalled",
        "collocation.flag": "job 1 stalled; slow",
    }
    job = common | {
        "collocation.role": "job",
        "collocation.index": "0",
        "collocation.workload_digest": "w",
        "mlflow.parentRunId": GROUP_ID,
        "collocation.start_ns": "5000000",
        "note of a script": "hello",
    }
    window = {"scenario": "naive", "window": "steady", "window_seconds": "5", "window_settle_s": "1"}
    times = {"status": "FINISHED", "start_ms": 1_700_000_000_000, "end_ms": 1_700_000_009_000, "user": "u"}
    metrics = {"loss": [[2.0, 1_700_000_001_000, 0], [1.5, 1_700_000_002_000, 1]], "rate": [[3.5, 5, 0]]}
    sampled = {"system/nvml/power_w": [[70.0, 5, 0]], "lost": [[None, 5, 0]], "neighbours_rate": [[1.0, 5, 0]]}
    return [
        {
            "run_id": GROUP_ID,
            "name": "g",
            **times,
            "tags": group,
            "params": window,
            "metrics": {**sampled, "a": [[1, 5, 0]]},
        },
        {
            "run_id": JOB_ID,
            "name": "0-tiny",
            **times,
            "tags": job,
            "params": {"workload": "tiny", "unit": "samples", "place.device": "GPU-1", "place.gi_id": "3"},
            "metrics": metrics,
        },
    ]


def write_old_bundle(file: Path) -> None:
    head = {"kind": "collocation bundle", "version": 1, "experiment": "e", "files": {}}
    lines = "".join(f"{json.dumps(run)}\n" for run in make_runs())
    contents = {"manifest.json": json.dumps(head), "runs.jsonl": lines, f"artifacts/{JOB_ID}/stdout.log": "hi"}
    with tarfile.open(file, "w:xz") as archive:
        for name, text in contents.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))


def write_old_store(root: Path) -> None:
    tables = {
        "experiments": "experiment_id, name",
        "runs": "run_uuid, name, status, start_time, end_time, artifact_uri, experiment_id, lifecycle_stage",
        "tags": "key, value, run_uuid",
        "params": "key, value, run_uuid",
        "metrics": "key, value, timestamp, step, is_nan, run_uuid",
    }
    root.mkdir()
    with closing(sqlite3.connect(root / "mlflow.db")) as store, store:
        for name, columns in tables.items():
            store.execute(f"CREATE TABLE {name} ({columns})")
        store.execute("INSERT INTO experiments VALUES (1, 'e')")
        for run in make_runs():
            run_id, uri = run["run_id"], f"file:///former/artifacts/e/{run['run_id']}/artifacts"
            values = (run_id, run["name"], run["status"], run["start_ms"], run["end_ms"], uri, 1, "active")
            store.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", values)
            for table in ("tags", "params"):
                pairs = [(key, text, run_id) for key, text in run[table].items()]
                store.executemany(f"INSERT INTO {table} VALUES (?, ?, ?)", pairs)
            for key, points in run["metrics"].items():
                for value, t_ms, step in points:
                    point = (key, 0.0 if value is None else value, t_ms, step, value is None, run_id)
                    store.execute("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", point)
    artifacts = root / "artifacts" / "e" / JOB_ID / "artifacts"
    artifacts.mkdir(parents=True)
    (artifacts / "stdout.log").write_text("hi")


@pytest.fixture(params=["bundle", "store"])
def old(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "old"
    (write_old_bundle if request.param == "bundle" else write_old_store)(path)
    return path


def test_what_was_stored_before_is_a_record_with_present_names(old: Path, tmp_path: Path, capsys) -> None:
    new = tmp_path / "new.tar.xz"
    assert convert_bundle.main([str(old), str(new), "--experiment", "e"]) == 0
    assert convert_bundle.main([str(old), str(new), "--experiment", "e", "--check"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("2 runs compared, 0 differences")
    (group,) = bundle_reader.read_records(new)[1]
    (job,) = group.jobs
    assert (group.result, group.block, group.shard, group.digest) == (Result.OK, 2, 3, "d")
    assert (group.facts["plan_shards"], group.facts["other_gpus"]) == ("1x3", "1")
    assert group.facts["command_line"] == "run.py shard=1 gpu.other_gpus=1 degree=2 -- train.py unit=1"
    assert list(group.settings) == ["device", "window", "co-runners", "other GPUs"]
    assert (group.marks.invalid, group.marks.note) == ("job 1 stalled", "slow")
    assert group.later_plans == ({"plan": "p2", "plan_shards": "2x1", "plan_shard": "2"},)
    assert group.window is not None and (group.window.kind, group.window.seconds) == (WindowKind.STEADY, 5.0)
    assert group.metrics == {"a": 1.0, "co_runners_rate": 1.0} and job.metrics == {"loss": 1.5, "rate": 3.5}
    assert (job.params["work_unit"], job.placement, job.gi_id) == ("samples", {"device": "GPU-1", "gi_id": "3"}, 3)
    assert (job.start_ns, job.script_tags) == (5_000_000, {"note of a script": "hello"})
    assert (bundle_reader.locate(new, JOB_ID) / "stdout.log").read_text() == "hi"
    (row,) = rows.read([new], "e").rows
    assert (row.run_id, row.block, row.jobs[0].metrics["rate"]) == (GROUP_ID, 2, 3.5)


def test_the_check_names_what_differs(tmp_path: Path, capsys, monkeypatch) -> None:
    write_old_bundle(tmp_path / "old")
    assert convert_bundle.main([str(tmp_path / "old"), str(tmp_path / "new")]) == 0
    changed = make_runs()
    changed[1]["metrics"]["rate"] = [[3.6, 5, 0]]
    monkeypatch.setattr(convert_bundle, "read_old", lambda *_: ("e", list(map(convert_bundle._rename, changed)), {}))
    assert convert_bundle.main([str(tmp_path / "old"), str(tmp_path / "new"), "--check"]) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith(f"metrics of {JOB_ID}: ") and printed.out.endswith("2 runs compared, 1 differences\n")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", "unable to open database file; check both paths"),
        ("note.txt", "not an lzma file; check both paths"),
        ("new.tar.xz", "is a bundle of this version; use it as it is"),
    ],
)
def test_an_unusable_input_is_one_line(tmp_path: Path, capsys, name: str, message: str) -> None:
    (tmp_path / "note.txt").write_text("no bundle")
    bundle_archive.write(tmp_path / "new.tar.xz", "study", {f"{bundle_archive.GROUPS}/a/record.json": b"{}"})
    assert convert_bundle.main([str(tmp_path / name), str(tmp_path / "out.tar.xz")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.endswith(f"{message}\n") and error.count("\n") == 1
    assert not (tmp_path / "out.tar.xz").exists()


def test_a_store_without_runs_of_the_experiment_is_one_line(tmp_path: Path, capsys) -> None:
    store = tmp_path / "old"
    write_old_store(store)
    assert convert_bundle.main([str(store), str(tmp_path / "out.tar.xz"), "--experiment", "absent"]) == 2
    assert "has no runs of experiment absent; choose another with --experiment" in capsys.readouterr().err
