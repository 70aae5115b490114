"""`python -m pipeline.gpu create` and `destroy`: what is made stays, is used, and is all that is taken away again."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.domain.driver_programs import Programs
from pipeline.base.domain.records import Device
from pipeline.base.system import command_parser
from pipeline.base.system.errors import CollocationError
from pipeline.clean import leftovers, processes
from pipeline.clean.journal import BY_HAND, Journal
from pipeline.gpu.__main__ import main
from pipeline.prepare.device import gpu_reader, lease, nvml
from pipeline.prepare.mig import assignment
from pipeline.prepare.mig import mig_smi as mig_control
from pipeline.simulation.install import install_driver
from pipeline.simulation.machine import codes
from pipeline.simulation.machine.driver import Clients
from pipeline.simulation.machine.state_file import Fault
from pipeline.simulation.mps.control_program import write_executable
from tests.support import simulated

PROFILE_2G = 14
Ask = Callable[..., tuple[int, Any]]


@dataclasses.dataclass(kw_only=True)
class MigMachine(simulated.Machine):
    """A simulated machine on which commands are run: `run` gives exit status and text, `run_json` what JSON says.

    `run_as_real` runs them as on a machine of this driver, whose programs are on PATH.
    """

    run: Ask
    run_as_real: Ask

    @property
    def manual_journal(self) -> Journal:
        return Journal(self.locks, self.gpu.uuid, suffix=BY_HAND)

    def run_json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "--json")[1])

    def read_gpu_status(self) -> Any:
        return self.run_json("status", "--gpu", "0")["gpus"][0]

    def places(self) -> list[tuple[int, int]]:
        """Profile id and start of each instance."""
        return sorted((instance.profile_id, instance.start) for instance in self.gpu.instances)

    def foreign(self) -> int:
        """An instance of two slices that somebody else makes; its id."""
        gpu_instance = self.driver.create_gpu_instance(0, PROFILE_2G, 4)
        self.driver.create_compute_instance(0, gpu_instance.id)
        return gpu_instance.id

    def fail(self, function: str, code: int, **of: Any) -> None:
        simulated.set_faults(self.file, Fault(function=function, code=code, **of))


@pytest.fixture
def a100(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Iterator[MigMachine]:
    locks = tmp_path / "locks"
    locks.mkdir()

    def run_as_real(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        with install_driver(machine.file.path):
            status = main([*arguments, "--lock-dir", str(locks)])
        out, err = capsys.readouterr()
        return status, out + err

    def run(*arguments: str) -> tuple[int, str]:
        return run_as_real(*arguments, "--machine", str(tmp_path / "machine.json"))

    def programs(_: object) -> dict[str, Path]:
        return {name: Path(path) for name, path in machine.programs.items()}

    machine = MigMachine.make(tmp_path, "a100_40gb", locks=locks, run=run, run_as_real=run_as_real)
    monkeypatch.setattr("pipeline.rehearsal.write_programs_beside", programs)
    monkeypatch.setattr(gpu_reader, "_STARTS_WITHIN_S", 0.05)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # what others leave there is none of ours
        monkeypatch.setattr(leftovers, "_PARENT", Path(folder))
        yield machine


def gpu_of(machine: MigMachine) -> Device:
    with install_driver(machine.file.path):
        return nvml.list_devices()[0]


def test_what_is_made_stays_is_marked_and_is_undone_with_the_mode(a100: MigMachine) -> None:
    before = a100.gpu
    answer = a100.run_json("create", "1g,3g,2g")
    assert [(row["profile"], row["start"]) for row in answer["instances"]] == [
        ("1g.5gb", 6),
        ("3g.20gb", 0),
        ("2g.10gb", 4),
    ]
    assert (answer["has_switched_mode"], answer["is_simulated"]) == (True, True)
    assert not a100.journal.path.exists()
    gpu_status = a100.read_gpu_status()
    assert gpu_status["is_clean"]
    assert [row["is_made_by_hand"] for row in gpu_status["gpu_instances"]] == [True] * 3
    assert [row["kind"] for row in gpu_status["made_by_hand"]] == ["mig_mode", *["mig_instance"] * 3]
    gpu_after_create = a100.gpu
    assert a100.run("clean") == (0, "nothing to clean\n")
    assert a100.gpu == gpu_after_create
    uuids = [row["uuid"] for row in answer["instances"]]
    with install_driver(a100.file.path):
        assigned = assignment.assign(gpu_of(a100), ["3g", "1g"])
    assert [row.uuid for row in assigned] == [uuids[1], uuids[0]]
    answer = a100.run_json("destroy")
    assert (answer["undone"][-1], answer["failed"]) == ("switch MIG mode off", [])
    assert a100.gpu == before
    assert not a100.manual_journal.path.exists()
    status, text = a100.run("destroy")
    assert (status, "no MIG instances were made by hand" in text) == (0, True)


def test_compute_instances_are_made_marked_and_undone_before_their_gpu_instance(a100: MigMachine) -> None:
    before = a100.gpu
    status, text = a100.run("create", "1c.3g,2c.3g,1g")
    assert (status, "the GPU instances are 3g.20gb(1c+2c), 1g.5gb" in text) == (0, True)
    assert text.count("made 1c.3g.20gb at 0:4: MIG-") == text.count("made 2c.3g.20gb at 0:4: MIG-") == 1
    gpu_status = a100.read_gpu_status()
    assert [(row["profile"], row["is_made_by_hand"]) for row in gpu_status["gpu_instances"]] == [
        ("3g.20gb", True),
        ("1g.5gb", True),
    ]
    widths = [row["compute_slices"] for row in gpu_status["gpu_instances"][0]["compute_instances"]]
    assert sorted(widths) == [1, 2]
    assert a100.run_json("destroy")["undone"][1:3] == [
        f"destroy the {slices}c compute instance in the GPU instance of profile 9 at slice 0" for slices in (1, 2)
    ]
    assert a100.gpu == before


def test_a_mode_that_was_on_stays_on(a100: MigMachine) -> None:
    a100.driver.set_mig_mode(0, is_on=True)
    before = a100.gpu
    a100.run("create", "7g")
    assert a100.run("destroy")[0] == 0
    assert a100.gpu == before


def test_a_dry_run_shows_the_commands_and_changes_nothing(a100: MigMachine) -> None:
    before = a100.gpu
    shown = a100.run_json("create", "3g,1g", "--dry-run")["commands"]
    assert [command[-2:] for command in shown] == [["-mig", "1"], ["9:0", "-C"], ["19:4", "-C"]]
    assert (a100.gpu, list(a100.locks.iterdir())) == (before, [])
    a100.run("create", "3g")
    gpu_after_create = a100.gpu
    steps = a100.run_json("destroy", "--dry-run")["would_undo"]
    assert steps == ["destroy the GPU instance of profile 9 at slice 0", "switch MIG mode off"]
    assert a100.gpu == gpu_after_create


def test_a_model_only_shows(a100: MigMachine, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["create", "3g", "--gpu", "simulated_h100_80gb", "--lock-dir", str(a100.locks)]
    assert main([*command, "--dry-run", "--admin", "sudo,-n"]) == 0
    assert "would run: sudo -n nvidia-smi -i GPU-" in capsys.readouterr().out
    assert main(command) == 2
    assert "is a model, not a GPU of this machine; add --dry-run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        ("3g,3g,1g", "9 memory slices, but there are 8; use ["),
        ("5g", "has no MIG profile '5g'"),
        ("", "''"),
        ("4c.3g", "choose among 1c.3g.20gb"),
    ],
)
def test_a_layout_that_is_not_legal_is_refused(a100: MigMachine, layout: str, why: str) -> None:
    before = a100.gpu
    status, text = a100.run("create", layout)
    assert (status, why in text, text.count("\n"), a100.gpu) == (2, True, 1, before)


def read_refusal(machine: MigMachine, *arguments: str) -> str:
    """What a command says that is refused in one line before it has touched anything, also when it is dry."""
    before = machine.file.read(), machine.journal.path.exists(), machine.manual_journal.path.exists()
    dry_status, dry = machine.run(*arguments, "--dry-run")
    status, text = machine.run(*arguments)
    assert (status, dry_status, text.count("\n")) == (2, 2, 1)
    assert dry == text
    assert (machine.file.read(), machine.journal.path.exists(), machine.manual_journal.path.exists()) == before
    return text


def test_who_holds_the_gpu_is_named_and_left_alone(a100: MigMachine, sleeper: int) -> None:
    with lease.hold(gpu_of(a100), a100.locks):
        assert f"held by {myself()}" in read_refusal(a100, "create", "1g")
    Clients(a100.file).hold(a100.gpu.uuid, sleeper, "train", 100)
    assert f"in use by train (pid {sleeper})" in read_refusal(a100, "create", "1g")


def myself() -> str:
    return str(lease.Holder(pid=os.getpid(), user=lease.host_info.user_name(), folder=str(Path.cwd())))


@pytest.mark.parametrize("command", [["create", "1g"], ["destroy"]])
def test_a_job_that_a_killed_study_left_is_ended_first_but_by_no_dry_run(a100: MigMachine, command: list[str]) -> None:
    mark = uuid.uuid4().hex
    leftovers.scratch_path(mark).mkdir()
    environ = {processes.MARK_VARIABLE: mark}
    with subprocess.Popen(["sleep", "60"], env=environ) as job, subprocess.Popen(["sleep", "60"]) as other:
        Clients(a100.file).hold(a100.gpu.uuid, job.pid, "train", 100)
        a100.run(*command, "--dry-run")
        assert job.poll() is None
        status, text = a100.run(*command)
        assert (status, job.wait(10)) == (0, -15)
        assert f"ending processes that a killed orchestrator left: {job.pid}" in text
        assert not leftovers.scratch_path(mark).exists()
        assert other.poll() is None
        other.kill()


def test_instances_of_others_are_never_touched(a100: MigMachine) -> None:
    a100.driver.set_mig_mode(0, is_on=True)
    gi_id = a100.foreign()
    assert f"already has the GPU instances {gi_id};" in read_refusal(a100, "create", "1g")
    assert a100.run("destroy")[0] == 0
    assert a100.places() == [(PROFILE_2G, 4)]
    assert [gpu_instance["is_made_by_hand"] for gpu_instance in a100.read_gpu_status()["gpu_instances"]] == [False]


def test_instances_that_came_later_keep_the_mode_until_they_are_gone(a100: MigMachine) -> None:
    before = a100.gpu
    a100.run("create", "3g")
    gi_id = a100.foreign()
    status, text = a100.run("destroy")
    assert (status, a100.places()) == (1, [(PROFILE_2G, 4)])
    assert "MIG mode of" in text
    assert "`destroy` for instances made by hand" in text
    assert [step.kind for step in a100.manual_journal.read_steps()] == ["mig_mode"]
    assert a100.read_gpu_status()["is_clean"]  # no study has to be refused for it
    a100.driver.destroy_compute_instance(0, gi_id, 0)
    a100.driver.destroy_gpu_instance(0, gi_id)
    assert a100.run("destroy")[0] == 0
    assert a100.gpu == before


def test_instances_in_use_are_not_taken(a100: MigMachine, sleeper: int) -> None:
    (instance,) = a100.run_json("create", "3g")["instances"]
    Clients(a100.file).hold(instance["uuid"], sleeper, "train", 100)
    assert f"{instance['uuid']} of NVIDIA A100" in (text := read_refusal(a100, "destroy"))
    assert f"in use by train (pid {sleeper})" in text
    with lease.hold(gpu_of(a100), a100.locks):
        assert "which is held by" in read_refusal(a100, "destroy")


def test_what_a_study_on_a_mig_device_holds_or_left_is_not_taken(a100: MigMachine, sleeper: int) -> None:
    (instance,) = a100.run_json("create", "3g")["instances"]
    with install_driver(a100.file.path):
        (part,) = nvml.list_mig_devices(nvml.list_devices()[0])
    with lease.hold(part, a100.locks):
        assert f"which is held by {myself()} on {part.uuid}" in read_refusal(a100, "destroy")
    Journal(a100.locks, part.uuid).add("mps_daemon", pipes=str(a100.folder / "pipe"))
    Clients(a100.file).hold(instance["uuid"], sleeper, "nvidia-cuda-mps-server", 60)
    assert f"(pid {sleeper}); run first: python -m pipeline.gpu clean --machine {a100.file.path}" in read_refusal(
        a100, "destroy"
    )


def test_a_second_layout_needs_the_first_to_go(a100: MigMachine) -> None:
    a100.run("create", "3g")
    first = f"python -m pipeline.gpu destroy --machine {a100.file.path} --lock-dir {a100.locks}, or use"
    assert f"already has MIG instances made by hand (2 steps to undo); remove them with {first}" in read_refusal(
        a100, "create", "1g"
    )


def test_what_another_user_made_by_hand_is_named_and_left(a100: MigMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    a100.run("create", "3g")
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 4242)
        assert "made MIG instances by hand" in read_refusal(a100, "create", "1g")
        assert "made MIG instances by hand" in read_refusal(a100, "destroy")
        assert a100.read_gpu_status()["made_by_hand_by_others"]
    assert a100.places() == [(9, 0)]


def test_after_a_restart_nothing_of_it_is_taken_for_ours(a100: MigMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    a100.driver.set_mig_mode(0, is_on=True)
    a100.run("create", "3g")
    for module in ("pipeline.gpu.status", "pipeline.clean.journal"):
        monkeypatch.setattr(f"{module}.boot_id", lambda: "another")
    gpu_status = a100.read_gpu_status()
    assert [gpu_instance["is_made_by_hand"] for gpu_instance in gpu_status["gpu_instances"]] == [False]
    assert "(undone by a restart of the machine)" in gpu_status["made_by_hand"][0]["undoing"]
    assert a100.run("destroy")[0] == 0
    assert a100.places() == [(9, 0)]


def test_without_permission_it_is_said_how_to_name_an_administrator(a100: MigMachine) -> None:
    before = a100.gpu
    a100.fail("nvmlDeviceSetMigMode", codes.NO_PERMISSION)
    status, text = a100.run("create", "3g")
    assert (status, a100.gpu, a100.journal.read_steps()) == (1, before, ())
    assert "no permission for `" in text
    assert "--admin sudo,-n" in text


def test_the_administrator_of_create_destroys_and_lists_what_only_such_a_one_sees(
    a100: MigMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, program = a100.gpu, Path(a100.programs["nvidia-smi"])
    real = program.rename(program.with_name("real"))
    write_executable(program, f'[ "$IS_ADMIN" ] || {{ echo Insufficient Permissions; exit 4; }}; exec {real}')
    write_executable(a100.folder / "become", "export IS_ADMIN=1; exec")
    monkeypatch.setenv("PATH", f"{a100.folder}:{program.parent}:{os.environ['PATH']}")
    a100.fail("nvmlDeviceGetGpuInstances", codes.NO_PERMISSION, times=None)
    assert a100.run_as_real("create", "3g")[0] == 1
    assert a100.run_as_real("create", "3g", "--admin", "become")[0] == 0
    assert a100.run_as_real("destroy")[0] == 0
    assert a100.gpu == before


@pytest.mark.parametrize("admin", ["nosuchadmin", "sudo -n"])
def test_an_administrator_who_is_no_program_is_refused_before_anything(
    a100: MigMachine, monkeypatch: pytest.MonkeyPatch, admin: str
) -> None:
    monkeypatch.setenv("PATH", f"{a100.folder}/bin:{os.environ['PATH']}")
    for dry in ([], ["--dry-run"]):
        status, text = a100.run_as_real("create", "3g", "--admin", admin, *dry)
        assert (status, text.count("\n")) == (2, 1)
        assert f"--admin {admin}: program '{admin}' was not found; correct it, for example --admin" in text
    assert not a100.gpu.mig_current
    assert a100.journal.read_steps() == ()


def test_nobody_becomes_an_administrator_for_a_simulated_gpu(a100: MigMachine) -> None:
    write_executable(a100.folder / "become", f'touch {a100.folder}/started; exec "$@"')
    for command in (["create", "3g"], ["destroy"]):
        assert a100.run(*command, "--admin", str(a100.folder / "become"))[0] == 0
    assert not (a100.folder / "started").exists()


def test_half_a_layout_is_taken_back(a100: MigMachine) -> None:
    before = a100.gpu
    a100.fail("nvmlDeviceCreateGpuInstance", codes.INSUFFICIENT_RESOURCES, skip=1)
    status, text = a100.run("create", "3g,2g")
    assert (status, a100.gpu, a100.journal.read_steps()) == (1, before, ())
    assert "install a newer driver" in text
    assert not a100.manual_journal.path.exists()


def test_what_cannot_be_taken_back_is_said_and_done_by_the_next_start(
    a100: MigMachine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mig_control, "_RETRY_LIMIT_S", 0.0)
    before = a100.gpu
    create, destroy = (
        Fault(function=name, code=code, skip=1, times=None)
        for name, code in (
            ("nvmlDeviceCreateGpuInstance", codes.INSUFFICIENT_RESOURCES),
            ("nvmlGpuInstanceDestroy", codes.IN_USE),
        )
    )
    simulated.set_faults(a100.file, create, dataclasses.replace(destroy, skip=0))
    status, text = a100.run("create", "3g,2g")
    assert status == 1
    assert "while cleaning up: SharingError: destroying the MIG instance" in text
    assert [step.kind for step in a100.journal.read_steps()] == ["mig_mode", "mig_instance"]
    simulated.set_faults(a100.file)
    assert a100.run("create", "2g")[0] == 0  # which undoes that first
    assert a100.places() == [(PROFILE_2G, 0)]
    a100.run("destroy")
    assert a100.gpu == before


NAMED = Device(kind="nvidia", uuid="GPU-1", name="a GPU")
KEYS = re.compile(r"\b(?:scenario|gpu)[.=]\w|\bwait=|\bsizes\.")
"""Words of a study's configuration, which none of these commands has."""


