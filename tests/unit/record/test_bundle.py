"""Bundles: what goes in comes out, hostile ones are refused, and those of earlier versions are converted."""

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
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from benchmarks import convert_bundle
from pipeline.base.domain.records import Result
from pipeline.base.domain.window import WindowKind
from pipeline.base.system.errors import ConfigError, TrackingError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.record import group_record
from pipeline.record.store import bundle, bundle_archive, bundle_reader, results, run_artifacts, upload
from pipeline.record.store.local_store import Store, open_store
from pipeline.record.store.store_access import explain_read_only, open_named
from pipeline.report import bundle_command
from pipeline.report.read import rows
from tests.support.bundles import list_files, make_groups
from tests.support.tracking_cases import make_spool, sample, series

pytestmark = pytest.mark.store


FIRST, SECOND = make_groups()[:2]
RUN_ID = FIRST.run_id
RECORD, GROUP_FILE = (f"groups/{RUN_ID}/{name}" for name in ("record.json", "artifacts/group.json"))


@pytest.fixture
def store(root: Path) -> Store:
    """A store with two groups of the experiment `study` and their artifacts, among them a link."""
    for group in (FIRST, SECOND):
        folder = make_spool(root, group, group.spool_id, all_series={"0": series()})
        (folder / "samples.jsonl").write_text(sample("nvml", 1, {"power_w": 71.5}))
        (folder / "artifacts" / "sub").mkdir()
        (folder / "artifacts" / "group.json").write_text("{}")
        (folder / "artifacts" / "sub" / "data.bin").write_bytes(bytes(range(256)))
        (folder / "artifacts" / "sub" / "same.bin").write_bytes(bytes(range(256)))
        (folder / "jobs" / "0" / "environment.txt").write_text("a @ file:///fast/alice/a-1.0-py3-none-any.whl\n")
        (folder / "jobs" / "0" / "stdout.log").write_text("/fast/alice/clone/x\n")
        upload.send(lambda _: open_store(root), folder, series_points=100)
    for data in root.glob("artifacts/study/*/artifacts/sub/data.bin"):
        data.with_name("link").symlink_to("/etc/passwd")
    return open_store(root)


def test_a_bundle_has_all_records_and_artifacts_and_is_imported_as_it_was_sent(
    store: Store, root: Path, tmp_path: Path, template_store: Path
) -> None:
    file, other = tmp_path / "study.tar.xz", tmp_path / "other"
    assert bundle.export(store, "study", file) == 2
    experiment, records = bundle_reader.read_records(file)
    stored = results.read_stored_groups(store, "study")
    assert experiment == "study" and [group.metrics for group in records] == [group.metrics for group in stored]
    assert [group.run_ids for group in records] == [group.run_ids for group in stored]
    folder = bundle_reader.locate(file, records[0].run_id)
    files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert files >= {"group.json", "sub/data.bin", "sub/same.bin", "series.json", "samples.parquet"}
    assert "sub/link" not in files and (folder / "sub" / "same.bin").read_bytes() == bytes(range(256))
    with tarfile.open(file) as archive:
        assert {entry.linkname.rpartition("/")[2] for entry in archive.getmembers() if entry.islnk()} >= {"data.bin"}
    shutil.copytree(template_store, other)
    assert [bundle.unpack(file, other), bundle.unpack(file, other)] == ["study", "study"]
    assert list_contents(open_store(other)) == list_contents(store)


def list_contents(store: Store) -> dict[str, object]:
    """Return what MLflow has of each run, apart from the names of the machine."""
    (experiment,) = (experiment for experiment in store.client.search_experiments() if experiment.name == "study")
    return {
        f"{run.data.tags['mlflow.collocation.spool_id']} {run.info.run_name}": (
            (run.info.status, run.info.start_time, run.info.end_time, sorted(run.data.tags), sorted(run.data.params)),
            {
                key: [(point.step, point.timestamp, point.value) for point in history]
                for key in run.data.metrics
                for history in [store.client.get_metric_history(run.info.run_id, key)]
            },
            sorted(artifact.path for artifact in store.client.list_artifacts(run.info.run_id)),
        )
        for run in store.client.search_runs([experiment.experiment_id])
    }


