"""From spool folders to runs: interruptions at every call, what MLflow refuses, and millions of lines."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import requests

from listeners.host import HostListener
from pipeline.base.domain.layout import DATABASE
from pipeline.base.domain.samples import PointSeries, thin_points
from pipeline.base.domain.script_runs import read_script_runs
from pipeline.base.system.errors import TrackingError
from pipeline.base.system.interrupts import Interrupted
from pipeline.observe.sample_figures import Fields
from pipeline.record import group_folder, group_record, sample_series
from pipeline.record import tracking_sender as sending
from pipeline.record.group_folder import Amendment
from pipeline.record.group_record import Clock
from pipeline.record.store import upload
from pipeline.record.store.local_store import Store, open_store
from pipeline.record.tracking_sender import Sender
from tests.support.tracking_cases import (
    CLOCK,
    EXPERIMENT,
    SECOND,
    START,
    as_running,
    by_name,
    child,
    client,
    content,
    make_spool,
    record,
    runs_of,
    sample,
    series,
)
from workloads import client as job_client

pytestmark = pytest.mark.store


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the code under test handles it."""


class KilledAt:
    """An MLflow client that ends at its k-th call, before or after that call took effect."""

    def __init__(self, real: Any, k: int, after: bool) -> None:
        self.real, self.k, self.after = real, k, after

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.real, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.k -= 1
            if self.k == 0 and not self.after:
                raise Killed
            result = method(*args, **kwargs)
            if self.k == 0:
                raise Killed
            return result

        return call


def test_a_folder_that_another_process_sends_meanwhile_is_not_sent_again(root: Path, monkeypatch) -> None:
    store, folder = open_store(root), make_spool(root, record((child(0),)))

    @contextlib.contextmanager
    def hold_lock_late(path: Path) -> Iterator[None]:
        path.parent.rename(path.parent.with_name("sent"))  # by who had the lock that was waited for
        yield

    monkeypatch.setattr(upload.locks, "hold_lock", hold_lock_late)
    assert upload.send(lambda uri: store, folder, series_points=100) is None
    assert not runs_of(store.client)


@pytest.mark.slow
def test_whatever_call_is_the_last_one_repeating_gives_each_group_once(root: Path) -> None:
    store = open_store(root)

    def new_group() -> Path:
        folder = make_spool(root, record((child(0), child(1))))
        (folder / "samples.jsonl").write_text(sample("nvml", 1, {"power_w": 71.5}))
        return folder

    upload.send(lambda uri: store, new_group(), series_points=100)
    expected = content(store.client)
    killed = 0
    for k in range(1, 100):
        for after in (False, True):
            for run in runs_of(store.client):
                store.client.delete_run(run.info.run_id)
            folder = new_group()
            try:
                upload.send(_kill_at_call(store, k, after), folder, series_points=100)
            except Killed:
                killed += 1
            upload.send(lambda uri: store, folder, series_points=100)
            assert content(store.client) == expected
            assert not list((root / "spool").glob("*/*"))
        if killed < 2 * k:
            break
    assert killed > 30


def test_a_group_that_ends_while_its_killed_sender_is_replaced_has_its_result(root: Path) -> None:
    store, ended = open_store(root), record((child(0, exit_status=0, notes={"left_out": "a file"}),))
    running_jobs = tuple(dataclasses.replace(as_running(job), exit_status=None, notes={}) for job in ended.jobs)
    upload.send(lambda uri: store, make_spool(root, ended), series_points=100)
    expected = content(store.client)
    for k in range(1, 9):  # the last one is beyond the calls of `begin`
        for run in runs_of(store.client):
            store.client.delete_run(run.info.run_id)
        folder = make_spool(root, dataclasses.replace(as_running(ended), jobs=running_jobs))
        with contextlib.suppress(Killed):
            upload.begin(_kill_at_call(store, k, after=True), folder)
        group_folder.write(folder, ended)
        begun = upload.begin(lambda uri: store, folder)  # a new sender repeats the requests without a reply
        upload.send(lambda uri: store, folder, series_points=100, begun_runs=begun)
        assert content(store.client) == expected, f"killed after call {k}"


