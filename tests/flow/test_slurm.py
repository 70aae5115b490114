"""A study as a job array of a real Slurm, on simulated GPUs."""

from __future__ import annotations

import os
import re
import socket
import tempfile
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest

from pipeline.base.system import squeue
from pipeline.base.system.errors import TrackingError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.record.shards.overview import read_overview
from pipeline.record.shards.shard_states import NOT_BEGUN, RUNNING, WAITING
from pipeline.report.read import rows
from pipeline.simulation.machine.state_file import StateFile
from tests.support import forks, slurm_cluster
from tests.support.mlflow_server import start_server
from tests.support.run_cases import SHORT, TOY, groups
from tests.support.servers import refuse_or_skip
from tests.support.waiting import wait_until

MACHINE = ["gpu=simulated_a100_40gb", "gpu.count=2", "gpu.machine=machine.json"]
STUDY = ["-m", *TOY, *SHORT[1:], "window.seconds=4", "degree=2", "repeats=3", "listeners=[host]"]

pytestmark = [refuse_or_skip(slurm_cluster.missing()), pytest.mark.slow, pytest.mark.covers("pipeline/scale")]


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
    """A cluster of two nodes."""
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, slurm_cluster.cluster(Path(folder), gpus=2) as cluster:
        yield cluster


@pytest.fixture
def start(tmp_path, server, slurm, monkeypatch):
    """Start a study on the cluster."""
    for name, value in slurm.environ.items():
        monkeypatch.setenv(name, value)
    # The nodes are one host with one GPU a node, and each calls its own the first.
    setup = ["hydra.launcher.setup=['export CUDA_VISIBLE_DEVICES=`echo $SLURMD_NODENAME | tr -d n`']"]

    def begin(*arguments, machine=MACHINE):
        tracking = ["tracking=server", f"tracking.uri={server}", f"tracking.experiment={tmp_path.name}"]
        launcher = ["hydra/launcher=slurm", "hydra.launcher.cpus_per_task=1", f"hydra.launcher.folder={tmp_path}/slurm"]
        argv = [*STUDY, *machine, f"gpu.lock_dir={tmp_path}", *tracking, *launcher, *setup, *arguments]
        return forks.start(PROJECT_DIR / "run.py", *argv, cwd=tmp_path, env=os.environ)

    return begin


class Array:
    """The job array of a study that was started."""

    def __init__(self, process, slurm, folder, server):
        submitted = next(
            match for line in process.stderr if (match := re.match(r"submitted .* as job array (\d+)", line))
        )
        self.job, self.slurm, self.folder, self.server = submitted[1], slurm, folder, server

    def log_of(self, shard):
        path = self.folder / f"slurm/{self.job}_{shard}.log"
        return path.read_text() if path.exists() else ""

    def wait_until_measured(self, *shards):
        """Until the server has a group of each task that runs."""

        def are_measured():
            begun = [bool(re.search(r"^\[1/2\]", self.log_of(shard), re.MULTILINE)) for shard in shards]
            time.sleep(0.2)
            try:
                return all(begun) and all(self.overview().shards[shard - 1].group for shard in shards)
            except TrackingError:  # a group says on its terminal that it begins before the server has it
                return False

        wait_until(are_measured, 120)

    def overview(self):
        return read_overview(self.server, f"{self.folder.name}-rehearsal", squeue.read_cluster_states)

    def state_of(self, shard):
        return self.slurm.ask("squeue", "--noheader", "--format=%T", f"--jobs={self.job}_{shard}").strip()

    def node_of(self, shard):
        return self.slurm.ask("squeue", "--noheader", "--format=%N", f"--jobs={self.job}_{shard}").strip()

    def start_now(self, *shards):
        """Once tasks are requeued: they may begin after two minutes only, if nobody says otherwise."""
        wait_until(lambda: all(self.state_of(shard) == "PENDING" for shard in shards), 120)
        for shard in shards:
            self.update(shard, "starttime=now")

    def update(self, shard, change):
        self.slurm.tell("scontrol", "update", f"jobid={self.job}_{shard}", change)


