"""Reports of bundles: equal to the report of the store, and equal in every surrounding; bad bundles in one line."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from pipeline import tracking
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.planner import __main__ as planner
from pipeline.record.store import bundle, bundle_reader
from pipeline.record.store.local_store import open_store
from pipeline.report import __main__ as report
from pipeline.report.read import rows
from pipeline.report.read.rows import named_stores
from tests.support.bundles import EXPERIMENT, copy_groups, make_groups, write_bundle
from tests.support.tracking_cases import store_groups


def test_a_store_and_its_bundle_give_equal_rows_without_paths(root: Path, tmp_path: Path) -> None:
    store_groups(root, *make_groups())
    bundle.export(open_store(root), EXPERIMENT, tmp_path / "study.tar.xz")
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
    return bundle_reader.read_records(file)[0]


COMMANDS: dict[str, Callable[[str, str], int]] = {
    "report": lambda file, out: report.main(["--root", file, "--experiment", "study", "--out", out]),
    "board": lambda file, out: report.main(["board", "--root", file, "--experiment", "study", "--out", out]),
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
    write_bundle(file)
    options = report.make_parser().parse_args(["--root", str(file)])
    assert named_stores(options) == [file] and options.experiment == EXPERIMENT


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("is_job", "table", "key", "text"),
    [
        (True, "params", "dial", "half"),
        (True, "params", "objective_ms", "fast"),
        (False, "notes", "turns", "[1]"),
        (False, "notes", "figures", '{"a": 1}'),
    ],
)
def test_a_value_of_another_form_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_job: bool, table: str, key: str, text: str
) -> None:
    file = tmp_path / "study.tar.xz"
    write_bundle(file, lambda raw: (raw["jobs"][0] if is_job else raw)[table].update({key: text}))
    assert make_report(file, tmp_path) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"{table[:-1]} {key}={text!r}" in error and "error: run 0" in error


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda raw: raw["jobs"][0].update(index="0x"), r"jobs[0].index must be a whole number"),
        (lambda raw: raw["window"].update(kind="zzz"), "window.kind must be one of steady, "),
        (lambda raw: raw.update(baseline_run="x"), "baseline_run must be a whole number"),
        (lambda raw: raw.update(later_plans=5), "later_plans must be a list"),
        (lambda raw: raw.update(block=None), "block must be a whole number"),
    ],
)
def test_a_record_of_another_form_is_refused_in_one_line(tmp_path: Path, capsys, change, words: str) -> None:
    file = tmp_path / "study.tar.xz"
    write_bundle(file, change)
    assert make_report(file, tmp_path) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and words in error


def make_report(file: Path, folder: Path) -> int:
    arguments = ["--root", str(file), "--experiment", EXPERIMENT, "--out", str(folder / "out"), "--no-log"]
    return report.main(arguments)


@pytest.mark.parametrize("text", ["²", "5 GiB", ""])
def test_a_fact_that_is_no_number_is_missing(tmp_path: Path, text: str) -> None:
    facts = dict.fromkeys(("cpus", "multiprocessors", "plan_groups"), text)
    write_bundle(tmp_path / "study.tar.xz", lambda raw: raw["facts"].update(facts))
    study = rows.read([tmp_path / "study.tar.xz"], EXPERIMENT)
    assert study.rows and {row.multiprocessors for row in study.rows} == {None}


def test_a_bundle_of_an_earlier_version_is_refused_in_a_line_that_names_the_script(tmp_path: Path, capsys) -> None:
    head = {"kind": "collocation bundle", "version": 1, "experiment": "study", "files": {}}
    with tarfile.open(tmp_path / "old.tar.xz", "w:xz") as archive:
        (tmp_path / "manifest.json").write_text(json.dumps(head))
        archive.add(tmp_path / "manifest.json", "manifest.json")
    for command in COMMANDS.values():
        assert command(str(tmp_path / "old.tar.xz"), str(tmp_path / "out")) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and "python benchmarks/convert_bundle.py" in error


def test_a_bundle_is_read_with_any_version_of_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow
    import mlflow.version

    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "3.99.0" if name.startswith("mlflow") else real(name))
    monkeypatch.setattr(mlflow, "__version__", "3.99.0")
    monkeypatch.setattr(mlflow.version, "VERSION", "3.99.0")
    write_bundle(tmp_path / "study.tar.xz")
    assert len(rows.read([tmp_path / "study.tar.xz"], EXPERIMENT).rows) == 9
    assert tracking.main(["import", str(tmp_path / "study.tar.xz"), "--root", str(tmp_path / "mlruns")]) == 0
    assert len(rows.read([tmp_path / "mlruns"], EXPERIMENT).rows) == 9


@pytest.mark.slow
def test_no_command_prints_the_control_characters_of_a_bundle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    escape = "\x1b]52;c;cm0gLXJmIH4K\x07\x1b[31m\x9b1m\u202e\r"
    file = tmp_path / "study.tar.xz"

    def change(raw: dict[str, Any]) -> None:
        for run in (raw, *raw["jobs"]):
            run["name"] += escape
            run["params"]["workload"] = f"tiny{escape}"
        raw["device"] += escape
        raw["scenario"] += escape
        raw["settings"]["device"] += escape
        raw["options"][f"key{escape}"] = escape

    write_bundle(file, change)
    later = tmp_path / "later.tar.xz"

    def measure_later(raw: dict[str, Any]) -> None:
        change(raw)
        raw["start_ns"] += 1_000_000

    write_bundle(later, measure_later)
    assert report.main(["compare", str(file), str(later)]) == 0
    for command in (
        ["compare", str(file), str(later)],
        ["--root", str(file), "--experiment", EXPERIMENT, "--out", str(tmp_path / "out"), "--no-log"],
        ["--root", str(file), "--experiment", EXPERIMENT, "--group", "x", "--out", str(tmp_path / "out"), "--no-log"],
    ):
        report.main(command)
        printed = "".join(capsys.readouterr())
        assert len(printed) > 80 and not set(printed) & set("\x1b\x07\x9b\u202e\r")


def test_the_settings_of_a_bundle_hold_no_control_character(tmp_path: Path) -> None:
    file = tmp_path / "study.tar.xz"
    write_bundle(file, lambda raw: raw["settings"].update(window="\x1b[31m"))
    study = rows.read([file], EXPERIMENT)
    assert "[31m" in str(study.rows[0].settings) and "\x1b" not in "".join(map("".join, study.rows[0].settings))


READING = """
import resource, sys
from pathlib import Path
from pipeline.report.read import rows
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