def _kill_at_call(store: Store, k: int, after: bool) -> Callable[[str | None], Store]:
    proxy: Any = KilledAt(store.client, k, after)
    return lambda uri: Store(client=proxy, uri=store.uri, root=store.root)


def test_names_lengths_and_numbers_that_mlflow_refuses_are_kept_elsewhere(root: Path) -> None:
    long = "x" * 9000
    one = child(
        0,
        params={"a@b": "1", "a#b": "2", "../up": "3", "..lr": "4", "config": long}
        | {f"p{k}": str(k) for k in range(250)},
        script_tags={"note": long},
        notes={"not_finite": "bad_s, loss"},
        metrics={"ok_s": 1.0, "loss": 5.0},
    )
    loss = [(0, START, 2.0), (1, START + SECOND, float("inf")), (2, START + 2 * SECOND, 1.0)]
    folder = make_spool(root, record((one,)), all_series={"0": {"loss": loss}})
    store = open_store(root)
    upload.begin(lambda uri: store, folder)
    upload.send(lambda uri: store, folder, series_points=10)
    run = by_name(store.client)["0-toy"]
    assert {key: run.data.params[key] for key in ("a_b", "a_b_2", "up")} == {"a_b": "1", "a_b_2": "2", "up": "3"}
    assert run.data.params["p249"] == "249" and run.data.params["_lr"] == "4"
    assert run.data.metrics == {"ok_s": 1.0, "loss": 1.0, "summary/loss": 5.0}
    assert run.data.tags["collocation.not_finite"] == "bad_s, loss"
    assert run.data.params["config"].endswith("long_values.json]")
    long_values = json.loads(Path(store.client.download_artifacts(run.info.run_id, "long_values.json")).read_text())
    assert long_values == {"params": {"config": long}, "tags": {"note": long}}


