"""`python -m pipeline.gpu status` and `clean`: what is there is said, what is ours is undone, all else is untouched."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.system import host_info
from pipeline.base.system.errors import GpuBusyError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.clean import leftovers, processes
from pipeline.clean.journal import Journal
from pipeline.gpu import status
from pipeline.gpu.__main__ import main
from pipeline.prepare.device import lease, nvml
from pipeline.prepare.mig import mig_smi as mig_control
from pipeline.prepare.mps import mps_daemon
from pipeline.simulation.install import install_driver
from pipeline.simulation.machine import codes
from pipeline.simulation.machine.driver import Clients
from pipeline.simulation.machine.queries import mig_devices
from pipeline.simulation.machine.state_file import Fault, StateFile, mig_uuid
from pipeline.simulation.mps.control_program import write_program
from tests.support import simulated

PROFILE_2G = 14


@dataclasses.dataclass(kw_only=True)
class UserMachine(simulated.Machine):
    """A simulated machine that outlives studies, with a folder for locks and journals."""

    ask: Callable[..., tuple[int, Any]]

    def control(self) -> mig_control.MigSmi:
        return mig_control.MigSmi(uuid=self.gpu.uuid, program=self.programs["nvidia-smi"], admin=())

    def leave(self, *starts: int) -> None:
        """What a study leaves that was killed in its window: the mode, and instances of two slices."""
        control = self.control()
        with install_driver(self.file.path):
            self.journal.add("mig_mode", **control.to_record())
            control.switch_on()
            for start in starts:
                place = {"profile_id": PROFILE_2G, "start": start}
                step = self.journal.add("mig_instance", **control.to_record(), **place, boot=host_info.boot_id())
                control.create(**place, amend=partial(self.journal.amend, step))


@pytest.fixture(autouse=True)
def scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A place of the test's own for the folders of groups, as short as the real one."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr(leftovers, "_PARENT", Path(folder))
        monkeypatch.setattr(leftovers, "_GRACE_S", 0.2)
        yield Path(folder)


@pytest.fixture
def ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any]]:
    """Call the command with `--json`, or without; gives its exit status and what it answered."""

    def call(*arguments: str, as_json: bool = True) -> tuple[int, Any]:
        capsys.readouterr()
        code = main([*arguments, "--lock-dir", str(tmp_path / "locks"), *(["--json"] if as_json else [])])
        out, err = capsys.readouterr()
        return code, json.loads(out) if as_json and out else out + err

    (tmp_path / "locks").mkdir()
    return call


@pytest.fixture
def a100(tmp_path: Path, ask: Callable[..., tuple[int, Any]]) -> UserMachine:
    def call(command: str, *arguments: str, **options: bool) -> tuple[int, Any]:
        return ask(command, "--machine", str(tmp_path / "machine.json"), *arguments, **options)

    return UserMachine.make(tmp_path, "a100_40gb", "h100_80gb", locks=tmp_path / "locks", ask=call)


def test_a_divided_gpu_with_its_users_is_told(a100: UserMachine, sleeper: int) -> None:
    a100.leave(0, 4)
    with install_driver(a100.file.path):
        first, second = status.read_state(a100.gpu.uuid).devices
        Clients(a100.file).hold(first.uuid, sleeper, "/usr/bin/python3", 300, "M+C")
        Clients(a100.file).hold(second.uuid, os.getppid(), "train", 400)
    device = read_nvml_device(a100)
    with lease.hold(device, a100.locks):
        code, answer = a100.ask("status")
        _, text = a100.ask("status", as_json=False)
    gpu, other = answer["gpus"]
    assert (code, gpu["is_clean"], other["is_clean"], other["holder"]) == (1, False, True, None)
    assert (gpu["name"], gpu["uuid"]) == ("NVIDIA A100-SXM4-40GB", a100.gpu.uuid)
    assert (gpu["mig_mode_current"], gpu["mig_mode_pending"], gpu["compute_mode"]) == ("enabled", "enabled", "default")
    assert gpu["memory_used_mib"] == 700
    assert [(i["profile"], i["start"], i["size"]) for i in gpu["gpu_instances"]] == [
        ("2g.10gb", 0, 2),
        ("2g.10gb", 4, 2),
    ]
    inside = {
        i["id"]: [compute_instance["uuid"] for compute_instance in i["compute_instances"]] for i in gpu["gpu_instances"]
    }
    assert inside == {first.gi_id: [first.uuid], second.gi_id: [second.uuid]}
    assert {(p["pid"], p["name"], p["kind"]) for p in gpu["processes"]} == {
        (sleeper, "python3", "mps"),
        (os.getppid(), "train", "compute"),
    }
    assert gpu["holder"]["pid"] == os.getpid()
    assert [step["kind"] for step in gpu["steps"]] == ["mig_mode", "mig_instance", "mig_instance"]
    for words in (
        "0: simulated NVIDIA A100-SXM4-40GB",
        "2g.10gb at 4:2: CI 0 MIG-",
        f"python3 (pid {sleeper}), MPS client, 300 MiB",
        f"(pid {os.getpid()}, started in {Path.cwd()})",
        "the running study will undo: switch MIG mode off",
        "destroy the GPU instance of profile 14 at slice 4",
    ):
        assert words in text


def read_nvml_device(machine: UserMachine) -> Any:
    with install_driver(machine.file.path):
        return nvml.list_devices()[0]


def test_to_look_changes_nothing_and_holds_nothing(a100: UserMachine) -> None:
    a100.leave(0)
    before = a100.gpu, a100.journal.path.read_bytes(), sorted(a100.locks.rglob("*"))
    assert a100.ask("status")[0] == 1
    assert (a100.gpu, a100.journal.path.read_bytes(), sorted(a100.locks.rglob("*"))) == before
    with lease.hold(read_nvml_device(a100), a100.locks):
        pass


def test_what_only_administrators_see_is_said_and_not_shown_as_empty(a100: UserMachine) -> None:
    a100.leave(0)
    with a100.file.change() as cell:
        fault = Fault(function="nvmlDeviceGetGpuInstances", code=codes.NO_PERMISSION, times=None)
        memory = [Fault(function=name, code=codes.NO_PERMISSION, times=None) for name in MEMORY]
        cell.state = dataclasses.replace(cell.state, faults=(fault, *memory))
    _, answer = a100.ask("status", "--gpu", "0")
    (gpu,) = answer["gpus"]
    assert (gpu["gpu_instances"], gpu["memory_used_mib"], gpu["hidden"]) == (None, None, ["gpu_instances"])
    assert len(gpu["mig_devices"]) == 1
    _, text = a100.ask("status", "--gpu", "0", as_json=False)
    assert "instances: shown to administrators only" in text
    assert "memory:    shown to administrators only used" in text


MEMORY = ("nvmlDeviceGetMemoryInfo", "nvmlDeviceGetMemoryInfo_v2")


def test_a_gpu_that_does_not_answer_still_has_its_journal_told(a100: UserMachine) -> None:
    a100.leave(0)
    with a100.file.change() as cell:
        fault = Fault(function="nvmlDeviceGetComputeRunningProcesses_v3", code=15, times=None, gpu=0)
        cell.state = dataclasses.replace(cell.state, faults=(fault,))
    code, answer = a100.ask("status", "--gpu", a100.gpu.uuid)
    assert code == 1
    assert "compute processes" in answer["gpus"][0]["error"]
    assert len(answer["gpus"][0]["steps"]) == 2


def test_names_from_others_do_not_steer_the_terminal(a100: UserMachine) -> None:
    Clients(a100.file).hold(a100.gpu.uuid, 4242, "evil\x1b[2J", 1, never_ends=True)
    _, text = a100.ask("status", as_json=False)
    assert "evil?[2J" in text
    assert "\x1b" not in text


def test_clean_undoes_newest_first_and_once(a100: UserMachine) -> None:
    before = a100.file.read().gpus
    a100.leave(0, 4)
    code, answer = a100.ask("clean")
    assert (code, answer["is_clean"]) == (0, True)
    assert answer["gpus"][0]["undone"] == [
        "destroy the GPU instance of profile 14 at slice 4",
        "destroy the GPU instance of profile 14 at slice 0",
        "switch MIG mode off",
    ]
    assert a100.file.read().gpus == before
    assert a100.ask("clean", as_json=False) == (0, "nothing to clean\n")
    assert a100.ask("status")[0] == 0


def test_clean_of_one_gpu_leaves_the_other(a100: UserMachine) -> None:
    a100.leave(0)
    assert a100.ask("clean", "--gpu", "1", as_json=False) == (0, "nothing to clean\n")
    assert len(a100.gpu.instances) == 1
    assert a100.ask("clean", "--gpu", a100.gpu.uuid[:12])[0] == 0
    assert a100.gpu.instances == ()


def leave_on_a_part(a100: UserMachine, scratch: Path) -> Any:
    """A MIG device of GPU 0 with the journal of a study on it that was killed."""
    a100.driver.set_mig_mode(0, is_on=True)
    for start in (0, 4):
        a100.driver.create_compute_instance(0, a100.driver.create_gpu_instance(0, PROFILE_2G, start).id)
    with install_driver(a100.file.path):
        part, _ = nvml.list_mig_devices(nvml.list_devices()[0])
    Journal(a100.locks, part.uuid).add("mps_daemon", pipes=str(scratch / "pipe"))
    return part


@pytest.mark.parametrize("is_real", [False, True])
def test_what_is_left_on_a_mig_device_is_told_and_cleaned_with_its_gpu(
    a100: UserMachine, ask: Callable[..., tuple[int, Any]], scratch: Path, is_real: bool
) -> None:
    part = leave_on_a_part(a100, scratch)
    Clients(a100.file).hold(part.uuid, os.getppid(), "train", 400)
    a100.journal.add("mig_mode", **a100.control().to_record())
    run_command = ask if is_real else a100.ask
    with install_driver(a100.file.path) if is_real else contextlib.nullcontext():
        code, answer = run_command("status", "--gpu", "0")
        assert (code, [gpu["uuid"] for gpu in answer["gpus"]]) == (1, [a100.gpu.uuid, part.uuid])
        assert len(run_command("status")[1]["gpus"]) == 3
        _, text = run_command("status", "--gpu", part.uuid, as_json=False)
        assert "memory:    400 MiB used of 9856 MiB" in text
        assert f"MIG:       a MIG device of {a100.gpu.uuid}" in text
        assert "instance:" not in text
        assert run_command("clean", "--gpu", "1", as_json=False) == (0, "nothing to clean\n")
        code, answer = run_command("clean", "--gpu", "0")
    undone = [(gpu["uuid"], gpu["undone"]) for gpu in answer["gpus"]]
    # What is on a MIG device first: it keeps the instances.
    assert undone == [(part.uuid, [f"end the MPS daemon in {scratch / 'pipe'}"]), (a100.gpu.uuid, [])]
    assert (code, len(a100.gpu.instances)) == (1, 2)


def test_who_holds_a_mig_device_is_told_of_its_gpu(a100: UserMachine, scratch: Path) -> None:
    part = leave_on_a_part(a100, scratch)
    myself = f"{host_info.user_name()} (pid {os.getpid()}, started in {Path.cwd()})"
    with lease.hold(part, a100.locks):
        _, answer = a100.ask("status", "--gpu", "0")
        assert [gpu["held_by"] for gpu in answer["gpus"]] == [None, myself]
        assert answer["gpus"][0]["mig_devices_held_by"] == {part.uuid: myself}
        assert f"held by:   {myself} on {part.uuid}" in a100.ask("status", as_json=False)[1]
        with install_driver(a100.file.path):
            device = nvml.list_devices()[0]
            refused = pytest.raises(GpuBusyError, match=rf"is in use by another study of .*\) on {part.uuid} \(lock")
            with refused, lease.hold(device, a100.locks):
                pytest.fail("the GPU of a MIG device that is held")
    assert a100.ask("status", "--gpu", "0")[1]["gpus"][0]["mig_devices_held_by"] == {}


def test_clean_while_a_study_runs_is_refused_with_its_name(a100: UserMachine) -> None:
    a100.leave(0)
    before = a100.gpu
    with lease.hold(read_nvml_device(a100), a100.locks):
        code, text = a100.ask("clean", as_json=False)
    assert code == 1
    assert f"in use by another study of {host_info.user_name()} (pid {os.getpid()}" in text
    assert a100.gpu == before
    assert len(a100.journal.read_steps()) == 2


def test_clean_touches_nothing_that_is_not_in_the_journal(a100: UserMachine, sleeper: int) -> None:
    a100.leave(0)
    foreign = a100.driver.create_gpu_instance(0, PROFILE_2G, 4)
    a100.driver.create_compute_instance(0, foreign.id)
    code, answer = a100.ask("clean")
    assert code == 1
    assert "because of 1 GPU instance that this project" in answer["gpus"][0]["failed"][0]["reason"]
    assert [instance.id for instance in a100.gpu.instances] == [foreign.id]
    assert [step.kind for step in a100.journal.read_steps()] == ["mig_mode"]


def test_status_names_the_compute_instances_that_share_a_foreign_gpu_instance(a100: UserMachine) -> None:
    a100.driver.set_mig_mode(0, is_on=True)
    foreign = a100.driver.create_gpu_instance(0, PROFILE_2G, 4)
    for _ in range(2):
        a100.driver.create_compute_instance(0, foreign.id, 0)
    _, answer = a100.ask("status")
    (instance,) = answer["gpus"][0]["gpu_instances"]
    uuids = [mig_uuid(a100.gpu, *pair) for pair in mig_devices(a100.gpu)]
    assert instance["compute_instances"] == [
        {"id": number, "uuid": uuids[number], "compute_slices": 1} for number in (0, 1)
    ]
    _, text = a100.ask("status", as_json=False)
    assert f"2g.10gb at 4:2: CI 0 (1c) {uuids[0]}, CI 1 (1c) {uuids[1]}" in text


@pytest.mark.slow
def test_clean_names_what_stays_with_its_remedy(
    a100: UserMachine, sleeper: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mig_control, "_RETRY_LIMIT_S", 0.0)
    a100.leave(0, 4)
    with install_driver(a100.file.path):
        state = status.read_state(a100.gpu.uuid)
        (gi_id,) = (instance.gi_id for instance in state.instances or () if instance.start == 4)
        (device,) = (device.uuid for device in state.devices if device.gi_id == gi_id)
        Clients(a100.file).hold(device, sleeper, "train", 100)
    code, text = a100.ask("clean", as_json=False)
    assert code == 1
    assert "not undone: destroy the GPU instance of profile 14 at slice 4; " in text or "at slice 0; " in text
    assert f"end the processes on the GPU: train (pid {sleeper}); then run: python -m pipeline.gpu clean" in text
    assert len(a100.gpu.instances) == 1
    os.kill(sleeper, 9)
    assert a100.ask("clean")[0] == 0
    assert a100.gpu.instances == ()


@pytest.mark.slow
def test_a_foreign_mps_daemon_lives_on(a100: UserMachine, scratch: Path) -> None:
    program = write_program(scratch)
    daemons = {}
    for whose in ("ours", "theirs"):
        pipes = scratch / whose
        pipes.mkdir()
        daemons[whose] = control = mps_daemon.ControlProgram(program=str(program), pipes=pipes)
        mark = {processes.MARK_VARIABLE: f"mps:{pipes}"} if whose == "ours" else {}
        subprocess.run([program, "-d"], env=control.environ(**mark), check=True)
    try:
        a100.journal.add("mps_daemon", pipes=str(daemons["ours"].pipes))
        code, answer = a100.ask("clean")
        assert (code, answer["gpus"][0]["undone"]) == (0, [f"end the MPS daemon in {scratch / 'ours'}"])
        assert daemons["theirs"].ask("get_server_list") == []
        assert not processes.list_marked(f"mps:{scratch / 'ours'}")
    finally:
        daemons["theirs"].ask("quit")


def test_a_journal_of_another_user_is_named_and_never_carried_out(
    a100: UserMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    a100.leave()
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    code, answer = a100.ask("status", "--gpu", "0")
    assert code == 1
    assert "must clean up" in answer["gpus"][0]["journal_trouble"][0]
    code, answer = a100.ask("clean", "--gpu", "0")
    assert code == 1
    assert "must clean up" in answer["gpus"][0]["refused"]
    assert a100.gpu.mig_current
    monkeypatch.undo()
    assert a100.ask("clean", "--gpu", "0")[0] == 0  # the journal could be carried out
    assert not a100.gpu.mig_current


def test_journals_of_gpus_that_are_not_there_are_told_and_kept(
    ask: Callable[..., tuple[int, Any]], tmp_path: Path, a100: UserMachine
) -> None:
    a100.leave(0)
    code, answer = ask("status")
    assert code == 1
    (gpu,) = [gpu for gpu in answer["gpus"] if gpu["uuid"] == a100.gpu.uuid]
    assert (gpu["is_there"], gpu["is_simulated"], len(gpu["steps"])) == (False, False, 2)
    code, answer = ask("clean", "--gpu", a100.gpu.uuid)
    assert code == 1
    assert "add --machine FILE" in answer["gpus"][0]["refused"]
    assert len(a100.journal.read_steps()) == 2


def test_what_went_with_its_simulated_machine_is_forgotten_and_its_program_not_run(
    ask: Callable[..., tuple[int, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = StateFile(tmp_path / "gone.json")
    device_uuid = file.create(["a100_40gb"]).gpus[0].uuid
    Journal(tmp_path / "locks", device_uuid).add("mig_mode", uuid=device_uuid, admin=[])
    assert ask("status", "--gpu", "simulated_a100_40gb")[0] == 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 4242)  # another user's rehearsals are nothing to anybody else
        assert ask("status", "--gpu", "simulated_a100_40gb")[0] == 0
        assert ask("status", "--gpu", device_uuid)[0] == 2
    code, answer = ask("clean", "--gpu", device_uuid)
    assert code == 0
    assert "gone with its simulated machine" in answer["gpus"][0]["undone"][0]
    assert ask("clean", "--gpu", "simulated_a100_40gb", as_json=False) == (0, "nothing to clean\n")


ORPHAN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
ORCHESTRATOR = f"""
import subprocess, sys, time
from pathlib import Path
from pipeline.clean import leftovers, processes
leftovers._PARENT = Path(sys.argv[1])
with leftovers.hold_scratch(sys.argv[2]) as folder:
    (folder / "socket").touch()
    environ = {{processes.MARK_VARIABLE: sys.argv[2]}}
    child = subprocess.Popen([sys.executable, "-c", {ORPHAN!r}], env=environ, stdout=-1, start_new_session=True)
    child.stdout.readline()
    print(child.pid, flush=True)
    time.sleep(60)
