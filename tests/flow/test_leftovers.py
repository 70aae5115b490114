"""Studies on a simulated GPU: what they leave, what they leave alone, and what is refused before anything."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.system.paths import PROJECT_DIR
from pipeline.clean import leftovers, processes
from pipeline.prepare.device import lease, nvml
from pipeline.prepare.mps import mps_daemon
from pipeline.record import group_record
from pipeline.simulation.install import install_driver
from pipeline.simulation.machine import codes
from pipeline.simulation.machine.driver import Clients, Driver
from pipeline.simulation.machine.state_file import Fault
from pipeline.simulation.mps.control_program import write_program
from tests.support import forks, run_cases, simulated
from tests.support.job_server import is_alive
from tests.support.run_cases import SHORT, TOY
from tests.support.simulated import set_faults
from tests.support.waiting import wait_for_training, wait_until

pytestmark = pytest.mark.covers("pipeline/clean", "pipeline/gpu", "pipeline/prepare")

TOYS = [*run_cases.TOY, "listeners=host"]
PROFILE_2G = 14
# A program of the project whose groups have their short-lived folders in one of the test's own: what a study of another
# test leaves is none of ours, and what ours leave is not cleared by another test.
PRELUDE = """
import runpy, sys
from pathlib import Path
from pipeline.clean import leftovers
leftovers._PARENT = Path(sys.argv[1])
del sys.argv[:2]
"""
STUDY = f"{PRELUDE}runpy.run_path(sys.argv[0], run_name='__main__')"
COMMAND = f"{PRELUDE}runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
# It does not wait ten seconds for a GPU that stays in use.
IMPATIENT = f"from pipeline.prepare.mig import mig_smi; mig_smi._RETRY_LIMIT_S, mig_smi._RETRY_S = 0.1, 0.02\n{STUDY}"


@dataclasses.dataclass(kw_only=True)
class UserMachine(simulated.Machine):
    """A simulated machine with one GPU, and the commands of its user."""

    short_lived: Path
    environ: dict[str, str] = dataclasses.field(default_factory=dict)

    def start(self, *arguments: str, code: str = STUDY) -> forks.Fork:
        common = ["gpu=simulated_a100_40gb", f"gpu.machine={self.file.path}", f"gpu.lock_dir={self.folder}"]
        argv = ["-c", code, self.short_lived, PROJECT_DIR / "run.py", *TOYS, "baseline=never", *common, *arguments]
        environ = os.environ | {"PYTHONPATH": str(PROJECT_DIR)} | self.environ
        return forks.start(*argv, cwd=self.folder, env=environ)

    def run(self, *arguments: str, **options: Any) -> tuple[int, str]:
        process = self.start(*SHORT, *arguments, **options)
        out, err = process.communicate(timeout=600)
        return process.returncode, out + err

    def ask(self, command: str) -> tuple[int, str]:
        options = ["--machine", self.file.path, "--lock-dir", self.folder]
        done = forks.run("-c", COMMAND, self.short_lived, "pipeline.gpu", command, *options)
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def a100(tmp_path: Path, template_store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[UserMachine]:
    shutil.copytree(template_store, tmp_path / "mlruns")
    with tempfile.TemporaryDirectory(prefix="left-", dir="/tmp") as folder:  # the path of a socket must be short
        monkeypatch.setattr(leftovers, "_PARENT", Path(folder))
        yield UserMachine.make(tmp_path, short_lived=Path(folder))


@pytest.fixture
def foreign_daemon() -> Iterator[mps_daemon.ControlProgram]:
    """An MPS daemon that somebody else runs, with its server."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        program = write_program(Path(folder))
        control = mps_daemon.ControlProgram(program=str(program), pipes=Path(folder, "pipe"))
        control.pipes.mkdir()
        subprocess.run([program, "-d"], env=control.environ(), check=True)
        try:
            control.ask(f"start_server -uid {os.getuid()}")
            yield control
        finally:
            control.ask("quit")


