"""Bundles: what goes in comes out, and a damaged or hostile one is refused before anything is used."""

from __future__ import annotations

import io
import json
import lzma
import os
import shutil
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.mlflow_internals import database_tables
from pipeline.base.system.errors import ConfigError, TrackingError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.record.store import bundle, bundle_archive, run_artifacts
from pipeline.record.store.local_store import Store, open_store
from pipeline.record.store.store_access import explain_read_only, open_named
from pipeline.report import bundle_command

pytest_plugins = ["tests.support.tracking_fixtures"]

RUN_ID = "0123456789abcdef" * 2
OTHER_ID = "f" * 32
GROUP_FILE = f"artifacts/{RUN_ID}/group.json"
RUN: dict[str, Any] = {
    "run_id": RUN_ID,
    "name": "naive-2x-toy",
    "status": "FINISHED",
    "start_ms": 1_700_000_000_000,
    "end_ms": None,
    "user": "",
    "tags": {"b": "2", "a": "1"},
    "params": {"degree": "2"},
    "metrics": {"loss": [[2.0, 5, 0], [None, 7, 1], [1.5, 9, 2]], "speed": [[3.5, 5, 0]]},
}


@pytest.fixture
def store(tmp_path: Path, template_store: Path) -> Store:
    """A store with a run of the experiment `study` and its artifacts."""
    shutil.copytree(template_store, tmp_path / "mlruns")
    opened = open_store(tmp_path / "mlruns")
    experiment_id = opened.open_experiment("study")
    artifacts = tmp_path / "mlruns" / "artifacts" / "study"
    runs = [RUN, {**RUN, "run_id": OTHER_ID, "start_ms": RUN["start_ms"] + 1}]
    database_tables.insert_runs(tmp_path / "mlruns" / "mlflow.db", experiment_id, artifacts.as_uri(), runs)
    folder = artifacts / RUN_ID / "artifacts"
    (folder / "sub").mkdir(parents=True)
    (folder / "group.json").write_text("{}")
    (folder / "sub" / "data.bin").write_bytes(bytes(range(256)))
    (folder / "sub" / "same.bin").write_bytes(bytes(range(256)))
    (folder / "link").symlink_to("/etc/passwd")
    return opened


def read(store: Store) -> dict[str, tuple[object, ...]]:
    experiment = store.client.get_experiment_by_name("study")
    runs = store.client.search_runs([experiment.experiment_id])
    history = store.client.get_metric_history
    return {
        run.info.run_id: (
            (run.info.run_name, run.info.status, run.info.start_time, run.info.end_time),
            list(run.data.tags.items()),
            run.data.params,
            {
                key: [(repr(p.value), p.timestamp, p.step) for p in history(run.info.run_id, key)]
                for key in run.data.metrics
            },
            {key: repr(value) for key, value in run.data.metrics.items()},
        )
        for run in runs
    }