"""


def test_the_folder_of_a_process_that_hangs_in_the_kernel_stays_and_clean_says_so(
    ask: Callable[..., tuple[int, Any]], scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool_id = uuid.uuid4().hex
    folder = leftovers.scratch_path(spool_id)
    folder.mkdir()
    with subprocess.Popen(["sleep", "60"], env={processes.MARK_VARIABLE: spool_id}) as hanging:
        with monkeypatch.context() as kernel:
            kernel.setattr(processes, "end", lambda *_: 1)
            code, answer = ask("clean")
            assert (code, answer["abandoned"], answer["hanging"]) == (1, {}, {str(folder): [hanging.pid]})
            code, text = ask("clean", as_json=False)
            assert code == 1 and f"not removed: {folder}; processes [{hanging.pid}] survive SIGKILL" in text
            assert folder.is_dir()
        assert ask("clean")[0] == 0
        assert hanging.wait() == -signal.SIGTERM
    assert not folder.exists()


def test_folders_and_processes_of_killed_orchestrators_go_and_those_of_living_ones_stay(
    ask: Callable[..., tuple[int, Any]], scratch: Path
) -> None:
    environ = os.environ | {"PYTHONPATH": str(PROJECT_DIR)}
    ids = [uuid.uuid4().hex for _ in range(2)]
    argvs = [[sys.executable, "-c", ORCHESTRATOR, str(scratch), spool_id] for spool_id in ids]
    killed, living = (subprocess.Popen(argv, env=environ, stdout=-1, text=True) for argv in argvs)
    ended = subprocess.Popen(["true"])
    ended.wait()
    (scratch / f"collocation-new-{ended.pid}-x").mkdir()
    young = f"collocation-new-{os.getpid()}-x"
    for other in (young, "collocation-something-else"):
        (scratch / other).mkdir()
    try:
        pids = [int(process.stdout.readline()) for process in (killed, living)]
        killed.kill()
        killed.wait()
        code, answer = ask("status")
        gone = str(leftovers.scratch_path(ids[0]))
        unnamed = str(scratch / f"collocation-new-{ended.pid}-x")
        assert (code, answer["abandoned"]) == (1, {gone: [pids[0]], unnamed: []})
        code, answer = ask("clean")
        assert (code, answer["abandoned"]) == (0, {gone: [pids[0]], unnamed: []})
        assert not processes.list_marked(ids[0])
        assert processes.list_marked(ids[1]) == [pids[1]]
        assert {path.name for path in scratch.iterdir()} == {
            f"collocation-{ids[1][:12]}",
            young,
            "collocation-something-else",
        }
        assert ask("status")[0] == 0
    finally:
        for process, spool_id in zip((killed, living), ids, strict=True):
            process.kill()
            process.communicate()
            processes.end(spool_id, 0.1)


def test_a_question_that_cannot_be_answered_as_put_is_status_2(a100: UserMachine, tmp_path: Path) -> None:
    assert a100.ask("status", "--gpu", "7")[0] == 2
    assert a100.ask("clean", "--gpu", "GPU-")[0] == 2
    assert main(["status", "--machine", str(tmp_path / "absent")]) == 2
    assert main(["status", "--lock-dir", str(tmp_path / "absent")]) == 2


def test_a_question_does_not_keep_a_study_from_its_device(a100: UserMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks holds the lock for a moment, which a study that starts then waits for."""
    monkeypatch.setattr(lease, "_PATIENCE_S", 60.0)  # the other one's end takes longer than a moment on a busy machine
    device = read_nvml_device(a100)
    with lease.hold(device, a100.locks):
        pass
    looking = (
        "import fcntl, sys, time; file = open(sys.argv[1]); fcntl.flock(file, fcntl.LOCK_SH); "
        "print(flush=True); time.sleep(0.1)"
    )
    path = a100.locks / f"collocation-{device.uuid}.lock"
    with subprocess.Popen([sys.executable, "-c", looking, str(path)], stdout=-1) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert lease.find_holder(device.uuid, a100.locks) is None
        with lease.hold(device, a100.locks):
            assert other.wait(60) == 0