def kill_with_its_sender(study: forks.Fork) -> None:
    """As the out-of-memory killer or a container's end would; a sender that lives on clears up after its study."""
    study.send_signal(signal.SIGSTOP)
    os.kill(study.sender_pid, signal.SIGKILL)
    study.kill()
    study.communicate()


@pytest.mark.slow
def test_killed_in_its_window_a_study_is_shown_and_cleaned_up(
    a100: UserMachine, foreign_daemon: mps_daemon.ControlProgram
) -> None:
    before = a100.gpu
    servers = foreign_daemon.list_pids("get_server_list")
    a100.environ["CUDA_MPS_PIPE_DIRECTORY"] = str(foreign_daemon.pipes)
    study = a100.start("scenario=mig", "degree=2", "window.seconds=60")
    try:
        scratch = leftovers.scratch_path(wait_for_training(a100.folder / "mlruns", study))
        wait_until(lambda: len(a100.gpu.processes) == 2, process=study)
        code, text = a100.ask("status")
        assert code == 1
        assert f"(pid {study.pid}, started in {a100.folder})" in text
        assert text.count("3g.20gb at ") == 2
        assert text.count("the running study will undo: ") == 3
        assert str(scratch) not in text
        assert "the running study will undo this" in text
        code, text = a100.ask("clean")
        assert code == 1
        assert f"(pid {study.pid}" in text
        assert len(a100.gpu.instances) == 2
    finally:
        kill_with_its_sender(study)
    code, text = a100.ask("status")
    assert code == 1
    assert "held by:   nobody" in text
    assert text.count("left to undo") == 3
    assert f"left by a killed orchestrator: {scratch}" in text
    code, text = a100.ask("clean")
    assert code == 0
    assert f"removed {scratch}" in text
    assert text.count("undone: destroy the GPU instance") == 2
    assert a100.gpu == before
    assert not scratch.exists()
    code, text = a100.ask("status")
    assert "nothing to undo" in text
    assert code == 0
    assert a100.ask("clean") == (0, "nothing to clean\n")
    assert foreign_daemon.list_pids("get_server_list") == servers
    assert foreign_daemon.list_pids(f"get_client_list {servers[0]}") == []


@pytest.mark.slow
def test_a_foreign_process_on_the_gpu_is_named_and_lives_on(a100: UserMachine, sleeper: int) -> None:
    Clients(a100.file).hold(a100.gpu.uuid, sleeper, "train", 100)
    before = a100.file.read()
    status, text = a100.run("scenario=mig", "degree=2")
    assert status == 2
    assert f"in use by train (pid {sleeper})" in text
    assert a100.ask("clean") == (0, "nothing to clean\n")
    assert a100.file.read() == before
    assert is_alive(sleeper)


@pytest.mark.slow
def test_a_foreign_gpu_instance_is_named_and_stays(a100: UserMachine) -> None:
    driver = Driver(a100.file)
    driver.set_mig_mode(0, is_on=True)
    foreign = driver.create_gpu_instance(0, PROFILE_2G)
    before = a100.file.read()
    status, text = a100.run("scenario=mig", "degree=1", "scenario.profile=1g")
    assert status == 1
    assert f"already has the GPU instances {foreign.id};" in text
    assert a100.ask("clean") == (0, "nothing to clean\n")
    assert a100.file.read() == before


@pytest.mark.slow
def test_the_lease_of_another_user_is_respected(a100: UserMachine) -> None:
    with install_driver(a100.file.path):
        (device,) = nvml.list_devices()
    before = a100.file.read()
    with lease.hold(device, a100.folder):
        (path,) = a100.folder.glob(f"*{device.uuid}.lock")
        path.write_text('{"pid": 4242, "user": "alice", "folder": "/home/alice"}')
        for status, text in (a100.run("scenario=mig", "degree=2"), a100.ask("clean")):
            assert status in (1, 2)
            assert "in use by another study of alice (pid 4242, started in /home/alice)" in text
    assert a100.file.read() == before