def test_a_bundle_has_all_runs_points_and_artifacts_and_is_read_like_a_store(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "study.tar.xz"
    assert bundle.export(store, "study", file) == 2
    opened = bundle.open_bundle(file)
    assert read(opened) == read(store) and len(read(opened)) == 2
    folder = Path(opened.client.download_artifacts(RUN_ID, ""))
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert files == {"group.json", "sub/data.bin", "sub/same.bin"}
    assert {(folder / "sub" / f"{name}.bin").read_bytes() for name in ("data", "same")} == {bytes(range(256))}
    with tarfile.open(file) as archive:
        assert [entry.linkname for entry in archive.getmembers() if entry.islnk()] == [
            f"artifacts/{RUN_ID}/sub/data.bin"
        ]


OPENING = """
import sys, time
from pathlib import Path
from pipeline.record.store import bundle
print(bundle.open_bundle(Path(sys.argv[1])).root, flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_an_unpacked_bundle_of_a_killed_process_is_removed_and_that_of_a_living_one_is_not(
    exported: Path, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environ = os.environ | {"PYTHONPATH": str(PROJECT_DIR), "TMPDIR": str(scratch)}

    def start() -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", OPENING, str(exported)]
        return subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, text=True)

    with start() as living, start() as killed:
        try:
            kept, lost = (Path((process.stdout or sys.stdin).readline().strip()) for process in (living, killed))
            assert sorted(scratch.iterdir()) == sorted((kept, lost))
            killed.kill()
            killed.wait()
            with start() as later:
                new = Path((later.stdout or sys.stdin).readline().strip())
                later.kill()
            assert sorted(scratch.iterdir()) == sorted((kept, new)) and (kept / "mlflow.db").is_file()
        finally:
            living.kill()
            killed.kill()


@pytest.mark.slow
def test_a_bundle_depends_on_its_content_only(store: Store, tmp_path: Path) -> None:
    first, second = tmp_path / "first.tar.xz", tmp_path / "second.tar.xz"
    bundle.export(store, "study", first)
    bundle.export(bundle.open_bundle(first), "study", second)
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.slow
def test_a_bundle_names_no_folder_user_or_host(store: Store, tmp_path: Path) -> None:
    tags = {
        "collocation.role": "group",
        "collocation.user": "alice",
        "collocation.host": "node-17",
        "collocation.program_repository": "/fast/alice/clone",
        "mlflow.source.name": "/fast/alice/clone/run.py",
    }
    text = {"environment.txt": "a @ file:///fast/alice/a-1.0-py3-none-any.whl\n", "stdout.log": "/fast/alice/clone/x\n"}
    root = tmp_path / "mlruns"
    run = {**RUN, "run_id": "a" * 32, "tags": tags, "user": "alice", "params": {"script": "workloads/toy.py"}}
    artifacts = root / "artifacts" / "study"
    database_tables.insert_runs(root / "mlflow.db", store.open_experiment("study"), artifacts.as_uri(), [run])
    folder = artifacts / run["run_id"] / "artifacts"
    folder.mkdir(parents=True)
    for name, content in text.items():
        (folder / name).write_text(content)
    bundle.export(store, "study", tmp_path / "study.tar.xz")
    with tarfile.open(tmp_path / "study.tar.xz") as archive:
        files = {entry.name: file.read() for entry in archive if (file := archive.extractfile(entry)) is not None}
    assert not any(word in content for word in (b"alice", b"/fast", b"node-17") for content in files.values())
    assert files[f"artifacts/{run['run_id']}/stdout.log"] == b"$PROJECT/x\n"
    assert b"\na==1.0\n" in files[f"artifacts/{run['run_id']}/environment.txt"]


def test_a_moved_store_is_exported_and_read_with_the_artifacts_beside_its_database(
    store: Store, tmp_path: Path
) -> None:
    bundle.export(store, "study", tmp_path / "before.tar.xz")
    (tmp_path / "mlruns").rename(tmp_path / "moved")
    moved = open_named(tmp_path / "moved")
    bundle.export(moved, "study", tmp_path / "after.tar.xz")
    assert (tmp_path / "before.tar.xz").read_bytes() == (tmp_path / "after.tar.xz").read_bytes()
    assert run_artifacts.fetch(moved, RUN_ID, "group.json", tmp_path) == (
        tmp_path / "moved" / "artifacts" / "study" / RUN_ID / "artifacts" / "group.json"
    )
    assert run_artifacts.fetch(moved, RUN_ID, "none", tmp_path) is None
    assert "was moved; run" in explain_read_only(tmp_path / "moved", "study")


def test_missing_artifacts_are_an_error_not_an_empty_bundle(store: Store, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "mlruns" / "artifacts")
    with pytest.raises(TrackingError, match="the artifacts of the experiment are missing"):
        bundle.export(store, "study", tmp_path / "study.tar.xz")
    assert not (tmp_path / "study.tar.xz").exists()


@pytest.mark.parametrize("uri", ["", ".", "file:///"])
def test_a_run_without_a_folder_of_its_own_has_no_artifacts(
    uri: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with closing(sqlite3.connect(tmp_path / "mlruns" / "mlflow.db")) as database, database:
        database.execute("UPDATE runs SET artifact_uri = ? WHERE run_uuid = ?", (uri, RUN_ID))
    (tmp_path / "current").mkdir()
    (tmp_path / "current" / "group.json").write_text("private")
    monkeypatch.chdir(tmp_path / "current")
    file = tmp_path / "study.tar.xz"
    assert bundle.export(store, "study", file) == 2
    with tarfile.open(file) as archive:
        assert not [name for name in archive.getnames() if RUN_ID in name]
    assert capsys.readouterr().err == (
        f"note: no artifacts of 1 run in {file}: artifact_uri is no folder of the run ({RUN_ID}: {uri!r})\n"
    )
    assert run_artifacts.fetch(open_store(tmp_path / "mlruns"), RUN_ID, "group.json", tmp_path) is None


def test_importing_twice_adds_no_run_twice(store: Store, tmp_path: Path, template_store: Path) -> None:
    file, root = tmp_path / "study.tar.xz", tmp_path / "other"
    shutil.copytree(template_store, root)
    bundle.export(store, "study", file)
    assert [bundle.unpack(file, root), bundle.unpack(file, root)] == ["study", "study"]
    assert read(open_store(root)) == read(store)
    assert (root / "artifacts" / "study" / RUN_ID / "artifacts" / "group.json").is_file()


def test_what_cannot_be_exported_is_one_line(store: Store, tmp_path: Path, capsys) -> None:
    root = str(tmp_path / "mlruns")
    assert bundle_command.main(["--experiment", "none", "--root", root, "--out", str(tmp_path / "a.xz")]) == 2
    assert bundle_command.main(["--experiment", "study", "--root", root, "--out", str(tmp_path / "no/a.xz")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert ["has no experiment 'none'" in lines[0], "choose another file with --out" in lines[1]] == [True, True]
    assert bundle_command.main(["--experiment", "study", "--root", root, "--out", str(tmp_path / "a.xz")]) == 0
    assert "2 runs of experiment study" in capsys.readouterr().out


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with one run and one artifact, written without a store."""
    folder = tmp_path_factory.mktemp("exported")
    contents: dict[str, Path | bytes] = {"runs.jsonl": f"{json.dumps(RUN)}\n".encode(), GROUP_FILE: b"{}"}
    bundle_archive.write(folder / "study.tar.xz", "study", contents)
    return folder / "study.tar.xz"


Change = Callable[[dict[str, Any], dict[str, bytes]], None]


def rewrite(file: Path, change: Change, changed: Path) -> Path:
    """Write a bundle again with another manifest or other files."""
    with tarfile.open(file) as archive:
        files = {entry.name: archive.extractfile(entry).read() for entry in archive.getmembers()}  # type: ignore[union-attr]
    head = json.loads(files.pop("manifest.json"))
    change(head, files)
    with tarfile.open(changed, "w:xz") as archive:
        for name, content in {"manifest.json": json.dumps(head).encode(), **files}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return changed


def add_file(name: str) -> Change:
    def change(head: dict[str, Any], files: dict[str, bytes]) -> None:
        files[name] = b"x"
        digest = "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
        head["files"][name] = {"bytes": 1, "sha256": digest}

    return change


def change_file(name: str, content: bytes) -> Change:
    def change(head: dict[str, Any], files: dict[str, bytes]) -> None:
        files[name] = content
        head["files"][name] = bundle_archive._describe(content)

    return change


def change_runs(**values: Any) -> Change:
    return change_file("runs.jsonl", json.dumps({**RUN, **values}).encode())


CHANGES: dict[str, tuple[Change, str]] = {
    "another version": (lambda head, _: head.update(version=2), "has format version 2"),
    "another kind": (lambda head, _: head.update(kind="x"), "is not a bundle of this project"),
    "no experiment": (lambda head, _: head.update(experiment=""), "incomplete manifest.json"),
    "a wrong digest": (lambda _, files: files.update({GROUP_FILE: b"[]"}), "does not match its digest"),
    "a wrong size": (lambda _, files: files.update({GROUP_FILE: b"[1]"}), "has 3 bytes instead of 2"),
    "a file that is not listed": (lambda _, files: files.update({"more": b""}), "which its manifest does not list"),
    "a missing file": (lambda _, files: files.pop(GROUP_FILE) and None, "lacks 1 file, such as artifacts/"),
    "an absolute path": (add_file("/tmp/colloc-x"), "which is no artifact of a run"),
    "a path outside": (add_file(f"artifacts/{RUN_ID}/../../../x"), "which is no artifact of a run"),
    "a second spelling": (add_file(f"artifacts/{RUN_ID}//x"), "which is no artifact of a run"),
    "a file beside": (add_file("x"), "which is no artifact of a run"),
    "a name that is not UTF-8": (add_file(f"artifacts/{RUN_ID}/\udcff"), "which is no artifact of a run"),
    "a name with a line break": (add_file(f"artifacts/{RUN_ID}/a\nb"), "which is no artifact of a run"),
    "a file in a file": (add_file(f"{GROUP_FILE}/x"), "is not a complete bundle"),
    "a name too long": (add_file(f"artifacts/{RUN_ID}/{'x' * 300}"), "is not a complete bundle"),
    "an impossible size": (lambda head, _: head["files"][GROUP_FILE].update(bytes=-1), "impossible list of files"),
    "a bomb": (lambda head, _: head["files"][GROUP_FILE].update(bytes=1 << 40), "would unpack to"),
    "an experiment on two lines": (lambda head, _: head.update(experiment="a\nb"), "incomplete manifest.json"),
    "runs that are not UTF-8": (change_file("runs.jsonl", b"\xff"), "impossible run in runs.jsonl"),
    "deep runs": (change_file("runs.jsonl", b"[" * 100_000), "impossible run in runs.jsonl"),
    "a run that is a list": (change_file("runs.jsonl", b"[]"), "impossible run in runs.jsonl"),
    "a run twice": (change_file("runs.jsonl", f"{json.dumps(RUN)}\n".encode() * 2), "a run is listed twice"),
    "tags that are a list": (change_runs(tags=[]), "impossible run in runs.jsonl"),
    "half of a surrogate pair": (change_runs(tags={"a": "\ud800"}), "impossible run in runs.jsonl"),
    "an infinite metric": (change_runs(metrics={"a": [[1e999, 2, 3]]}), "impossible time or metric"),
    "a metric that is NaN": (change_runs(metrics={"a": [[float("nan"), 2, 3]]}), "impossible time or metric"),
    "a step of 80 bits": (change_runs(metrics={"a": [[1.0, 2, 1 << 80]]}), "impossible time or metric"),
    "a start in the year 9999": (change_runs(start_ms=253_402_300_799_000), "impossible time or metric"),
    "a time that is a truth": (change_runs(end_ms=True), "time or metric that is not a number"),
    "a foreign run id": (change_runs(run_id="../../x"), "is not a run id"),
    "a foreign status": (change_runs(status="x'; DROP"), "has the unknown status"),
    "a tag that is no text": (change_runs(tags={"a": 1}), "name, tag or param that is not a text"),
    "a metric that is no number": (change_runs(metrics={"a": [["1", 2, 3]]}), "time or metric that is not a number"),
}


@pytest.mark.parametrize("what", list(CHANGES))
def test_a_bundle_that_is_not_as_it_was_written_is_refused(exported: Path, tmp_path: Path, what: str) -> None:
    change, words = CHANGES[what]
    changed = rewrite(exported, change, tmp_path / "changed.tar.xz")
    with pytest.raises(ConfigError) as error:
        bundle.unpack(changed, tmp_path / "target")
    assert words in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "target").exists()


