"""Reports of bundles: equal to the report of the store, and equal in every surrounding; bad bundles in one line."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline import tracking
from pipeline.base.mlflow_internals import database_tables
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.planner import __main__ as planner
from pipeline.record.store import bundle, bundle_archive
from pipeline.record.store.local_store import open_store
from pipeline.report import __main__ as report
from pipeline.report.read import rows
from pipeline.report.read.stores import named_stores
from tests.support.bundles import EXPERIMENT, copy_groups, make_runs

pytest_plugins = ["tests.support.tracking_fixtures"]


def test_a_store_and_its_bundle_give_equal_rows_without_paths(root: Path, tmp_path: Path) -> None:
    store = open_store(root)
    artifacts = root / "artifacts" / EXPERIMENT
    artifacts.mkdir(parents=True)
    experiment_id = store.open_experiment(EXPERIMENT)
    database_tables.insert_runs(root / "mlflow.db", experiment_id, artifacts.as_uri(), make_runs())
    bundle.export(store, EXPERIMENT, tmp_path / "study.tar.xz")
    by_store = [rows.read([where], EXPERIMENT) for where in (root, tmp_path / "study.tar.xz")]
    of_store, of_bundle = (
        dataclasses.replace(study, rows=tuple(dataclasses.replace(row, store="") for row in study.rows))
        for study in by_store
    )
    assert len(of_store.rows) == 9 and of_store == of_bundle
    text = repr(of_store)
    assert "$TMPDIR/study" in text and "host-" in text
    assert not [word for word in ("/fast", "alice", "node-17", "/home", "/opt") if word in text]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fractions_h100", "robroek_quick_h100", "sensitivity_pairs_h100"])
def test_the_report_of_a_bundle_is_equal_byte_for_byte_in_another_surrounding(name: str, tmp_path: Path) -> None:
    # Of services, mixes and stressors. `make docs` makes the reports of all bundles.
    file = PROJECT_DIR / "docs" / "results" / f"{name}.tar.xz"
    elsewhere = tmp_path / "another folder" / "copy.tar.xz"
    elsewhere.parent.mkdir()
    (tmp_path / "scratch").mkdir()
    shutil.copy(file, elsewhere)
    surroundings = [
        (file, {"PYTHONHASHSEED": "1", "TZ": "UTC", "LC_ALL": "C.UTF-8"}),
        (
            elsewhere,
            {"PYTHONHASHSEED": "2", "TZ": "Asia/Tokyo", "LC_ALL": "C", "LANG": "tr_TR.UTF-8", "HOME": str(tmp_path)}
            | {"TMPDIR": str(tmp_path / "scratch"), "USER": "somebody"},
        ),
    ]
    contents = []
    for number, (bundle_file, environ) in enumerate(surroundings):
        folder = tmp_path / f"report{number}"
        command = [sys.executable, "-m", "pipeline.report", "--experiment", read_experiment(bundle_file)]
        command += ["--root", str(bundle_file), "--out", str(folder), "--no-log"]
        subprocess.run(command, check=True, cwd=PROJECT_DIR, env={**os.environ, **environ}, capture_output=True)
        contents.append({path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()})
    first, second = contents
    assert {path.suffix for path in first} >= {".html", ".csv", ".svg", ".json"}
    assert [path for path in first.keys() | second.keys() if first.get(path) != second.get(path)] == []


def read_experiment(file: Path) -> str:
    store = bundle.open_bundle(file)
    return next(e.name for e in store.client.search_experiments() if e.name != "Default")


COMMANDS: dict[str, Callable[[str, str], int]] = {
    "report": lambda file, out: report.main(["--root", file, "--experiment", "study", "--out", out]),
    "board": lambda file, out: report.main(["board", "--root", file, "--experiment", "study", "--out", out]),
    "export": lambda file, out: report.main(["export", "--root", file, "--experiment", "study", "--out", out]),
    "planner": lambda file, out: planner.main(["profile", "--root", file, "--experiment", "study", "--out", out]),
    "import": lambda file, out: tracking.main(["import", "--root", out, file]),
}


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_refuses_a_bad_bundle_in_one_line_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in (("text.tar.xz", b"text"), ("cut.tar.xz", b"\xfd7zXZ\x00\x00\x04"), ("empty.tar.xz", b"")):
        (tmp_path / name).write_bytes(content)
        assert COMMANDS[command](name, str(tmp_path / "out")) == 2
        error = capsys.readouterr().err
        assert error.startswith("error: ") and error.count("\n") == 1 and f"{name} is not a complete bundle" in error
        assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_bundle_needs_no_name_of_its_experiment(tmp_path: Path) -> None:
    file = tmp_path / "study.tar.xz"
    lines = "".join(f"{json.dumps(run)}\n" for run in make_runs())
    bundle_archive.write(file, EXPERIMENT, {bundle_archive.RUNS: lines.encode()})
    options = report.make_parser().parse_args(["--root", str(file)])
    assert named_stores(options) == [file] and options.experiment == EXPERIMENT


def write_changed(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Write a bundle whose runs were changed by a stranger."""
    runs = make_runs()
    for run in runs:
        change(run)
    lines = "".join(f"{json.dumps(run)}\n" for run in runs)
    bundle_archive.write(file, EXPERIMENT, {bundle_archive.RUNS: lines.encode()})


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("role", "table", "key", "text"),
    [
        ("job", "tags", "collocation.index", "0x"),
        ("job", "params", "dial", "half"),
        ("job", "params", "objective_ms", "fast"),
        ("group", "params", "window", "zzz"),
        ("group", "tags", "collocation.baseline_run", "x"),
        ("group", "tags", "collocation.turns", "[1]"),
        ("group", "tags", "collocation.figures", '{"a": 1}'),
        ("group", "tags", "collocation.taken_over_by", "5"),
    ],
)
def test_a_value_of_another_form_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], role: str, table: str, key: str, text: str
) -> None:
    file = tmp_path / "study.tar.xz"
    write_changed(file, lambda run: run["tags"]["collocation.role"] == role and run[table].update({key: text}))
    assert (
        report.main(["--root", str(file), "--experiment", EXPERIMENT, "--out", str(tmp_path / "out"), "--no-log"]) == 2
    )
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"{table[:-1]} {key}={text!r}" in error and "error: run 0" in error