@pytest.mark.slow
def test_in_use_with_nobody_on_it_stays_in_the_journal_until_it_can_be_undone(a100: UserMachine) -> None:
    before = a100.gpu
    a100.fail("nvmlGpuInstanceDestroy", codes.IN_USE, times=None)
    status, text = a100.run("scenario=mig", "degree=1", code=IMPATIENT)
    assert status == 1
    assert "In use by another client" in text
    assert "no process is on the GPU, so stop monitors (DCGM, an exporter)" in text
    assert f"then run: python {PROJECT_DIR}/collocate.py gpu clean" in text
    assert [step.kind for step in a100.journal.read_steps()] == ["mig_mode", "mig_instance"]
    assert len(a100.gpu.instances) == 1
    # It is tried again for some seconds: the fault goes by itself, as it does on a GPU.
    set_faults(a100.file, Fault(function="nvmlGpuInstanceDestroy", code=codes.IN_USE, times=2))
    code, text = a100.ask("clean")
    assert code == 0
    assert "undone: destroy the GPU instance" in text
    assert a100.file.read().faults[0].times == 0
    assert a100.gpu == before
    assert not a100.journal.path.exists()


@pytest.mark.slow
def test_after_a_kill_under_mig_the_next_study_may_need_the_whole_gpu(a100: UserMachine) -> None:
    before = a100.gpu
    study = a100.start("scenario=mig", "degree=2", "window.seconds=60", "workload.args=[forks]", "tracking.root=other")
    wait_until(lambda: len(a100.gpu.processes) == 2, process=study)
    (record,) = a100.folder.glob("other/spool/*/*/record.json")
    mark = group_record.read(record.parent).spool_id
    kill_with_its_sender(study)
    assert a100.gpu.mig_current
    assert processes.list_marked(mark)
    status, text = a100.run("scenario=naive", "degree=1")
    assert status == 0, text
    assert not processes.list_marked(mark)
    assert "undid 3 steps of a killed orchestrator on NVIDIA A100-SXM4-40GB" in text
    assert a100.gpu == before


@pytest.mark.slow
def test_the_mps_processes_of_a_killed_rehearsal_end_with_the_next_one(tmp_path: Path, template_store: Path) -> None:
    shutil.copytree(template_store, tmp_path / "mlruns")
    common = [*TOYS, "gpu=simulated_a30_24gb", f"gpu.lock_dir={tmp_path}"]

    def marks() -> list[str]:
        """Of the daemons of this study alone: tests of MPS may run beside this one."""
        records = [group_record.read(path.parent) for path in tmp_path.glob("mlruns/spool/*/*/record.json")]
        return [f"mps:{leftovers.scratch_path(record.spool_id)}/mps/pipe" for record in records]

    def pids(of: Sequence[str]) -> list[int]:
        return [pid for mark in of for pid in processes.list_marked(mark)]

    run = PROJECT_DIR / "run.py"
    study = forks.start(run, *common, "scenario=mps", "degree=1", "window.seconds=60", cwd=tmp_path)
    wait_for_training(tmp_path / "mlruns", study, num_jobs=1)
    study_marks = marks()
    kill_with_its_sender(study)
    assert len(pids(study_marks)) == 2  # daemon and server
    following = forks.run(run, *common, "scenario=naive", "degree=1", *SHORT, cwd=tmp_path)
    assert following.returncode == 0, following.stderr
    assert pids(study_marks) == []


RUN = str(PROJECT_DIR / "run.py")
WITH_SIMULATED_DRIVER = f"""
import runpy, sys
from pathlib import Path
from pipeline.simulation.install import install_driver
state_file, *arguments = sys.argv[1:]
sys.argv = [{RUN!r}, *arguments]
with install_driver(Path(state_file)):
    runpy.run_path({RUN!r}, run_name="__main__")
"""
WITHOUT_DRIVER = f"""
import runpy, sys
from pipeline.prepare.device import nvml
nvml._start = lambda: False
sys.argv[0] = {RUN!r}
runpy.run_path({RUN!r}, run_name="__main__")
"""