def test_tasks_that_are_cancelled_warned_or_requeued_are_gone_on_with(start, tmp_path, server, slurm):
    process = start()
    array = Array(process, slurm, tmp_path, server)
    array.wait_until_measured(1, 2)
    slurm.tell("scancel", f"{array.job}_2")
    slurm.tell("scontrol", "requeue", f"{array.job}_1")
    wait_until(lambda: array.overview().shards[0].state == WAITING, 120)
    array.start_now(1)
    array.wait_until_measured(3)
    # As Slurm does before a time limit, which it looks at every half minute only.
    slurm.tell("scancel", "--batch", "--signal=TERM", f"{array.job}_3")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1, err
    overview = array.overview()
    assert [shard.state == "done" for shard in overview.shards] == [True, False, False], err
    assert overview.shards[2].results["interrupted"] == 1, array.log_of(3)
    assert "tracking process has ended" not in array.log_of(2), array.log_of(2)
    process = start("resume=true")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "submitted 2 shards of 3" in err
    overview = array.overview()
    assert [dict(shard.results) for shard in overview.shards] == [{"ok": 2}] * 3
    assert len({shard.gpu for shard in overview.shards}) == 2
    assert not any(gpu.processes for gpu in StateFile(tmp_path / "machine.json").read().gpus)


@pytest.mark.exhaustive
def test_a_group_that_the_time_limit_does_not_hold_is_given_up_before_it(start, tmp_path, server, slurm):
    limits = ["hydra.launcher.timeout_min=60", "hydra.launcher.signal_delay_s=20"]
    process = start("repeats=1", "window.seconds=80", *limits)
    array = Array(process, slurm, tmp_path, server)
    array.wait_until_measured(1)
    array.update(1, "endtime=now+70")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1, err
    (shard,) = array.overview().shards
    assert shard.results == {"interrupted": 1}, array.log_of(1)
    assert not any(gpu.processes for gpu in StateFile(tmp_path / "machine.json").read().gpus)


def test_shards_of_nodes_that_died_or_only_seemed_to_are_run_again_and_counted_once(start, tmp_path, server, slurm):
    process = start("repeats=2")
    array = Array(process, slurm, tmp_path, server)
    array.wait_until_measured(1, 2)
    dead, seeming = array.node_of(1), array.node_of(2)
    slurm.kill(dead, is_with_jobs=True)
    slurm.kill(seeming)
    slurm.give_up()
    slurm.restart_control()
    wait_until(lambda: array.overview().shards[0].state == WAITING, 120)
    # What runs on a node that nobody believes in ends its shard.
    wait_until(lambda: "2 groups in " in array.log_of(2), 120)
    assert array.overview().shards[1].state == "done"
    slurm.start()
    array.start_now(1, 2)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    # By its own task or by the other, whichever began first: both have one spool.
    from mlflow import MlflowClient

    ran = [run for run, _ in groups(MlflowClient(server), f"{tmp_path.name}-rehearsal")]
    assert [run.data.tags["collocation.result"] for run in ran].count("interrupted") == 1
    overview = array.overview()
    assert [dict(shard.results) for shard in overview.shards] == [{"ok": 2}] * 2
    study = rows.read([server], f"{tmp_path.name}-rehearsal")
    assert [(block.num_groups, block.num_missing) for block in study.blocks] == [(2, 0)] * 2
    assert study.num_planned == len(study.rows) == 4
    assert not [run for run in ran if run.info.status == "RUNNING"]
    assert not any(gpu.processes for gpu in StateFile(tmp_path / "machine.json").read().gpus)


