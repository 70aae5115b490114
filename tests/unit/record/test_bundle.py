"""Bundles: what goes in comes out, and a damaged or hostile one is refused before anything is used."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.mlflow_internals import database_tables
from pipeline.base.system.errors import ConfigError
from pipeline.record.store import bundle
from pipeline.record.store.local_store import Store, open_store
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
    assert files == {"group.json", "sub/data.bin"}
    assert (folder / "sub" / "data.bin").read_bytes() == bytes(range(256))


def test_a_bundle_depends_on_its_content_only(store: Store, tmp_path: Path) -> None:
    first, second = tmp_path / "first.tar.xz", tmp_path / "second.tar.xz"
    bundle.export(store, "study", first)
    bundle.export(bundle.open_bundle(first), "study", second)
    assert first.read_bytes() == second.read_bytes()


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
    files = {name: bundle._describe(content) for name, content in contents.items()}
    head = {"kind": "collocation bundle", "version": 1, "experiment": "study", "files": files}
    bundle._write(folder / "study.tar.xz", {"manifest.json": json.dumps(head).encode(), **contents})
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


def change_runs(**values: Any) -> Change:
    def change(head: dict[str, Any], files: dict[str, bytes]) -> None:
        files["runs.jsonl"] = json.dumps({**RUN, **values}).encode()
        head["files"]["runs.jsonl"] = bundle._describe(files["runs.jsonl"])

    return change


CHANGES: dict[str, tuple[Change, str]] = {
    "another version": (lambda head, _: head.update(version=2), "has format version 2"),
    "another kind": (lambda head, _: head.update(kind="x"), "is not a bundle of this project"),
    "no experiment": (lambda head, _: head.update(experiment=""), "incomplete manifest.json"),
    "a wrong digest": (lambda _, files: files.update({GROUP_FILE: b"[]"}), "does not match its digest"),
    "a wrong size": (lambda _, files: files.update({GROUP_FILE: b"[1]"}), "has 3 bytes instead of 2"),
    "a file that is not listed": (lambda _, files: files.update({"more": b""}), "which its manifest does not list"),
    "a missing file": (lambda _, files: files.pop(GROUP_FILE) and None, "lacks 1 files, such as artifacts/"),
    "an absolute path": (add_file("/tmp/colloc-x"), "which its manifest does not list"),
    "a path outside": (add_file(f"artifacts/{RUN_ID}/../../../x"), "which its manifest does not list"),
    "a file beside": (add_file("x"), "which its manifest does not list"),
    "an impossible size": (lambda head, _: head["files"][GROUP_FILE].update(bytes=-1), "impossible list of files"),
    "a bomb": (lambda head, _: head["files"][GROUP_FILE].update(bytes=1 << 40), "would unpack to"),
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


def test_a_link_in_a_bundle_is_refused(exported: Path, tmp_path: Path) -> None:
    with tarfile.open(exported) as archive:
        members = [(entry, archive.extractfile(entry).read()) for entry in archive.getmembers()]  # type: ignore[union-attr]
    with tarfile.open(tmp_path / "linked.tar.xz", "w:xz") as archive:
        for entry, content in members:
            if entry.name == GROUP_FILE:
                entry.type, entry.linkname, entry.size, content = tarfile.SYMTYPE, "/etc/passwd", 0, b""
            archive.addfile(entry, io.BytesIO(content))
    with pytest.raises(ConfigError, match="which its manifest does not list"):
        bundle.unpack(tmp_path / "linked.tar.xz", tmp_path / "target")


@pytest.mark.parametrize("share", [0, 0.1, 0.5])
def test_a_bundle_that_was_cut_is_refused(exported: Path, tmp_path: Path, share: float) -> None:
    content = exported.read_bytes()
    (tmp_path / "cut.tar.xz").write_bytes(content[: int(share * len(content))])
    with pytest.raises(ConfigError, match=r"not a complete bundle|not a bundle"):
        bundle.unpack(tmp_path / "cut.tar.xz", tmp_path / "target")