OPENING = """
import sys, time
from pathlib import Path
from pipeline.record.store import bundle_reader
print(bundle_reader.extract(Path(sys.argv[1])), flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_an_unpacked_bundle_of_a_killed_process_is_removed_and_that_of_a_living_one_is_not(
    exported_bundle: Path, tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    environ = os.environ | {"PYTHONPATH": str(PROJECT_DIR), "TMPDIR": str(scratch)}

    def start() -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", OPENING, str(exported_bundle)]
        return subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, text=True)

    with start() as living, start() as killed:
        try:
            folder_of_living, folder_of_killed = (
                Path((process.stdout or sys.stdin).readline().strip()) for process in (living, killed)
            )
            assert sorted(scratch.iterdir()) == sorted((folder_of_living, folder_of_killed))
            killed.kill()
            killed.wait()
            with start() as later:
                new = Path((later.stdout or sys.stdin).readline().strip())
                later.kill()
            assert (
                sorted(scratch.iterdir()) == sorted((folder_of_living, new)) and (folder_of_living / "groups").is_dir()
            )
        finally:
            living.kill()
            killed.kill()


@pytest.mark.slow
def test_a_bundle_names_no_folder_user_or_host(store: Store, tmp_path: Path) -> None:
    bundle.export(store, "study", tmp_path / "study.tar.xz")
    with tarfile.open(tmp_path / "study.tar.xz") as archive:
        files = {entry.name: file.read() for entry in archive if (file := archive.extractfile(entry)) is not None}
    assert not any(word in content for word in (b"alice", b"/fast", b"node-17") for content in files.values())
    job = f"groups/{results.read_stored_groups(store, 'study')[0].run_id}/jobs/0"
    assert files[f"{job}/stdout.log"].startswith(b"$FOLDER_") and b"\na==1.0\n" in files[f"{job}/environment.txt"]


def test_outputs_of_jobs_are_not_exported(store: Store, root: Path, tmp_path: Path) -> None:
    for log in list(root.glob("artifacts/study/**/stdout.log")):
        (log.parent / "output").mkdir()
        (log.parent / "output" / "checkpoint.pt").write_bytes(b"\0/home/alice")
    bundle.export(store, "study", tmp_path / "study.tar.xz")
    with tarfile.open(tmp_path / "study.tar.xz") as archive:
        names = [PurePosixPath(name).name for name in archive.getnames()]
    assert "stdout.log" in names and "checkpoint.pt" not in names
    assert list(root.rglob("checkpoint.pt"))


def test_a_moved_store_is_exported_and_read_with_the_artifacts_beside_its_database(
    store: Store, tmp_path: Path
) -> None:
    bundle.export(store, "study", tmp_path / "before.tar.xz")
    (tmp_path / "mlruns").rename(tmp_path / "moved")
    moved = open_named(tmp_path / "moved")
    bundle.export(moved, "study", tmp_path / "after.tar.xz")
    assert (tmp_path / "before.tar.xz").read_bytes() == (tmp_path / "after.tar.xz").read_bytes()
    run_id = results.read_stored_groups(moved, "study")[0].run_id
    assert run_artifacts.fetch(moved, run_id, "group.json", tmp_path) == (
        tmp_path / "moved" / "artifacts" / "study" / run_id / "artifacts" / "group.json"
    )
    assert run_artifacts.fetch(moved, run_id, "none", tmp_path) is None
    assert "was moved; run" in explain_read_only(tmp_path / "moved", "study")


def test_missing_artifacts_are_an_error_not_an_empty_bundle(store: Store, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "mlruns" / "artifacts")
    with pytest.raises(TrackingError, match="the artifacts of the experiment are missing"):
        bundle.export(store, "study", tmp_path / "study.tar.xz")
    assert not (tmp_path / "study.tar.xz").exists()


@pytest.mark.parametrize("uri", ["", ".", "file:///"])
def test_the_folder_of_a_run_has_its_artifacts_whatever_the_database_says(
    uri: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (group, _) = results.read_stored_groups(store, "study")
    job_id = group.jobs[0].run_id
    with closing(sqlite3.connect(tmp_path / "mlruns" / "mlflow.db")) as database, database:
        database.execute("UPDATE runs SET artifact_uri = ? WHERE run_uuid = ?", (uri, job_id))
    (tmp_path / "current").mkdir()
    (tmp_path / "current" / "stdout.log").write_text("private")
    monkeypatch.chdir(tmp_path / "current")
    file = tmp_path / "study.tar.xz"
    assert bundle.export(store, "study", file) == 2
    with tarfile.open(file) as archive:
        content = archive.extractfile(f"groups/{group.run_id}/jobs/0/stdout.log")
        assert content is not None and b"private" not in content.read()
    path = run_artifacts.fetch(open_store(tmp_path / "mlruns"), job_id, "stdout.log", tmp_path)
    assert path is not None and path.is_relative_to(tmp_path / "mlruns")


def test_what_cannot_be_exported_is_one_line(store: Store, tmp_path: Path, capsys) -> None:
    root = str(tmp_path / "mlruns")
    assert bundle_command.main(["--experiment", "none", "--root", root, "--out", str(tmp_path / "a.xz")]) == 2
    assert bundle_command.main(["--experiment", "study", "--root", root, "--out", str(tmp_path / "no/a.xz")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert ["has no experiment 'none'" in lines[0], "choose another file with --out" in lines[1]] == [True, True]
    assert bundle_command.main(["--experiment", "study", "--root", root, "--out", str(tmp_path / "a.xz")]) == 0
    assert "2 groups of experiment study" in capsys.readouterr().out


@pytest.fixture(scope="module")
def exported_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with one run and one artifact, written without a store."""
    folder = tmp_path_factory.mktemp("exported")
    contents = {**list_files([FIRST]), GROUP_FILE: b"{}"}
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


