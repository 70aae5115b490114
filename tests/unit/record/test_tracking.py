"""The sender, `flush` and the links: with the real program, a real sqlite store and a real server."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from pipeline.base.domain.layout import DATABASE
from pipeline.base.domain.records import Result
from pipeline.base.system.interrupts import Interrupted
from pipeline.record.group_folder import Amendment, write_amendment
from pipeline.record.store.local_store import set_mlflow_defaults
from pipeline.record.store.run_artifacts import describe_local_ui, describe_ui, make_run_link, make_ui_link
from pipeline.record.tracking_sender import Sender
from tests.support import forks
from tests.support.mlflow_server import start_server
from tests.support.tracking_cases import (
    EXPERIMENT,
    PROJECT,
    as_running,
    by_name,
    child,
    client,
    make_spool,
    record,
    runs_of,
    sample,
    series,
)

pytestmark = pytest.mark.store


def flush(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return forks.run("-m", "pipeline.tracking", "flush", "--root", root, *arguments)


def test_the_sender_records_a_group(root: Path, serve) -> None:
    all_series = {"0": series(), "1": series()}
    folder = make_spool(root, record((child(0), child(1, result=Result.FAILED))), all_series=all_series)
    (folder / "samples.jsonl").write_text(sample("nvml", 1, {"power_w": 71.5}))
    sender = serve("--root", root)
    opened = sender.ask("open", experiment=EXPERIMENT)
    assert opened["ok"]
    assert opened["kind"] == "local"

    begun = sender.ask("begin", spool=folder)
    tracking = client(root)
    running = by_name(tracking)
    assert {run.info.status for run in running.values()} == {"RUNNING"}
    assert running["group 1"].info.experiment_id == opened["experiment_id"]
    assert running["group 1"].data.params["degree"] == "2"
    assert json.loads((folder / "mlflow.json").read_text())["runs"]["1"] == running["1-toy"].info.run_id

    sent = sender.ask("send", spool=folder)
    assert begun == {"ok": True, "run_id": running["group 1"].info.run_id}
    assert sent == begun | {"failed": {"1": running["1-toy"].info.artifact_uri}}
    done = by_name(tracking)
    assert {name: run.info.status for name, run in done.items()} == {
        "group 1": "FINISHED",
        "0-toy": "FINISHED",
        "1-toy": "FAILED",
    }
    parent, first = done["group 1"], done["0-toy"]
    assert (parent.info.start_time, parent.info.end_time) == (1_700_000_000_000, 1_700_000_061_000)
    assert parent.data.metrics == {"makespan_s": 60.25, "system/nvml/power_w": 71.5}
    assert first.data.tags["mlflow.parentRunId"] == parent.info.run_id
    assert first.data.metrics == {"throughput_samples_per_s": 10.5, "series_0": 0.2, "system/nvml/power_w": 71.5}
    history = tracking.get_metric_history(first.info.run_id, "series_0")
    assert [(m.step, m.timestamp, m.value) for m in history] == [
        (step, 1_700_000_000_000 + step * 1000, step / 10) for step in range(3)
    ]
    paths = {item.path for item in tracking.list_artifacts(first.info.run_id)}
    assert paths == {"job.json", "events.jsonl", "stdout.log", "stderr.log"}
    assert {item.path for item in tracking.list_artifacts(parent.info.run_id)} == {
        "config.yaml",
        "record.json",
        "samples.parquet",
        "series.json",
    }
    assert not folder.exists()

    assert sender.ask("send", spool=folder) == {"ok": True, "run_id": None, "failed": {}}
    [finished] = sender.ask("finished", experiment=EXPERIMENT)["groups"]
    assert (finished["digest"], finished["result"], finished["metrics"]["makespan_s"]) == ("digest1", "ok", 60.25)
    sender.process.stdin.close()
    assert sender.process.wait(10) == 0
    assert not (root / "spool").exists()


@pytest.mark.slow
def test_figures_that_are_known_later_reach_a_group_that_waits_and_one_that_was_sent(root: Path, serve) -> None:
    folder = make_spool(root, tagged := record(()))
    sender = serve("--root", root)

    def amend(result: str = "ok", reason: str = "", **metrics: float) -> bool:
        known = {"metrics": metrics, "result": result, "reason": reason}
        amendment = Amendment(experiment=EXPERIMENT, spool_id=tagged.spool_id, **known)
        file = write_amendment(root / "spool", amendment)
        is_added = bool(sender.ask("amend", spool=file)["ok"])
        assert file.exists() != is_added  # it waits until the store has it
        return is_added

    def description() -> str:
        [run] = runs_of(client(root))
        return run.data.tags["mlflow.note.content"]

    assert not amend(speedup_vs_serial_ratio=1.5)
    sender.ask("send", spool=folder)
    assert amend(speedup_vs_serial_ratio=1.5)
    assert description() == "ok, speed-up 1.50"
    assert amend("wrong_results", "the losses differ", late_ratio=2.5)
    assert description() == "wrong_results, speed-up 1.50: the losses differ"
    [run] = runs_of(client(root))
    assert run.data.metrics == {"makespan_s": 60.25, "speedup_vs_serial_ratio": 1.5, "late_ratio": 2.5}


@pytest.mark.slow
def test_each_group_goes_where_its_study_was_sending_unless_told_otherwise(root: Path) -> None:
    from mlflow import MlflowClient

    elsewhere = root.parent / "elsewhere.db"
    shutil.copy(root / DATABASE, elsewhere)
    uri = f"sqlite:///{elsewhere}"
    # MLflow would keep its artifacts in the working folder.
    MlflowClient(uri).create_experiment(EXPERIMENT, artifact_location=str(root.parent / "artifacts"))
    tagged = record(())
    late = Amendment(
        experiment=EXPERIMENT, spool_id=tagged.spool_id, metrics={"x": 1.0}, result="ok", reason="", uri=uri
    )
    make_spool(root, replace(tagged, uri=uri), "0001-elsewhere")
    write_amendment(root / "spool", late)
    make_spool(root, record(()), "0002-here")

    sent = flush(root)
    assert sent.returncode == 0, sent.stderr
    assert f"0001-elsewhere to {uri} as run" in sent.stdout and f"0002-here to {root} as run" in sent.stdout
    (moved_run,) = runs_of(MlflowClient(uri))
    assert moved_run.data.metrics["x"] == 1.0
    assert len(runs_of(client(root))) == 1

    make_spool(root, record(()))
    assert flush(root, "--uri", uri).returncode == 0
    assert len(runs_of(MlflowClient(uri))) == 2


@pytest.mark.slow
def test_a_sender_that_dies_is_started_again_once(root: Path) -> None:
    folders = [make_spool(root, record((), number=n), name=f"000{n}-mig") for n in (1, 2)]
    with Sender() as sender:
        sender.open(EXPERIMENT, root, None, 100)
        assert sender.wait_for_store()["ok"]
        for folder in folders:
            os.kill(*sender.pids(), signal.SIGKILL)
            sender.send(folder)
            sender.finish_requests()
        assert list(by_name(client(root))) == ["group 1"] and not folders[0].exists()
        assert list(sender.unsent) == [folders[1]] and "has ended" in sender.unsent[folders[1]]


@pytest.mark.slow
def test_one_process_sends_for_one_study_after_another_and_each_begins_with_nothing(root: Path) -> None:
    folders = [make_spool(root, record((), number=n), name=f"000{n}-mig") for n in (1, 2)]
    first = Sender()
    with first:
        pid = first.pids()
        first.open(EXPERIMENT, root, None, 100)
        first.send(folders[0])
        first.send(root / "spool" / "study" / "no such group")
        first.finish_requests()
        assert first.runs and first.wait_for_store()["ok"]
        second = first.renew()
    with second:  # the end of the first study has not ended its process
        assert second.pids() == pid and not second.runs and not second.unsent
        second.open(EXPERIMENT, root, None, 100)
        second.send(folders[1])
        second.finish_requests()
        os.kill(*pid, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(*pid)], 10)
        third = second.renew()
    with third:
        assert third.pids() != pid
        third.give_up("it hangs")
        fourth = third.renew()
    with fourth:
        fourth.open(EXPERIMENT, root, None, 100)
        assert fourth.wait_for_store()["ok"]
    assert sorted(by_name(client(root))) == ["group 1", "group 2"]


@pytest.mark.slow
def test_an_interruption_while_a_sender_is_started_again_loses_no_request(root: Path, monkeypatch) -> None:
    folder = make_spool(root, record(()))
    reads = iter(("let it see that the process has ended", "interrupt it"))
    read = Sender._read

    def interrupt_once(sender: Sender) -> str | None:
        if next(reads, None) == "interrupt it":
            raise Interrupted(signal.SIGTERM)
        return read(sender)

    with Sender() as sender:
        sender.open(EXPERIMENT, root, None, 100)
        assert sender.wait_for_store()["ok"]
        os.kill(*sender.pids(), signal.SIGKILL)
        monkeypatch.setattr(Sender, "_read", interrupt_once)
        with pytest.raises(Interrupted):
            sender.find_finished(EXPERIMENT)
        sender.send(folder)
        sender.finish_requests()
    assert not folder.exists() and list(by_name(client(root))) == ["group 1"]


@pytest.mark.slow
def test_who_leaves_does_not_wait_for_a_new_store(tmp_path: Path) -> None:
    root = tmp_path / "new"
    with Sender() as sender:
        sender.open(EXPERIMENT, root, None, 100)
        deadline = time.monotonic() + 60
        while not root.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert [path.name for path in root.iterdir() if path.name == "mlflow.db"] == []


def test_flush_sends_the_figures_that_came_too_late(root: Path) -> None:
    tagged = record(())
    make_spool(root, tagged)
    late = {"metrics": {"late_ratio": 2.5}, "result": "wrong_results", "reason": "other losses"}
    write_amendment(root / "spool", Amendment(experiment=EXPERIMENT, spool_id=tagged.spool_id, **late))
    assert flush(root).returncode == 0
    [run] = runs_of(client(root))
    assert run.data.metrics["late_ratio"] == 2.5
    assert run.data.tags["collocation.result"] == "wrong_results"
    assert run.data.tags["collocation.reason"] == "other losses"
    assert run.info.status == "FAILED"
    assert run.info.end_time == tagged.clock.to_wall_ms(tagged.end_ns)
    assert not (root / "spool").exists()


def test_the_sender_finishes_the_group_of_an_orchestrator_that_died(root: Path, serve) -> None:
    running = {"result": None, "end_ns": None}
    abandoned = record((child(0, **running),))
    folder = make_spool(root, replace(abandoned, **running))
    sender = serve("--root", root)
    assert sender.ask("begin", spool=folder)["ok"]
    sender.process.stdin.close()
    assert sender.process.wait(20) == 0
    assert {run.info.status for run in by_name(client(root)).values()} == {"KILLED"}
    assert not folder.exists()


@pytest.mark.slow
def test_the_sender_answers_every_line_and_survives_ctrl_c(root: Path, serve) -> None:
    sender = serve("--root", root, is_real=True)
    assert "unknown request" in sender.ask("dance")["error"]
    sender.process.stdin.write("not json\n")
    sender.process.stdin.flush()
    assert json.loads(sender.process.stdout.readline())["ok"] is False
    sender.process.send_signal(signal.SIGINT)
    folder = make_spool(root, as_running(record((child(0),))))
    refused = sender.ask("send", spool=folder)
    assert refused["ok"] is False
    assert "has not ended" in refused["error"]
    assert folder.exists()
    assert sender.ask("open", experiment=EXPERIMENT)["ok"] is True
    assert "deleted" in sender_on_deleted_experiment(sender, root)


def sender_on_deleted_experiment(sender: Any, root: Path) -> str:
    tracking = client(root)
    tracking.delete_experiment(tracking.create_experiment("gone"))
    return str(sender.ask("open", experiment="gone")["error"])


@pytest.mark.slow
def test_a_full_disk_is_told_in_a_line_and_what_was_not_sent_is_sent_later(root: Path) -> None:
    folder = make_spool(root, as_running(record((child(0),))))
    code = "import resource, runpy, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000)); del sys.argv[0]"
    code += "; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
    with forks.start("-c", code, "pipeline.tracking", "serve", "--root", root, has_stdin=True) as sender:
        sender.stdin.write(json.dumps({"op": "begin", "spool": str(folder)}) + "\n")
        sender.stdin.flush()
        answer = json.loads(sender.stdout.readline())
        # Its orchestrator is gone: it closes the group, and cannot send it either.
        _, err = sender.communicate(timeout=600)
        assert sender.wait() == 0
    assert answer["ok"] is False and "\n" not in answer["error"]
    assert "Traceback" not in err and "groups of a killed study remain in the spool: " in err
    assert flush(root).returncode == 0
    assert {run.info.status for run in runs_of(client(root))} == {"FINISHED", "KILLED"}


KILLED_IN_A_JOB = """
import os, runpy, signal, sys
from mlflow import MlflowClient
log_batch = MlflowClient.log_batch
def killed(client, run_id, *arguments, **options):
    log_batch(client, run_id, *arguments, **options)
    if options.get('metrics') and client.get_run(run_id).info.run_name == '3-toy':
        os.kill(os.getpid(), signal.SIGKILL)