def run(folder: Path, *command: str, **environ: str) -> tuple[int, str, str]:
    """Run Python to its end in a folder: exit status, output, errors."""
    environment = os.environ | {"PYTHONPATH": str(PROJECT_DIR)} | environ
    done = forks.run(*command, f"gpu.lock_dir={folder}", cwd=folder, env=environment)
    return done.returncode, done.stdout, done.stderr


class Machine(simulated.Machine):
    """A machine with one simulated GPU, of which run.py does not know that it is simulated."""

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """run.py on this machine, whose own nvidia-smi is the first on PATH."""
        path = f"{self.folder / 'recording'}:{os.environ['PATH']}"
        return run(
            self.folder,
            "-c",
            WITH_SIMULATED_DRIVER,
            str(self.file.path),
            *arguments,
            "baseline=never",
            "gpu=auto",
            PATH=path,
        )


@pytest.fixture
def machine(tmp_path: Path, template_store: Path) -> Machine:
    """An A100 whose programs write down how they are called."""
    shutil.copytree(template_store, tmp_path / "mlruns")
    machine = Machine.make(tmp_path)
    machine.record_commands(**dict.fromkeys(("sudo", "nvidia-cuda-mps-control"), "exit 1"))
    return machine


@pytest.mark.slow
def test_mig_without_a_gpu_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    # A dry run, so that a GPU which is there after all stays as it is.
    status, out, err = run(tmp_path, "-c", WITHOUT_DRIVER, "gpu=auto", "scenario=mig", "dry_run=true")
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("error: scenario=mig needs an NVIDIA GPU with MIG, not ")
    assert "rehearse it with gpu=simulated_h100_80gb" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_mig_on_a_gpu_without_it_is_one_line_that_says_what_to_do(machine: Machine) -> None:
    machine.fail("nvmlDeviceGetMigMode", codes.NOT_SUPPORTED, times=None)
    before = machine.file.read().gpus
    status, out, err = machine.run("scenario=mig")
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert "does not support MIG; choose another GPU with gpu.device, or scenario=mps" in line
    assert machine.commands == []
    assert machine.file.read().gpus == before


@pytest.mark.slow
def test_mig_without_permission_is_one_line_that_names_the_command_to_allow(machine: Machine) -> None:
    machine.fail("nvmlDeviceSetMigMode", codes.NO_PERMISSION, times=None)
    before = machine.file.read().gpus
    status, out, err = machine.run(*TOY, "scenario=mig", "listeners=[]")
    assert status == 1, err  # only trying tells: the group begins, and its row says why it failed
    (line,) = [line for line in err.splitlines() if "failed:" in line]
    uuid = before[0].uuid
    assert f"failed: no permission for `{machine.folder / 'recording/nvidia-smi'} -i {uuid} -mig 1`" in line
    assert "ask an administrator to allow this command" in line and "'gpu.admin=[sudo,-n]'" in line
    assert line.partition("no permission")[2].rpartition(" (")[0] in out
    assert machine.commands == [f"{machine.folder}/recording/nvidia-smi -i {uuid} -mig 1"]
    assert machine.file.read().gpus == before
    assert list(machine.folder.glob("*.journal")) == []


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [["scenario=mig"], ["scenario=mps", "gpu.exclusive_process=true"]], ids=" ".join)
def test_what_would_change_settings_is_refused_where_that_is_forbidden(machine: Machine, overrides: list[str]) -> None:
    before = machine.file.read().gpus
    status, out, err = machine.run(*overrides, "gpu.admin=null")
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("error: ") and "gpu.admin=null forbids" in line
    assert machine.commands == []
    assert machine.file.read().gpus == before
    assert list(machine.folder.glob("*.journal")) == []