def change_record(**values: Any) -> Change:
    return change_file(RECORD, json.dumps({**json.loads(group_record.encode(FIRST)), **values}).encode())


CHANGES: dict[str, tuple[Change, str]] = {
    "another version": (lambda head, _: head.update(version=3), "has format version 3"),
    "another kind": (lambda head, _: head.update(kind="x"), "is not a bundle of this project"),
    "no experiment": (lambda head, _: head.update(experiment=""), "incomplete manifest.json"),
    "a wrong digest": (lambda _, files: files.update({GROUP_FILE: b"[]"}), "does not match its digest"),
    "a wrong size": (lambda _, files: files.update({GROUP_FILE: b"[1]"}), "has 3 bytes instead of 2"),
    "a file that is not listed": (lambda _, files: files.update({"more": b""}), "which its manifest does not list"),
    "a missing file": (lambda _, files: files.pop(GROUP_FILE) and None, "lacks 1 file, such as groups/"),
    "an absolute path": (add_file("/tmp/colloc-x"), "which is no file of a group"),
    "a path outside": (add_file(f"groups/{RUN_ID}/artifacts/../../../x"), "which is no file of a group"),
    "a second spelling": (add_file(f"groups/{RUN_ID}/artifacts//x"), "which is no file of a group"),
    "a file beside": (add_file("x"), "which is no file of a group"),
    "a name that is not UTF-8": (add_file(f"groups/{RUN_ID}/artifacts/\udcff"), "which is no file of a group"),
    "a name with a line break": (add_file(f"groups/{RUN_ID}/artifacts/a\nb"), "which is no file of a group"),
    "a file in a file": (add_file(f"{GROUP_FILE}/x"), "is not a complete bundle"),
    "a name too long": (add_file(f"groups/{RUN_ID}/artifacts/{'x' * 300}"), "is not a complete bundle"),
    "an impossible size": (lambda head, _: head["files"][GROUP_FILE].update(bytes=-1), "impossible list of files"),
    "a bomb": (lambda head, _: head["files"][GROUP_FILE].update(bytes=1 << 40), "would unpack to"),
    "an experiment on two lines": (lambda head, _: head.update(experiment="a\nb"), "incomplete manifest.json"),
    "a record that is not UTF-8": (change_file(RECORD, b"\xff"), "has an impossible record"),
    "a deep record": (change_file(RECORD, b"[" * 100_000), "has an impossible record"),
    "a record that is a list": (change_file(RECORD, b"[]"), "has an impossible record"),
    "facts that are a list": (change_record(facts=[]), "facts must be an object"),
    "an infinite metric": (change_record(metrics={"a": 1e999}), "a metric is not finite"),
    "a metric that is NaN": (change_record(metrics={"a": float("nan")}), "a metric is not finite"),
    "a start in the year 9999": (change_record(start_ns=9 * 10**21), "a run has an impossible time"),
    "a time that is a truth": (change_record(end_ns=True), "end_ns must be a whole number"),
    "the record of another run": (change_record(run_id="f" * 32), "is not that of its folder"),
    "a spool id that is a path": (change_record(spool_id="../../x"), "is not an id"),
    "a foreign result": (change_record(result="x'; DROP"), "result must be one of ok, "),
    "a fact that is no text": (change_record(facts={"a": 1}), "facts.a must be a text"),
    "a metric that is no number": (change_record(metrics={"a": "1"}), "metrics.a must be a number"),
}


