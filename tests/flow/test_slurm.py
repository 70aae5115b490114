"""A study as a job array of a real Slurm, on simulated GPUs."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import tempfile
from pathlib import Path

import pytest

from pipeline.base.paths import PROJECT_DIR
from pipeline.record.store.overview import overview
from tests import forks, slurm_cluster
from tests.mlflow_server import start_server
from tests.run_cases import SHORT, TOY
from tests.tracking_cases import wait_for

MACHINE = ["gpu=simulated_a100_40gb", "gpu.count=2", "gpu.machine=machine.json"]
STUDY = ["-m", *TOY, *SHORT[1:], "window.seconds=4", "degree=2", "repeats=3", "listeners=[host]", *MACHINE]

pytestmark = pytest.mark.skipif(bool(why := slurm_cluster.missing()), reason=why)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of a tracking server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = start_server(tmp_path_factory.mktemp("server"), port, limit_s=180)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(30)


@pytest.fixture(scope="module")
def slurm():
    """The variables of a cluster with two GPUs."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, slurm_cluster.cluster(Path(folder), gpus=2) as environ:
        yield environ


@pytest.fixture
def start(tmp_path, server, slurm):
    """Start a study on the cluster."""

    def begin(*arguments):
        tracking = ["tracking=server", f"tracking.uri={server}", f"tracking.experiment={tmp_path.name}"]
        launcher = ["hydra/launcher=slurm", "hydra.launcher.cpus_per_task=1", f"hydra.launcher.folder={tmp_path}/slurm"]
        argv = [PROJECT_DIR / "run.py", *STUDY, f"gpu.lock_dir={tmp_path}", *tracking, *launcher, *arguments]
        return forks.start(*argv, cwd=tmp_path, env=os.environ | slurm)

    return begin


def said(process, words):
    """The first line of a study that says this."""
    return next(line for line in process.stderr if re.search(words, line))


@pytest.mark.slow
def test_a_task_that_is_cancelled_is_run_again_and_one_that_is_requeued_goes_on(start, tmp_path, server, slurm):
    process = start()
    job = re.search(r"job array (\d+)", said(process, "^submitted 3 units of 3 as job array"))[1]
    # Of a simulated GPU, what a task was granted is all that tells it which one to take.
    logs = [tmp_path / f"slurm/{job}_{unit}.log" for unit in (1, 2)]
    wait_for(lambda: all(log.exists() and re.search(r"^\[1/2\]", log.read_text(), re.MULTILINE) for log in logs), 60)
    for command in (["scancel", f"{job}_2"], ["scontrol", "requeue", f"{job}_1"]):
        subprocess.run(command, env=os.environ | slurm, check=True)
    # A requeued task may begin after two minutes only, if nobody says otherwise.
    wait_for(lambda: "PENDING" in state_of(f"{job}_1", slurm), 60)
    subprocess.run(["scontrol", "update", f"jobid={job}_1", "starttime=now"], env=os.environ | slurm, check=True)
    _, err = process.communicate(timeout=150)
    assert process.returncode == 1, err
    found = overview(server, tmp_path.name)
    assert [unit.state for unit in found.units if unit.number != 2] == ["done"] * 2
    assert found.units[1].state != "done", logs[1].read_text()
    process = start("resume=true")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "submitted 1 unit of 3" in err
    found = overview(server, tmp_path.name)
    assert [dict(unit.results) for unit in found.units] == [{"ok": 2}] * 3
    assert len({unit.gpu for unit in found.units}) == 2
    assert '"processes": []' in (tmp_path / "machine.json").read_text()


def test_what_slurm_refuses_is_said_in_its_words_and_nothing_is_submitted(start, slurm):
    process = start("hydra.launcher.partition=nowhere")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2, err
    assert re.search("^error: Slurm refused the job array: .*invalid partition", err, re.MULTILINE), err
    listed = subprocess.run(
        ["squeue", "--noheader"], env=os.environ | slurm, capture_output=True, text=True, check=True
    )
    assert listed.stdout == ""


def state_of(job, slurm):
    """What `squeue` says of a task."""
    argv = ["squeue", "--noheader", "--format=%T", f"--jobs={job}"]
    return subprocess.run(argv, env=os.environ | slurm, capture_output=True, text=True, check=False).stdout
