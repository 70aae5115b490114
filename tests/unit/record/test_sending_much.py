"""What jobs log of themselves in millions: thinned in the store, whole in files, and nobody waits for it for ever."""

from __future__ import annotations

import os
import signal
import time
from itertools import pairwise
from pathlib import Path

import pytest

from pipeline.base.domain.samples import PointSeries, thin_points
from pipeline.base.domain.script_runs import read_script_runs
from pipeline.base.system.interrupts import Interrupted
from pipeline.record import sample_series
from pipeline.record import tracking_sender as sending
from pipeline.record.group_record import Clock
from pipeline.record.store import upload
from pipeline.record.store.local_store import open_store
from pipeline.record.tracking_sender import Sender
from tests.support.tracking_cases import EXPERIMENT, by_name, child, client, make_spool, record, runs_of, series
from workloads import client as job_client

pytest_plugins = ["tests.support.tracking_fixtures"]
pytestmark = pytest.mark.store


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