@pytest.mark.parametrize("text", ["²", "5 GiB", ""])
def test_a_fact_that_is_no_number_is_missing(tmp_path: Path, text: str) -> None:
    facts = dict.fromkeys(("block", "start_ns", "end_ns", "cpus", "multiprocessors", "plan_groups"), text)
    tags = {f"collocation.{key}": value for key, value in facts.items()}
    write_changed(tmp_path / "study.tar.xz", lambda run: run["tags"].update(tags))
    study = rows.read([tmp_path / "study.tar.xz"], EXPERIMENT)
    assert study.rows and {row.multiprocessors for row in study.rows} == {None}


@pytest.mark.slow
def test_no_command_prints_the_control_characters_of_a_bundle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    escape = "\x1b]52;c;cm0gLXJmIH4K\x07\x1b[31m\x9b1m\u202e\r"
    file = tmp_path / "study.tar.xz"

    def change(run: dict[str, Any]) -> None:
        run["name"] += escape
        run["params"]["workload"] = f"tiny{escape}"
        run["tags"]["collocation.device"] += escape
        run["tags"]["collocation.planned"] = run["tags"]["collocation.planned"].replace("HBM3", "HBM3\\u001b[31m")

    write_changed(file, change)
    for command in (
        ["compare", str(file), str(file)],
        ["--root", str(file), "--experiment", EXPERIMENT, "--out", str(tmp_path / "out"), "--no-log"],
        ["--root", str(file), "--experiment", EXPERIMENT, "--group", "x", "--out", str(tmp_path / "out"), "--no-log"],
    ):
        report.main(command)
        printed = "".join(capsys.readouterr())
        assert len(printed) > 80 and not set(printed) & set("\x1b\x07\x9b\u202e\r")


def test_the_settings_of_a_bundle_hold_no_control_character(tmp_path: Path) -> None:
    file = tmp_path / "study.tar.xz"
    planned = "collocation.planned"
    write_changed(file, lambda run: run["tags"].update({planned: run["tags"][planned].replace("5 s", "\\u001b[31m")}))
    study = rows.read([file], EXPERIMENT)
    assert "[31m" in str(study.rows[0].settings) and "\x1b" not in "".join(map("".join, study.rows[0].settings))


READING = """
import resource, sys
from pathlib import Path
from pipeline.record.store.store_access import open_named
from pipeline.report.read import rows
open_named(Path(sys.argv[1]))
print(len(rows.read([Path(sys.argv[1])], sys.argv[2]).rows), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_the_memory_of_a_bundle_grows_by_its_groups_not_by_their_series(tmp_path: Path) -> None:
    source = PROJECT_DIR / "docs" / "results" / "robroek_cait_h100.tar.xz"
    peaks = {}
    for number in (30, 300):
        copy_groups(source, tmp_path / "copies.tar.xz", number)
        command = [sys.executable, "-c", READING, str(tmp_path / "copies.tar.xz"), "robroek_cait"]
        done = subprocess.run(command, cwd=PROJECT_DIR, check=True, capture_output=True, text=True)
        num_rows, peaks[number] = map(int, done.stdout.split())
        assert num_rows == number
    assert (peaks[300] - peaks[30]) / 270 < 400  # KiB; the series of a group take 500 in Python