def test_the_spool_keeps_a_group_until_the_disk_has_its_rows(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, folder, synced = open_store(root), make_spool(root, record((child(0),))), []
    ahead = root / f"{DATABASE}-wal"

    def fsync(descriptor: int) -> None:
        synced.append((os.path.samestat(os.fstat(descriptor), ahead.stat()), folder.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    upload.send(lambda uri: store, folder, series_points=10)
    assert (True, True) in synced
    assert (True, False) not in synced
    assert not folder.exists()


@pytest.mark.slow
def test_a_group_whose_store_was_removed_stays_in_the_spool(root: Path) -> None:
    store = open_store(root)
    first, second = (make_spool(root, record((), number), f"000{number}") for number in (1, 2))
    upload.send(lambda _: store, first, series_points=10)
    for file in root.glob(f"{DATABASE}*"):
        file.unlink()
    with pytest.raises(TrackingError, match="was removed or replaced while the study ran"):
        upload.send(lambda _: store, second, series_points=10)
    assert second.is_dir() and not first.exists()
    store.client._tracking_client.store.engine.dispose()  # which ends with the process, as in life
    new = open_store(root)
    upload.send(lambda _: new, second, series_points=10)
    assert set(by_name(new.client)) == {"group 2"}


def test_each_run_gets_the_samples_that_concern_it(root: Path) -> None:
    import pandas as pd

    folder = make_spool(root, record((child(0, gi_id=3), child(1, gi_id=None), child(2, is_gpu=False))))
    with (folder / "samples.jsonl").open("w") as file:
        for second in range(100):
            file.write(sample("nvml", second, {"power_w": 70.0 + second}))
        file.write(sample("gpm", 1, {"sm_active_ratio": 0.5}, gi_id=3))
        file.write(sample("host", 1, {"cpu_pct": 10.0}))
        file.write(sample("host", 1, {"pss_mib": 100.0}, job=0))
        file.write('{"source": "nvml", "t_ns": 5, "va')
    (folder / "artifacts" / "fields.json").write_text(Fields([HostListener(1000).table]).as_json())
    store = open_store(root)
    runs = upload.send(lambda uri: store, folder, series_points=10)
    assert runs is not None
    series_by_run = {
        name: {key for key in run.data.metrics if key.startswith("system/")}
        for name, run in by_name(store.client).items()
    }
    assert series_by_run == {
        "group 1": {"system/nvml/power_w", "system/gpm/gi3/sm_active_ratio", "system/host/cpu_pct"},
        "0-toy": {"system/gpm/gi3/sm_active_ratio", "system/host/pss_mib"},
        "1-toy": {"system/nvml/power_w"},
        "2-toy": set(),
    }
    history = store.client.get_metric_history(runs.parent, "system/nvml/power_w")
    assert [m.step for m in history] == [0, 11, 22, 33, 44, 55, 66, 77, 88, 99]
    assert [m.value for m in history] == [70.0 + m.step for m in history]

    table = pd.read_parquet(store.client.download_artifacts(runs.parent, "samples.parquet"))
    assert list(table.columns) == ["source", "job", "gi_id", "t_ns", "wall_time", "field", "value"]
    assert len(table) == 103
    memory_sample = table[table["field"] == "pss_mib"].iloc[0]
    assert (memory_sample["source"], memory_sample["job"], memory_sample["value"]) == ("host", 0, 100.0)
    assert pd.isna(memory_sample["gi_id"])
    assert memory_sample["wall_time"] == pd.Timestamp(CLOCK.wall_ns + SECOND, tz="UTC")


SCRIPT = """
import mlflow
mlflow.set_experiment("mine")
with mlflow.start_run():
    mlflow.log_param("lr", 0.1)
    mlflow.log_param("workload", "theirs")
    mlflow.set_tag("note", "hello")
    for step in range(3):
        mlflow.log_metric("val/loss", 1.0 - step / 10, step=step)
    mlflow.log_metric("throughput_samples_per_s", 5.0)
    mlflow.log_text("text", "sub/note.txt")
    with mlflow.start_run(nested=True):
        mlflow.log_metric("inner", 7.0)
"""


@pytest.mark.slow
def test_what_a_script_logs_itself_lands_in_its_run(root: Path) -> None:
    folder = make_spool(root, record((child(0),)))
    script_store = folder / "jobs" / "0" / "mlflow"
    environ = os.environ | {"MLFLOW_TRACKING_URI": script_store.as_uri(), "MLFLOW_ALLOW_FILE_STORE": "true"}
    subprocess.run([sys.executable, "-c", SCRIPT], env=environ, check=True, capture_output=True)
    [loss] = script_store.glob("*/*/metrics/val/loss")
    with loss.open("a") as file:
        file.write("1700000000000 0.")  # what a killed job leaves
    store = open_store(root)
    upload.send(lambda uri: store, folder, series_points=10)
    run = by_name(store.client)["0-toy"]
    assert run.data.params == {"workload": "toy", "script/workload": "theirs", "lr": "0.1"}
    assert run.data.metrics["throughput_samples_per_s"] == 10.5
    assert run.data.metrics["script/throughput_samples_per_s"] == 5.0
    assert run.data.metrics["run2/inner"] == 7.0
    assert run.data.tags["note"] == "hello"
    history = store.client.get_metric_history(run.info.run_id, "val/loss")
    assert [(m.step, m.value) for m in history] == [(0, 1.0), (1, 0.9), (2, 0.8)]
    assert Path(store.client.download_artifacts(run.info.run_id, "sub/note.txt")).read_text() == "text"
    assert "mlflow" not in {item.path for item in store.client.list_artifacts(run.info.run_id)}


def test_only_regular_files_of_the_folder_become_artifacts_and_the_others_are_named(root: Path) -> None:
    folder = make_spool(root, record((child(0),)))
    job = folder / "jobs/0"
    (root / "secret").mkdir()
    (root / "secret/key").write_text("nobody is to read this")
    (job / "output/deep").mkdir(parents=True)
    (job / "output/deep/100% a:b#c \n?.txt").write_text("an odd name")
    (job / "output/dir").symlink_to(root / "secret")
    (job / "output/file").symlink_to(root / "secret/key")
    os.mkfifo(job / "output/pipe")
    (job / "mlflow/1/run/params").mkdir(parents=True)
    (job / "mlflow/1/run/meta.yaml").write_text("{run_id: run, lifecycle_stage: active, start_time: soon}")
    (job / "mlflow/1/run/params/key").symlink_to(root / "secret/key")
    store = open_store(root)
    upload.send(lambda uri: store, folder, series_points=10)
    run = by_name(store.client)["0-toy"]
    assert run.info.status == "FINISHED" and "key" not in run.data.params
    assert [item.path for item in store.client.list_artifacts(run.info.run_id, "output")] == ["output/deep"]
    assert len(store.client.list_artifacts(run.info.run_id, "output/deep")) == 1
    assert run.data.tags["collocation.left_out"] == (
        "jobs/0/output/dir, jobs/0/output/file, jobs/0/output/pipe (not a regular file)"
    )
    assert not any("nobody" in path.read_text(errors="replace") for path in list_files(root / "artifacts"))


def list_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_files_beyond_the_limits_are_kept_beside_the_store(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_spool(root, record((child(0),)))
    (folder / "jobs/0/output").mkdir()
    for number in range(8):
        (folder / f"jobs/0/output/{number}").write_text(str(number))
    monkeypatch.setattr(upload, "MAX_FILES", 10)  # four are the job's own
    store = open_store(root)
    upload.send(lambda uri: store, folder, series_points=10)
    run = by_name(store.client)["0-toy"]
    assert "(too many or too large, moved next to the store)" in run.data.tags["collocation.left_out"]
    logged = [item.path for item in store.client.list_artifacts(run.info.run_id, "output")]
    moved_files = list_files(root / "left_out/study/0001-mig")
    assert len(moved_files) == 2 and len(logged) == 6
    assert sorted(int(Path(path).name) for path in (*moved_files, *logged)) == list(range(8))


@pytest.fixture
def odd(root: Path) -> Path:
    """The folder of a group whose job logged files by names that MLflow does not take, and one that nobody reads."""
    folder = make_spool(root, record((child(0),)))
    run = folder / "jobs/0/mlflow/1/run"
    (run / "artifacts/..2024").mkdir(parents=True)
    (run / "artifacts/..2024/of_a_config_map").write_text("x")
    (run / "meta.yaml").write_text("{run_id: run, lifecycle_stage: active, start_time: 1}")
    (folder / "jobs/0/output").mkdir()
    for name in (".artifact.uploading.x", "loss#1", "%41", "a\nb", os.fsdecode(b"\xff"), "ordinary"):
        (folder / f"jobs/0/output/{name}").write_text("x")
    return folder


def test_a_file_that_cannot_be_read_or_is_not_taken_keeps_no_group_out_of_the_store(
    root: Path, odd: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def open_or_refuse(path: Any, *arguments: Any, **options: Any) -> int:
        if Path(path).name == "%41":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(os, "open", open_or_refuse)
    store = open_store(root)
    upload.send(lambda uri: store, odd, series_points=10)
    run = by_name(store.client)["0-toy"]
    assert run.info.status == "FINISHED"
    assert run.data.tags["collocation.left_out"] == (
        "jobs/0/output/%41 (cannot be read, moved next to the store); jobs/0/output/.artifact.uploading.x, "
        "jobs/0/mlflow/1/run/artifacts/..2024/of_a_config_map (refused by the store, moved next to the store)"
    )
    logged = {item.path for item in store.client.list_artifacts(run.info.run_id, "output")}
    assert logged == {"output/loss#1", "output/a\nb", os.fsdecode(b"output/\xff"), "output/ordinary"}
    moved_names = {path.name for path in list_files(root / "left_out")}
    assert moved_names == {"%41", ".artifact.uploading.x", "of_a_config_map"}


class Server:
    """An MLflow client of a server, of which a proxy refuses every file by one name."""

    def __init__(self, real: Any, refused: str, status: int) -> None:
        self.real, self.refused, self.status = real, refused, status
        self.files: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def log_artifact(self, run_id: str, path: str, parent: str | None = None) -> None:
        if Path(path).name == self.refused:
            response = requests.Response()
            response.status_code = self.status
            raise requests.HTTPError(response=response)
        self.files.append(path)


def test_a_server_gets_no_file_by_another_name_and_may_refuse_one_but_not_all(root: Path, odd: Path) -> None:
    real = open_store(root)
    server: Any = Server(real.client, "ordinary", 502)
    store = Store(client=server, uri=real.uri, root=None)
    with pytest.raises(requests.HTTPError):
        upload.send(lambda uri: store, odd, series_points=10)
    server.status, server.files = 413, []
    upload.send(lambda uri: store, odd, series_points=10)
    assert not [path for path in server.files if "output" in path or ".." in path]
    assert {path.name for path in list_files(root / "left_out")} == {
        *(".artifact.uploading.x", "loss#1", "%41", "a\nb", os.fsdecode(b"\xff"), "ordinary"),
        "of_a_config_map",
    }


def test_a_record_that_names_another_folder_reads_nothing_there(root: Path) -> None:
    folder = make_spool(root, record((child(0),)))
    raw = json.loads((folder / "record.json").read_text())
    raw["jobs"][0]["index"] = "../../../../secret"
    (folder / "record.json").write_text(json.dumps(raw))
    with pytest.raises(TrackingError, match="could not read"):
        upload.send(lambda uri: open_store(root), folder, series_points=10)


@pytest.mark.parametrize(
    ("damage", "place"),
    [
        (lambda raw: raw["jobs"][0].update(metrics={"loss": "low"}), r"jobs\[0\].metrics.loss must be"),
        (lambda raw: raw["jobs"][0].update(metrics={"loss": float("nan")}), "a metric is not finite"),
        (lambda raw: raw["jobs"].append("job"), r"jobs\[1\] must be an object"),
        (lambda raw: raw["jobs"][0].pop("name"), r"jobs\[0\]: key 'name' is missing"),
        (lambda raw: raw.update(result="fine"), "result must be one of ok, oom"),
        (lambda raw: raw.update(spool_id="../x"), "spool_id '../x' is not an id"),
        (lambda raw: raw["clock"].update(wall_ns=True), "clock.wall_ns must be a whole number"),
        (lambda raw: raw.update(facts=[]), "facts must be an object"),
    ],
)
def test_a_record_that_somebody_changed_is_refused_by_the_place(root: Path, damage: Any, place: str) -> None:
    folder = make_spool(root, record((child(0),)))
    raw = json.loads((folder / "record.json").read_text())
    damage(raw)
    (folder / "record.json").write_text(json.dumps(raw))
    with pytest.raises(TrackingError, match=place):
        group_record.read(folder)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "3", "[]", "null", '{"version": 4}'])
def test_what_is_no_record_is_refused_in_one_line(root: Path, text: str) -> None:
    folder = make_spool(root, record((child(0),)))
    (folder / "record.json").write_text(text)
    with pytest.raises(TrackingError, match=r"could not read .*record\.json") as refused:
        group_record.read(folder)
    assert "\n" not in str(refused.value)
    (folder / "amendment.json").write_text(text)
    with pytest.raises(TrackingError, match=r"could not read .*amendment\.json"):
        group_folder.read_amendment(folder / "amendment.json")


def test_figures_that_came_while_others_were_sent_are_not_lost(root: Path) -> None:
    folder = make_spool(root, tagged := record(()))
    store = open_store(root)
    upload.send(lambda uri: store, folder, series_points=10)

    def write_late_amendment(**metrics: float) -> Path:
        common = {"experiment": EXPERIMENT, "spool_id": tagged.spool_id, "result": "ok", "reason": ""}
        return group_folder.write_amendment(root / "spool", Amendment(metrics=metrics, **common))

    file = write_late_amendment(speedup=1.16)
    really = store.client.log_metric

    class Slow:
        def __getattr__(self, name: str) -> Any:
            return getattr(store.client, name)

        def log_metric(self, run_id: str, name: str, value: float) -> None:
            really(run_id, name, value)
            if value == 1.16:
                write_late_amendment(speedup=1.46, slowdown=2.0)

    upload.amend(dataclasses.replace(store, client=Slow()), file)
    assert file.exists()
    upload.amend(store, file)
    assert not file.exists()
    metrics = by_name(store.client)["group 1"].data.metrics
    assert (metrics["speedup"], metrics["slowdown"]) == (1.46, 2.0)
    upload.amend(store, write_late_amendment(speedup=1.46))  # the store has it
    run_id = by_name(store.client)["group 1"].info.run_id
    assert [point.value for point in store.client.get_metric_history(run_id, "speedup")] == [1.16, 1.46]


def test_an_amendment_waits_for_the_end_of_its_group(root: Path) -> None:
    store = open_store(root)
    ended = record(())
    folder = make_spool(root, as_running(ended))
    begun = upload.begin(lambda _: store, folder)
    changes = {"metrics": {"late_ratio": 2.5}, "result": "failed", "reason": "first losses differ"}
    late = Amendment(experiment=EXPERIMENT, spool_id=ended.spool_id, **changes)
    file = group_folder.write_amendment(root / "spool", late)
    with pytest.raises(TrackingError, match="not in the store yet"):  # another process finds it first
        upload.amend(store, file)
    group_folder.write(folder, ended)
    upload.send(lambda _: store, folder, series_points=10, begun_runs=begun)
    upload.amend(store, file)
    run = by_name(store.client)["group 1"]
    assert (run.info.status, run.data.tags["collocation.result"]) == ("FAILED", "failed")


def test_an_amendment_that_waits_keeps_its_figures_when_more_are_added(root: Path) -> None:
    common = {"experiment": EXPERIMENT, "spool_id": "x", "reason": ""}
    group_folder.write_amendment(root / "spool", Amendment(metrics={"speedup": 2.0}, result="ok", **common))
    wrong = Amendment(metrics={}, result="wrong_results", **common)
    file = group_folder.write_amendment(root / "spool", wrong)
    amendment = group_folder.read_amendment(file)
    assert (amendment.metrics, amendment.result) == ({"speedup": 2.0}, "wrong_results")


@pytest.mark.parametrize("count", [0, 1, 7, 100, 101, 102, 399, 1000, 12345])
def test_a_series_keeps_a_bounded_number_of_points_the_first_and_the_last_among_them(count):
    points = [(step, 10 * step, step / 2) for step in range(count)]
    series = PointSeries(points, most=100)
    thinned_points = list(series)
    assert len(series) == len(thinned_points) <= 102 and series.num_points == count
    assert set(thinned_points) <= set(points) and thinned_points == sorted(thinned_points)
    assert (
        thinned_points[:1] == points[:1]
        and thinned_points[-1:] == points[-1:]
        and (count <= 100) <= (thinned_points == points)
    )
    assert len({now - before for (before, *_), (now, *_) in pairwise(thinned_points[:-1])}) <= 1, "evenly"
    assert not count or series.newest == points[-1]
    for most in (2, 7, 50):
        few = thin_points(points, most)
        assert len(few) <= most and few[:1] == points[:1] and few[-1:] == points[-1:]


def test_of_a_long_series_the_store_has_as_many_points_as_of_what_is_sampled(root: Path) -> None:
    folder = make_spool(root, record((child(0),)), all_series={"0": series(num_points=4001)})
    store = open_store(root)
    upload.send(lambda uri: store, folder, series_points=50)
    run = by_name(store.client)["0-toy"]
    history = store.client.get_metric_history(run.info.run_id, "series_0")
    assert 40 < len(history) <= 50 and {point.step for point in history} >= {0, 4000}


def test_of_a_long_metric_that_a_script_logs_the_store_has_some_points_and_the_file(root: Path, monkeypatch) -> None:
    monkeypatch.setattr(upload, "MAX_OWN_POINTS", 60)
    folder = make_spool(root, record((child(0),)))
    metrics = folder / "jobs/0/mlflow/0/run/metrics"
    (metrics / "train").mkdir(parents=True)
    (metrics.parent / "meta.yaml").write_text("run_id: run\nstart_time: 1\n")
    text = "".join(f"{1000 + step} {step / 2} {step}\n" for step in range(30_000))
    (metrics / "train/loss").write_text(text)
    (metrics / "few").write_text("1000 0.5 0\n1001 0.25 1\n1002 0.1")
    store = open_store(root)
    upload.send(lambda uri: store, folder, series_points=20)
    run_id = by_name(store.client)["0-toy"].info.run_id
    history = store.client.get_metric_history(run_id, "train/loss")
    assert 20 < len(history) <= 30 and {point.step for point in history} >= {0, 29_999}
    assert [point.value for point in store.client.get_metric_history(run_id, "few")] == [0.5, 0.25]
    assert Path(store.client.download_artifacts(run_id, "script_metrics/train/loss")).read_text() == text
    assert [item.path for item in store.client.list_artifacts(run_id, "script_metrics")] == ["script_metrics/train"]


def test_the_points_of_a_script_are_read_in_bounded_memory(tmp_path):
    folder = tmp_path / "0/run"
    (folder / "metrics").mkdir(parents=True)
    (folder / "meta.yaml").write_text("run_id: run\nstart_time: 1\n")
    (folder / "metrics/loss").write_text("".join(f"{step} {step} {step}\n" for step in range(100_000)) + "torn 1")
    (run,) = read_script_runs(tmp_path, 1000)
    assert run.metrics["loss"].num_points == 100_000 and len(run.metrics["loss"]) <= 1001
    assert [*run.metrics["loss"]][-1] == (99_999, 99_999, 99_999.0)


def test_the_table_of_requests_is_written_in_portions(tmp_path, monkeypatch):
    import pandas as pd

    monkeypatch.setattr(sample_series, "_AT_ONCE", 10)
    file = tmp_path / job_client.REQUESTS_FILE
    file.write_bytes(b"".join(job_client.REQUEST.pack(n, n, 0, 0, 2 * n, 3, 4) for n in range(1, 36)) + b"torn")
    path = sample_series.write(file, Clock(wall_ns=10**18, monotonic_ns=0), tmp_path)
    assert path is not None
    table = pd.read_parquet(path)
    assert table["sent_ns"].tolist() == list(range(1, 36)) and table["begun_ns"].isna().all()


@pytest.mark.slow
def test_who_gives_up_leaves_what_is_not_sent_in_the_spool(root: Path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(sending, "_TELL_S", 0.05)
    folders = [make_spool(root, record((), number=number), name=f"000{number}-mig") for number in (1, 2)]
    with Sender() as sender:
        sender.open(EXPERIMENT, root, None, 100)
        assert sender.wait_for_store()["ok"]
        os.kill(*sender.pids(), signal.SIGSTOP)
        sender.send(folders[0])
        begin_s = time.monotonic()
        sender.finish_requests(begin_s + 0.5)
        sender.send(folders[1])
        sender.finish_requests()
        assert time.monotonic() - begin_s < 5
        assert set(sender.unsent) == set(folders) and all(folder.exists() for folder in folders)
    assert not runs_of(client(root))


def test_the_half_of_a_file_that_a_killed_sender_left_is_removed(root: Path) -> None:
    folder = make_spool(root, record((child(0),)))
    store = open_store(root)
    runs = upload.begin(lambda uri: store, folder)
    artifacts = Path(store.client.get_run(runs.jobs[0]).info.artifact_uri.removeprefix("file://"))
    artifacts.mkdir(parents=True, exist_ok=True)
    (artifacts / ".artifact.uploading.x").write_text("half")
    (folder / ".upload-x").mkdir()
    upload.send(lambda uri: store, folder, series_points=50)
    assert {path.name for path in artifacts.iterdir()} == {"job.json", "events.jsonl", "stdout.log", "stderr.log"}


@pytest.mark.slow
def test_who_waits_for_long_is_told_for_what_and_a_signal_ends_it(root: Path, capsys, monkeypatch) -> None:
    def interrupt(*_: object) -> None:
        raise Interrupted(signal.SIGALRM)

    monkeypatch.setattr(sending, "_TELL_S", 0.05)
    folder = make_spool(root, record(()))
    before = signal.signal(signal.SIGALRM, interrupt)
    with Sender() as sender:
        sender.open(EXPERIMENT, root, None, 100)
        assert sender.wait_for_store()["ok"]
        os.kill(*sender.pids(), signal.SIGSTOP)
        sender.send(folder)
        signal.setitimer(signal.ITIMER_REAL, 0.7)
        try:
            with pytest.raises(Interrupted):
                sender.finish_requests()
        finally:
            signal.signal(signal.SIGALRM, before)
        sender.give_up("interrupted")
        assert sender.unsent == {folder: "interrupted"}
    messages = [line for line in capsys.readouterr().err.splitlines() if "sending " in line]
    assert 2 <= len(messages) <= 6 and messages[0].startswith("sending 0001-mig (0 MB) has taken ")