def change_entry(exported: Path, changed: Path, **values: Any) -> Path:
    """Write a bundle again with another kind of entry for its artifact."""
    with tarfile.open(exported) as archive:
        members = [(entry, archive.extractfile(entry).read()) for entry in archive.getmembers()]  # type: ignore[union-attr]
    with tarfile.open(changed, "w:xz") as archive:
        for entry, content in members:
            if entry.name == GROUP_FILE:
                for name, value in values.items():
                    setattr(entry, name, value)
            archive.addfile(entry, io.BytesIO(content))
    return changed


ENTRIES: dict[str, tuple[dict[str, Any], str]] = {
    "a symbolic link": ({"type": tarfile.SYMTYPE, "linkname": "/etc/passwd"}, "does not list as this"),
    "a hard link outside": ({"type": tarfile.LNKTYPE, "linkname": "/etc/passwd"}, "does not list as this"),
    "a hard link to another content": ({"type": tarfile.LNKTYPE, "linkname": "runs.jsonl"}, "does not list as this"),
    "a hard link to itself": ({"type": tarfile.LNKTYPE, "linkname": GROUP_FILE}, "is not a complete bundle"),
    "a device": ({"type": tarfile.CHRTYPE}, "does not list as this"),
    "a folder": ({"type": tarfile.DIRTYPE}, "does not list as this"),
    "a sparse file": ({"pax_headers": {"GNU.sparse.map": "0,1", "GNU.sparse.size": "2"}}, "does not list as this"),
    "a large header": ({"pax_headers": {"comment": "x" * (1 << 20)}}, "an entry is larger than"),
}