def test_tasks_that_share_a_device_wait_for_each_other_and_a_task_that_fails_says_why(start, tmp_path, server):
    shared = ["gpu=cpu", "hydra.launcher.gres=null", "baseline=never", "window.seconds=1"]
    process = start(machine=shared)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "shards: 3 done; 3 of 3 groups have a result" in err
    logs = [path.read_text() for path in sorted((tmp_path / "slurm").glob("*.log"))]
    assert any("\nwaiting for " in log for log in logs), logs
    (tmp_path / "hydra.py").write_text("import no_such_module\n")
    broken = f"hydra.launcher.setup=['export PYTHONPATH={tmp_path}']"
    process = start("resume=true", "repeats=4", broken, machine=shared)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1, err
    why = rf"^shards? .*4: ModuleNotFoundError: No module named 'no_such_module' \(output: {tmp_path}/slurm/.*\.log\)$"
    assert re.search(why, err, re.MULTILINE), err


def test_tasks_are_seen_before_one_of_them_begins(start, tmp_path, server, slurm):
    slurm.tell("scontrol", "update", "partitionname=test", "state=down")
    try:
        process = start("repeats=2", "hydra.launcher.wait=false")
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0, err
        (job,) = re.findall(r"as job array (\d+)", err)
        seen = read_overview(server, f"{tmp_path.name}-rehearsal", squeue.read_cluster_states)
        assert [(shard.state, shard.reason) for shard in seen.shards] == [(WAITING, "PartitionDown")] * 2
        process = start("repeats=2", "hydra.launcher.wait=false", "hydra.launcher.mem=100", "resume=true")
        _, err = process.communicate(timeout=300)
        assert (process.returncode, f"shards 1, 2 are still in the queue (job {job})" in err) == (1, True), err
        slurm.tell("scancel", job)
        name = f"{tmp_path.name}-rehearsal"
        wait_until(lambda: read_overview(server, name, squeue.read_cluster_states).shards[0].state == NOT_BEGUN, 60)
    finally:
        slurm.tell("scontrol", "update", "partitionname=test", "state=up")


def test_a_task_of_which_no_process_is_left_is_lost_until_its_shard_is_run_again(start, tmp_path, server, slurm):
    process = start("repeats=1")
    array = Array(process, slurm, tmp_path, server)
    array.wait_until_measured(1)
    assert array.overview().shards[0].state == RUNNING
    (task,) = (
        candidate
        for candidate in psutil.process_iter(["cmdline"])
        if {"shard=1", f"tracking.experiment={tmp_path.name}"} <= set(candidate.info["cmdline"] or [])
    )
    for process_of_task in [*task.children(recursive=True), task]:  # its sender would say how it ended
        process_of_task.kill()
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1, err
    assert "study: lost; 0 of 2 groups have a result" in err
    how = r"^to run the rest: .* repeats=1 resume=true$"
    assert re.search(how, err, re.MULTILINE), err
    process = start("repeats=1", "resume=true")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert dict(array.overview().shards[0].results) == {"ok": 2}
    assert not any(gpu.processes for gpu in StateFile(tmp_path / "machine.json").read().gpus)


def test_a_task_runs_one_case_of_a_block_with_its_baselines(start, tmp_path, server):
    process = start("workload.args=[well],[well,'--only=0']", "shard_of=case", "repeats=1", "window.seconds=0.2")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "submitted 2 shards of 2" in err
    assert [dict(shard.results) for shard in read_overview(server, f"{tmp_path.name}-rehearsal").shards] == [
        {"ok": 2}
    ] * 2, err
    study = rows.read([server], f"{tmp_path.name}-rehearsal")
    assert study.num_planned == len(study.rows) == 4
    modes = Counter((row.facts["shard"], row.is_sequential) for row in study.rows)
    assert modes == Counter([("1", True), ("1", False), ("2", True), ("2", False)])


def test_what_slurm_refuses_is_said_in_its_words_and_nothing_is_submitted(start, slurm):
    before = slurm.ask("squeue", "--noheader")
    process = start("hydra.launcher.partition=nowhere")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 2, err
    assert re.search("^error: Slurm refused the job array: .*invalid partition", err, re.MULTILINE), err
    assert slurm.ask("squeue", "--noheader") == before