@pytest.mark.parametrize("command", [["create", "1g"], ["acceptance", "--only", "mode"]])
def test_a_gpu_that_cannot_be_divided_is_refused_with_options_of_the_command(
    a100: MigMachine, sleeper: int, command: list[str]
) -> None:
    if command[0] == "acceptance":
        command = [*command, "--out", str(a100.folder / "out")]
    a100.driver.set_mig_mode(0, is_on=True)
    foreign = a100.foreign()
    text = read_refusal(a100, *command)
    assert f"already has the GPU instances {foreign}; choose another GPU with --gpu, or remove them" in text
    assert not KEYS.search(text)
    a100.driver.destroy_compute_instance(0, foreign, 0)
    a100.driver.destroy_gpu_instance(0, foreign)
    a100.driver.set_mig_mode(0, is_on=False)
    Clients(a100.file).hold(a100.gpu.uuid, sleeper, "train", 100)
    text = read_refusal(a100, *command)
    assert "; end these processes, or choose another GPU with --gpu" in text and not KEYS.search(text)


@pytest.mark.parametrize("command", [["clean"], ["selftest"], ["destroy"]])
def test_a_gpu_that_a_study_holds_is_refused_with_options_of_the_command(a100: MigMachine, command: list[str]) -> None:
    with lease.hold(gpu_of(a100), a100.locks):
        status, text = a100.run(*command)
    assert status != 0 and "or choose another" in text and "--gpu" in text and not KEYS.search(text)


@pytest.mark.parametrize(
    ("error", "keys", "options"),
    [
        (lambda folder: Programs().find("no-such-program"), "scenario.program", "install the driver"),
        (lambda folder: Programs(configured={"a": str(folder)}).find("a"), "scenario.program", "install the driver"),
        (lambda folder: Journal(folder / "none", "GPU-1").add("mig_mode"), "gpu.lock_dir", "with --lock-dir"),
        (lambda folder: lease.hold(NAMED, folder / "none").__enter__(), "gpu.lock_dir=", "--lock-dir /"),
    ],
)
def test_errors_name_keys_in_a_study_and_options_in_a_command(
    tmp_path: Path, error: Callable[[Path], object], keys: str, options: str
) -> None:
    with pytest.raises(CollocationError) as of_study:
        error(tmp_path)
    with command_parser.name_options(), pytest.raises(CollocationError) as of_command:
        error(tmp_path)
    assert keys in str(of_study.value)
    assert options in str(of_command.value) and not KEYS.search(str(of_command.value))