MlflowClient.log_batch = killed
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)
"""


@pytest.mark.slow
def test_a_sender_killed_while_it_sends_is_repeated_without_a_trace(root: Path, serve) -> None:
    num_points = [50, 50, 50, 500, 50, 50, 50]  # the fourth job takes several requests, and the first one is the last
    folder = make_spool(
        root,
        record(tuple(child(index) for index in range(len(num_points)))),
        all_series={str(index): series(num_series=5, num_points=num) for index, num in enumerate(num_points)},
    )
    with forks.start("-c", KILLED_IN_A_JOB, "pipeline.tracking", "serve", "--root", root, has_stdin=True) as first:
        for op in ("begin", "send"):
            first.stdin.write(json.dumps({"op": op, "spool": str(folder)}) + "\n")
        first.stdin.flush()
        assert first.wait(600) == -signal.SIGKILL
    tracking = client(root)
    states = {name: run.info.status for name, run in by_name(tracking).items()}
    assert [states[f"{index}-toy"] for index in range(5)] == [*["FINISHED"] * 3, *["RUNNING"] * 2]

    assert serve("--root", root, "--series-points", "4000").ask("send", spool=folder)["ok"]

    runs = by_name(tracking)
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    assert len(runs) == 8
    for index, num in enumerate(num_points):
        assert len(tracking.get_metric_history(runs[f"{index}-toy"].info.run_id, "series_4")) == num


@pytest.mark.slow
def test_flush_sends_what_was_left_and_says_what_it_could_not(root: Path) -> None:
    make_spool(root, record((child(0),), number=1), "0001-a")
    abandoned = record((child(0, result=None, end_ns=None),), number=2)
    make_spool(root, replace(abandoned, result=None, end_ns=None), "0002-b")
    damaged = make_spool(root, record((child(0),)), "0003-c")
    (damaged / "record.json").write_text("{")

    done = flush(root)

    assert done.returncode == 1
    assert [line.split(" as ")[0] for line in done.stdout.splitlines()] == [
        f"sent {root}/spool/study/0001-a to {root}",
        f"sent {root}/spool/study/0002-b to {root}",
    ]
    assert "0003-c" in done.stderr
    runs = {run.info.run_name: run for run in runs_of(client(root)) if run.data.tags["collocation.role"] == "group"}
    assert {name: (run.info.status, run.data.tags["collocation.result"]) for name, run in runs.items()} == {
        "group 1": ("FINISHED", "ok"),
        "group 2": ("KILLED", "interrupted"),
    }
    (damaged / "record.json").unlink()
    assert flush(root).returncode == 0
    done = flush(root / "absent")
    assert done.returncode == 2
    assert done.stderr == f"error: the folder {root / 'absent'} does not exist; set --root to the folder of a study\n"


def test_importing_the_tracking_modules_imports_no_mlflow() -> None:
    code = (
        "import sys, pipeline.tracking, pipeline.record.store.results, pipeline.record.spool\n"
        "import pipeline.record.tracking_sender\n"
        "sys.exit(any(name in sys.modules for name in ('mlflow', 'pandas', 'pyarrow', 'sqlalchemy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=PROJECT, check=False).returncode == 0


def test_links_open_the_view_that_shows_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda program: f"/usr/bin/{program}")
    page = "#/experiments/3/runs?workflowType=machine_learning&viewStateShareKey=collocation"
    assert make_ui_link("http://host:80/", "3") == f"http://host:80/{page}"
    monkeypatch.chdir(tmp_path)
    assert describe_local_ui(Path("mlruns"), "3") == (
        f"mlflow ui --backend-store-uri sqlite:///mlruns/mlflow.db --workers 1   then open http://127.0.0.1:5000/{page}"
    )
    assert describe_local_ui(Path("/a b"), "3").startswith("mlflow ui --backend-store-uri 'sqlite:////a b/mlflow.db' ")
    assert describe_ui("https://host:80/", "3") == f"https://host:80/{page}"
    for uri, typed in (
        ("sqlite:///other.db", "sqlite:///other.db"),
        ("sqlite:////a b/other.db", "'sqlite:////a b/other.db'"),
        ("postgresql+psycopg2://me:secret@host/db", "postgresql+psycopg2://host/db"),
        ("file:///runs", "file:///runs"),
    ):
        command, _, link = describe_ui(uri, "3").partition("   then open ")
        assert command == f"mlflow ui --backend-store-uri {typed} --workers 1"
        assert link == f"http://127.0.0.1:5000/{page}"
    assert describe_ui("databricks://mine", "3") == "experiment 3 in the workspace of databricks://mine"
    page = "#/experiments/3/runs/ab?workflowType=machine_learning"  # else MLflow shows its GenAI pages
    assert make_run_link("http://host:80/", "3", "ab") == f"http://host:80/{page}"
    assert make_run_link(None, "3", "ab") == f"http://127.0.0.1:5000/{page}"
    monkeypatch.setattr("shutil.which", lambda program: None)
    monkeypatch.setattr("sys.executable", "/b c/python")
    assert describe_local_ui(Path("mlruns"), "3").startswith("'/b c/mlflow' ui ")


def test_a_server_that_never_answers_is_an_error_within_fifteen_seconds(
    tmp_path: Path, serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = "MLFLOW_HTTP_REQUEST_TIMEOUT"
    with monkeypatch.context() as unset:
        unset.delenv(limit, raising=False)
        set_mlflow_defaults()
        limit_s = float(os.environ[limit])
    monkeypatch.setenv(limit, "1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        sender = serve("--root", tmp_path, "--uri", f"http://127.0.0.1:{silent.getsockname()[1]}")
        assert "unknown request" in sender.ask("ping")["error"]  # MLflow is imported now
        began = time.monotonic()
        answer = sender.ask("open", experiment=EXPERIMENT)
        assert answer["ok"] is False
        assert time.monotonic() - began < 15
        assert 0 < num_connections(silent) * (limit_s + 1) < 15  # by default each is waited for that much longer
    assert list(tmp_path.iterdir()) == []


def num_connections(server: socket.socket) -> int:
    """How many clients have connected."""
    number = 0
    server.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            server.accept()[0].close()
            number += 1
    return number


@pytest.mark.slow
def test_a_server_goes_away_and_comes_back(tmp_path: Path, serve) -> None:
    served_port, port = free_port(), free_port()
    uri = f"http://127.0.0.1:{port}"
    server = start_server(tmp_path, served_port)
    try:
        with forward_port(port, served_port):
            sender = serve("--root", tmp_path / "mlruns", "--uri", uri)
            assert sender.ask("open", experiment=EXPERIMENT)["kind"] == "server"
            lost = record((child(0, params={"empty": "", "workload": "toy"}), child(1)))
            folder = make_spool(tmp_path / "mlruns", lost)
            begun = sender.ask("begin", spool=folder)
            assert begun["ok"], begun
        answer = sender.ask("send", spool=folder)
        assert answer["ok"] is False
        assert len(answer["error"].splitlines()) == 1
        assert folder.exists()
        with forward_port(port, served_port):
            done = flush(tmp_path / "mlruns", "--uri", uri)
            assert done.returncode == 0, done.stderr
            from mlflow import MlflowClient

            tracking = MlflowClient(tracking_uri=uri)
            runs = by_name(tracking)
            assert runs["group 1"].info.run_id == begun["run_id"]
            assert {name: run.info.status for name, run in runs.items()} == dict.fromkeys(
                ("group 1", "0-toy", "1-toy"), "FINISHED"
            )
            assert {item.path for item in tracking.list_artifacts(begun["run_id"])} == {"config.yaml", "record.json"}
            assert not folder.exists()
    finally:
        server.terminate()
        server.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextlib.contextmanager
def forward_port(port: int, to: int) -> Iterator[None]:
    """The server as clients see it: as long as this lasts it is there, then connections break and none is accepted."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", to)) as server:
                ends = {self.request: server, server: self.request}
                while not is_over.is_set():
                    for end in select.select(list(ends), [], [], 0.05)[0]:
                        if not (data := end.recv(1 << 16)):
                            return
                        ends[end].sendall(data)

    class Forwarder(socketserver.ThreadingTCPServer):
        allow_reuse_address = True

    is_over = threading.Event()
    with Forwarder(("127.0.0.1", port), Handler) as forwarder:
        threading.Thread(target=forwarder.serve_forever, args=(0.05,)).start()
        try:
            yield
        finally:
            is_over.set()
            forwarder.shutdown()