@pytest.mark.parametrize("what", list(CHANGES))
def test_a_bundle_that_is_not_as_it_was_written_is_refused(exported_bundle: Path, tmp_path: Path, what: str) -> None:
    change, words = CHANGES[what]
    changed = rewrite(exported_bundle, change, tmp_path / "changed.tar.xz")
    with pytest.raises(ConfigError) as error:
        bundle.unpack(changed, tmp_path / "target")
    assert words in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "target").exists()


def change_entry(exported_bundle: Path, changed: Path, **values: Any) -> Path:
    """Write a bundle again with another kind of entry for its artifact."""
    with tarfile.open(exported_bundle) as archive:
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
    "a hard link to another content": ({"type": tarfile.LNKTYPE, "linkname": RECORD}, "does not list as this"),
    "a hard link to itself": ({"type": tarfile.LNKTYPE, "linkname": GROUP_FILE}, "is not a complete bundle"),
    "a device": ({"type": tarfile.CHRTYPE}, "does not list as this"),
    "a folder": ({"type": tarfile.DIRTYPE}, "does not list as this"),
    "a sparse file": ({"pax_headers": {"GNU.sparse.map": "0,1", "GNU.sparse.size": "2"}}, "does not list as this"),
    "a large header": ({"pax_headers": {"comment": "x" * (1 << 20)}}, "an entry is larger than"),
}


@pytest.mark.parametrize("what", list(ENTRIES))
def test_an_entry_that_is_no_plain_file_is_refused(exported_bundle: Path, tmp_path: Path, what: str) -> None:
    values, words = ENTRIES[what]
    with pytest.raises(ConfigError, match=words):
        bundle.unpack(change_entry(exported_bundle, tmp_path / "changed.tar.xz", **values), tmp_path / "target")
    assert not (tmp_path / "target").exists()


def test_a_bundle_that_needs_much_memory_to_decompress_is_refused(exported_bundle: Path, tmp_path: Path) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 1 << 28}]
    packed = lzma.compress(lzma.decompress(exported_bundle.read_bytes()), filters=filters)
    (tmp_path / "large.tar.xz").write_bytes(packed)
    with pytest.raises(ConfigError, match="Memory usage limit"):
        bundle.unpack(tmp_path / "large.tar.xz", tmp_path / "target")


def test_a_bundle_that_does_not_fit_on_the_disk_is_refused(
    exported_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 0))
    with pytest.raises(ConfigError, match="set TMPDIR to another folder"):
        bundle.unpack(exported_bundle, tmp_path / "target")


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.9])
def test_a_bundle_that_was_cut_is_refused(exported_bundle: Path, tmp_path: Path, share: float) -> None:
    content = exported_bundle.read_bytes()
    (tmp_path / "cut.tar.xz").write_bytes(content[: int(share * len(content))])
    with pytest.raises(ConfigError, match=r"not a complete bundle|not a bundle"):
        bundle.unpack(tmp_path / "cut.tar.xz", tmp_path / "target")


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