@pytest.mark.parametrize("what", list(ENTRIES))
def test_an_entry_that_is_no_plain_file_is_refused(exported: Path, tmp_path: Path, what: str) -> None:
    values, words = ENTRIES[what]
    with pytest.raises(ConfigError, match=words):
        bundle.unpack(change_entry(exported, tmp_path / "changed.tar.xz", **values), tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_a_bundle_that_needs_much_memory_to_decompress_is_refused(exported: Path, tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 28}]
    packed = lzma.compress(lzma.decompress(exported.read_bytes()), filters=filters)
    (tmp_path / "large.tar.xz").write_bytes(packed)
    with pytest.raises(ConfigError, match="Memory usage limit"):
        bundle.unpack(tmp_path / "large.tar.xz", tmp_path / "target")


def test_a_bundle_that_does_not_fit_on_the_disk_is_refused(
    exported: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 0))
    with pytest.raises(ConfigError, match="set TMPDIR to another folder"):
        bundle.unpack(exported, tmp_path / "target")


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.9])
def test_a_bundle_that_was_cut_is_refused(exported: Path, tmp_path: Path, share: float) -> None:
    content = exported.read_bytes()
    (tmp_path / "cut.tar.xz").write_bytes(content[: int(share * len(content))])
    with pytest.raises(ConfigError, match=r"not a complete bundle|not a bundle"):
        bundle.unpack(tmp_path / "cut.tar.xz", tmp_path / "target")
