"""MIG groups over the simulated driver: however a group ends, the GPU is as it was."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.domain import mig_table
from pipeline.base.domain.machine_state import cpu_device
from pipeline.base.domain.protocols import Slots
from pipeline.base.domain.records import Commands, Device, Group, Job
from pipeline.base.system import host_info
from pipeline.base.system.errors import ConfigError, SharingError
from pipeline.clean import temporary_folder
from pipeline.clean.journal import replay
from pipeline.prepare.device import device_choice, nvml
from pipeline.prepare.mig import assignment, mig_smi
from pipeline.prepare.sharing.mig import Mig
from pipeline.prepare.sharing.mps import Mps
from pipeline.prepare.sharing.naive import Naive
from pipeline.simulation.machine import codes
from pipeline.simulation.machine.driver import Clients
from tests.support import simulated
from tests.support.killed import run_killed
from tests.support.programs import write_script
from tests.support.rows import gpu_settings
from tests.support.rows import group as make_group

KINDS = ("-mig", "-cgi", "-cci", "-dci", "-dgi")
STEPS = ("subprocess.Popen", "os.truncate", "os.remove")
FOREIGN = 14  # profile id of 2g on A100 and H100


class Machine(simulated.Machine):
    """A simulated machine, with what a group on its GPU 0 needs."""

    @property
    def program(self) -> Path:
        return Path(self.programs["nvidia-smi"])

    def group(self, *sizes: str | None, **changes: Any) -> Group:
        group = make_group(*("job" for _ in sizes))
        jobs = tuple(Job(index=j.index, workload=j.workload, size=s) for j, s in zip(group.jobs, sizes, strict=True))
        gpu = gpu_settings(lock_dir=self.folder, admin=changes.pop("admin", ()))
        values = {"jobs": jobs, "scenario": "mig", "device": self.device, "gpu": gpu}
        return dataclasses.replace(group, **(values | changes))

    @contextmanager
    def shared(self, *sizes: str | None, admin: tuple[str, ...] = (), **options: Any) -> Iterator[Slots]:
        group = self.group(*sizes, admin=admin)
        scratch = Path(self.folder, "scratch")
        scratch.mkdir()
        try:
            with Mig(**({"program": str(self.program)} | options)).prepare(group, scratch) as slots:
                yield slots
        finally:
            shutil.rmtree(scratch)

    def profiles(self) -> list[str]:
        """Names of the profiles that exist, by start."""
        by_id = {profile.id: profile.name for profile in mig_table.find(self.gpu.model).profiles}
        return [by_id[instance.profile_id] for instance in sorted(self.gpu.instances, key=lambda i: i.start)]


@pytest.fixture
def a100(tmp_path: Path) -> Iterator[Machine]:
    with Machine.installed(tmp_path, "a100_40gb") as machine:
        yield machine


@pytest.fixture
def h100(tmp_path: Path) -> Iterator[Machine]:
    with Machine.installed(tmp_path, "h100_80gb", is_on=True) as machine:
        yield machine


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mig_smi, "_RETRY_LIMIT_S", 0.3)
    monkeypatch.setattr(mig_smi, "_RETRY_S", 0.05)


def record_commands(machine: Machine) -> Path:
    """A program before nvidia-smi, as sudo would be, that writes each command down; returns its file."""
    log = machine.folder / "commands"
    write_script(machine.folder / "admin", f'echo "$@" >> {log}\nexec "$@"')
    return log


def test_each_job_gets_an_instance_and_the_gpu_is_as_it_was(a100: Machine) -> None:
    before = a100.gpu
    log = record_commands(a100)
    with a100.shared("S", "L", "M", admin=(str(a100.folder / "admin"),)) as slots:
        by_gi = {instance.id: instance for instance in a100.gpu.instances}
        assert [by_gi[slot.gi_id].profile_id for slot in slots.slots] == [19, 9, 14]
        assert len({slot.visible_devices for slot in slots.slots}) == 3
        for slot in slots.slots:
            assert slot.visible_devices.startswith("MIG-")
            assert (slot.gpu_uuid, slot.ci_id) == (a100.device.uuid, 0)
            environ = dict(slot.environ)
            assert environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
            assert list(Path(environ["CUDA_MPS_PIPE_DIRECTORY"]).iterdir()) == []
            assert Path(environ["CUDA_MPS_PIPE_DIRECTORY"]).is_relative_to(a100.folder / "scratch")
        kinds = [step.kind for step in a100.journal.read_steps()]
        assert kinds == ["mig_mode", "mig_instance", "mig_instance", "mig_instance"]
        assert [step.arguments["gi_id"] for step in a100.journal.read_steps()[1:]] == [
            slots.slots[job].gi_id for job in (1, 2, 0)
        ]
    assert a100.gpu == before
    assert not a100.journal.path.exists()
    uuid = a100.device.uuid
    commands = [line.split()[1:] for line in log.read_text().splitlines()]
    created = [command[4].partition(":")[0] for command in commands if "-cgi" in command]
    assert created == ["9", "14", "19"]  # larger first
    assert all(command[command.index("-i") + 1] == uuid for command in commands)
    for command in commands:
        assert ("-gi" in command) == ("-dgi" in command or "-dci" in command)
        assert ("-ci" in command) == ("-dci" in command)
    assert len(commands) == 1 + 3 + 3 * 2 + 1


def test_a_job_gets_several_instances_and_none_of_another(a100: Machine) -> None:
    before = a100.gpu
    options = {"instances_per_job": 2, "profiles": ["3g", "1g", "2g", "1g"]}
    with a100.shared(None, None, **options) as slots:
        uuids = [uuid for slot in slots.slots for uuid in slot.device_uuids]
        assert [len(slot.device_uuids) for slot in slots.slots] == [2, 2]
        assert len(set(uuids)) == len(a100.gpu.instances) == 4
        assert [slot.placement["mig_profile"] for slot in slots.slots] == ["3g.20gb+1g.5gb", "2g.10gb+1g.5gb"]
        assert {(slot.gpu_uuid, slot.gi_id, slot.ci_id) for slot in slots.slots} == {(a100.device.uuid, None, None)}
    assert a100.gpu == before
    with pytest.raises(ConfigError, match="instances_per_job=0 must be from 1 to 7"):
        Mig(instances_per_job=0)
    with pytest.raises(ConfigError, match=r"names 1 instance, but 2 jobs with scenario\.instances_per_job=2 need 4"):
        Mig(instances_per_job=2, profiles=["3g"]).check(a100.group(None, None))
    with pytest.raises(ConfigError, match="job 1 would get several compute instances of one GPU instance"):
        Mig(instances_per_job=2, profiles=["1g", "1g", "1c.3g", "2c.3g"]).check(a100.group(None, None))
    layout = Mig(profiles=["1c.3g", "2c.3g"])._plan_layout(a100.group(None, None))
    assert [str(instance) for instance in layout.instances] == ["3g.20gb(1c+2c)"]


@pytest.mark.slow
def test_a_job_on_one_of_its_instances_is_where_it_belongs(a100: Machine, sleeper: int) -> None:
    with a100.shared(None, None, instances_per_job=2, profile="1g") as slots:
        Clients(a100.file).hold(slots.slots[0].device_uuids[1], sleeper, "python", 10)
        slots.verify({0: sleeper})
        with pytest.raises(SharingError, match="which is not its MIG device"):
            slots.verify({1: sleeper})
        Clients(a100.file).release(sleeper)


def test_compute_instances_share_a_gpu_instance_and_are_undone_before_it(a100: Machine) -> None:
    before = a100.gpu
    log = record_commands(a100)
    requests = ("1c.3g.20gb", "2c.3g", "1g")
    with a100.shared(None, None, None, profiles=requests, admin=(str(a100.folder / "admin"),)) as slots:
        assert a100.profiles() == ["3g.20gb", "1g.5gb"]
        divided = next(instance for instance in a100.gpu.instances if instance.profile_id == 9)
        one, two, undivided = slots.slots
        assert one.gi_id == two.gi_id == divided.id != undivided.gi_id
        assert [dict(slot.facts)["mig_profile"] for slot in slots.slots] == ["1c.3g.20gb", "2c.3g.20gb", "1g.5gb"]
        assert [dict(slot.facts)["mig_multiprocessors"] for slot in slots.slots] == ["14", "28", "14"]
        sizes = {ci.id: ci.size for ci in divided.compute_instances}
        assert [sizes[one.ci_id or 0], sizes[two.ci_id or 0]] == [1, 2]
        assert len({slot.visible_devices for slot in slots.slots}) == 3
        steps = a100.journal.read_steps()
        parts = ["mig_compute_instance"] * 2
        assert [step.kind for step in steps] == ["mig_mode", "mig_instance", *parts, "mig_instance"]
        assert [step.arguments["ci_id"] for step in steps[2:4]] == [two.ci_id, one.ci_id]
    assert a100.gpu == before
    assert not a100.journal.path.exists()
    done = [next(word for word in line.split() if word in KINDS) for line in log.read_text().splitlines()]
    assert done == ["-mig", "-cgi", "-cci", "-cci", "-cgi", "-dci", "-dgi", "-dci", "-dci", "-dgi", "-mig"]


def test_a_compute_instance_of_somebody_else_keeps_our_gpu_instance(h100: Machine) -> None:
    refused = pytest.raises(SharingError, match="because of the compute instances 1 that this project")
    with refused, h100.shared(None, profiles=("2c.3g",)) as slots:
        gi_id = slots.slots[0].gi_id
        foreign = h100.driver.create_compute_instance(0, gi_id, 0)
    (instance,) = h100.gpu.instances
    assert instance.compute_instances == (foreign,)
    assert [step.kind for step in h100.journal.read_steps()] == ["mig_instance"]
    h100.driver.destroy_compute_instance(0, gi_id, foreign.id)
    replay(h100.journal)
    assert h100.gpu.instances == ()


def test_a_compute_instance_whose_id_nobody_wrote_down_is_the_one_that_came(h100: Machine) -> None:
    gi_id = h100.driver.create_gpu_instance(0, 9, 0).id
    for _ in range(2):
        h100.driver.create_compute_instance(0, gi_id, 0)
    place = {
        "uuid": h100.device.uuid,
        "admin": [],
        "profile_id": 9,
        "start": 0,
        "slices": 1,
        "boot": host_info.boot_id(),
    }

    def undo(**which: Any) -> list[int]:
        step = h100.journal.add("mig_compute_instance", **place | {"gi_id": gi_id, "beside": []} | which)
        try:
            h100.journal.undo(step)
        finally:
            h100.journal.forget()
        return [compute_instance.id for compute_instance in h100.gpu.instances[0].compute_instances]

    for other in ({"gi_id": gi_id + 1}, {"slices": 2}, {"boot": "an earlier one"}, {"ci_id": 5}, {"beside": [0, 1]}):
        assert undo(**other) == [0, 1]
    with pytest.raises(SharingError, match="another program created one of 0,1;"):
        undo()
    assert undo(beside=[0]) == [0]
    assert undo(beside=[0]) == [0]


def test_a_mode_that_was_on_stays_on(h100: Machine) -> None:
    before = h100.gpu
    with h100.shared(None, None):
        assert h100.profiles() == ["3g.40gb", "3g.40gb"]
        assert "mig_mode" not in [step.kind for step in h100.journal.read_steps()]
    assert h100.gpu == before
    assert before.mig_current


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("sizes", "options", "profiles"),
    [
        ([None] * 3, {}, ["2g.20gb"] * 3),
        ([None] * 2, {"profile": "1g.10gb"}, ["1g.10gb"] * 2),
        (["S", "M"], {"profiles": ("3g.40gb", "4g")}, ["4g.40gb", "3g.40gb"]),
        (["L", "S"], {"size_profile": (("L", "4g"),)}, ["4g.40gb", "1g.10gb"]),
    ],
)
def test_what_is_asked_for_is_what_is_made(h100: Machine, sizes: list[Any], options: Any, profiles: list[str]) -> None:
    with h100.shared(*sizes, **options):
        assert sorted(h100.profiles()) == sorted(profiles)


def get_refusal(machine: Machine, *sizes: str | None, **options: Any) -> str:
    """The error of a group that is refused, or taken back so that the GPU is as it was."""
    before = machine.gpu
    with pytest.raises((ConfigError, SharingError)) as caught, machine.shared(*(sizes or (None,)), **options):
        pytest.fail("was not refused")
    assert machine.gpu == before
    assert not machine.journal.path.exists()
    return str(caught.value)


MODE, MAKE, DIVIDE = "nvmlDeviceSetMigMode", "nvmlDeviceCreateGpuInstance", "nvmlGpuInstanceCreateComputeInstance"
LACKING = codes.INSUFFICIENT_RESOURCES


def sudo_without_password(machine: Machine) -> dict[str, Any]:
    prefix = write_script(machine.folder / "sudo", 'echo "sudo: a password is required" >&2\nexit 1')
    return {"admin": (str(prefix),)}


def disturb_mig(fault: str) -> Callable[[Machine], None]:
    return lambda machine: machine.change(health=dataclasses.replace(machine.gpu.health, mig_fault=fault))


@pytest.mark.parametrize(
    ("jobs", "disturb", "options", "messages"),
    [
        ("LLS", lambda m: None, {}, ["does not fit", "; use ["]),
        ("-", lambda m: m.change(mig_pending=True), {}, ["a pending change of MIG mode from off to on"]),
        (
            "-",
            lambda m: m.fail(MODE, codes.NO_PERMISSION, times=None),
            {},
            ["no permission for `{program} -i {uuid} -mig 1`", "gpu.admin=[sudo,-n]"],
        ),
        ("-", sudo_without_password, {}, ["no permission for `{folder}/sudo {program}"]),
        # What nvidia-smi said is shown, and not believed.
        ("-", lambda m: m.fail(MODE, codes.IN_USE), {}, ["; stop programs that use the GPU", "All done."]),
        ("---", lambda m: m.fail(MAKE, LACKING, skip=1), {}, ["install a newer driver"]),
        ("-", lambda m: m.fail(DIVIDE, LACKING), {}, ["with 1 compute instance (it printed"]),
        (
            "--",
            lambda m: m.fail(DIVIDE, LACKING, skip=1),
            {"profiles": ("1c.3g", "2c.3g")},
            ["did not create one 1c compute instance in GPU instance", "install a newer driver"],
        ),
        ("-", disturb_mig("displaced"), {"profiles": ["1g.5gb"]}, ["did not create"]),
        ("--", disturb_mig("narrow"), {"profiles": ["2c.3g", "1c.3g"]}, ["did not create"]),
    ],
)
def test_what_cannot_be_made_is_refused_and_taken_back(a100: Machine, jobs, disturb, options, messages) -> None:
    more = disturb(a100) or {}
    names = {"program": a100.program, "uuid": a100.device.uuid, "folder": a100.folder}
    message = get_refusal(a100, *(None if size == "-" else size for size in jobs), **options, **more)
    assert not [words for words in messages if words.format(**names) not in message], message


def test_a_gpu_in_use_is_refused(a100: Machine, sleeper: int) -> None:
    Clients(a100.file).hold(a100.device.uuid, sleeper, "train", 100)
    assert f"in use by train (pid {sleeper}); end these processes" in get_refusal(a100)


def test_instances_of_somebody_else_are_left_alone(h100: Machine) -> None:
    gpu_instance = h100.driver.create_gpu_instance(0, FOREIGN)
    assert f"already has the GPU instances {gpu_instance.id};" in get_refusal(h100)
    h100.fail("nvmlDeviceGetGpuInstances", codes.NO_PERMISSION, times=None)
    assert "cannot list the MIG instances" in get_refusal(h100, program="/bin/true")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"admin": None}, "gpu.admin=null forbids"),
        ({"admin": ("sudo -n",)}, r"gpu.admin=\[sudo -n\]: program 'sudo -n' was not found"),
        ({"device": cpu_device()}, "needs an NVIDIA GPU with MIG"),
    ],
)
def test_what_the_configuration_rules_out_starts_no_command(a100: Machine, changes: dict[str, Any], says: str) -> None:
    trap = write_script(a100.folder / "trap", f"touch {a100.folder}/started")
    group = a100.group(None, **changes)
    sharing = Mig(program=str(trap))
    with pytest.raises(ConfigError, match=says):
        sharing.check(group)
    with pytest.raises(ConfigError, match=says), sharing.prepare(group, a100.folder):
        pytest.fail("was not refused")
    assert not (a100.folder / "started").exists()
    with pytest.raises(SharingError), sharing.prepare(a100.group(None), a100.folder):
        pytest.fail("the trap switched MIG on")
    assert (a100.folder / "started").exists()  # the trap works


def test_a_gpu_without_mig_is_refused(a100: Machine) -> None:
    a100.fail("nvmlDeviceGetMigMode", codes.NOT_SUPPORTED, times=None)
    (device,) = nvml.list_devices()
    with pytest.raises(ConfigError, match=r"A100.* does not support MIG; choose another GPU"):
        Mig().check(a100.group(None, device=device))


def test_a_simulated_gpu_has_its_own_program_or_none(a100: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(a100.program.parent))
    device = dataclasses.replace(a100.device, kind="simulated")
    attempt = Mig(program=str(a100.program)).prepare(a100.group(None, device=device), a100.folder)
    with pytest.raises(SharingError, match="needs nvidia-smi, which is not on PATH"), attempt:
        pytest.fail("found one")
    log = record_commands(a100)
    device = dataclasses.replace(device, programs=(("nvidia-smi", str(a100.program)),))
    group = a100.group(None, device=device, admin=(str(a100.folder / "admin"),))
    with Mig(program="/nonexistent").prepare(group, a100.folder):
        assert a100.profiles() == ["7g.40gb"]
    assert not log.exists()  # nor does anybody become an administrator for it


def test_an_instance_elsewhere_is_undone_by_its_id_and_not_the_one_in_its_place(h100: Machine) -> None:
    h100.change(health=dataclasses.replace(h100.gpu.health, mig_fault="displaced"))
    control = mig_smi.MigSmi(uuid=h100.device.uuid, program=h100.programs["nvidia-smi"])
    place = {"profile_id": FOREIGN, "start": 2}
    step = h100.journal.add("mig_instance", **control.to_record(), **place, boot=host_info.boot_id())
    with pytest.raises(SharingError, match=f"did not create a GPU instance of profile {FOREIGN} at slice 2"):
        control.create(**place, amend=partial(h100.journal.amend, step))
    (created,) = h100.gpu.instances
    assert created.start != 2
    h100.change(health=dataclasses.replace(h100.gpu.health, mig_fault=""))
    foreign = h100.driver.create_gpu_instance(0, **place)
    for _ in range(2):
        h100.journal.undo(step)
        assert h100.gpu.instances == (foreign,)


def test_in_use_with_nobody_on_it_is_tried_again(a100: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mig_smi, "_RETRY_S", 0.05)
    before = a100.gpu
    with a100.shared(None):
        for function in ("nvmlComputeInstanceDestroy", "nvmlGpuInstanceDestroy"):
            a100.fail(function, codes.IN_USE, times=2)
    assert a100.gpu == before


@pytest.mark.usefixtures("impatient")
def test_what_stays_in_use_is_named_and_stays_in_the_journal(a100: Machine) -> None:
    before = a100.gpu
    with (
        pytest.raises(SharingError, match="no process is on the GPU, so stop monitors") as caught,
        a100.shared(None, None),
    ):
        a100.fail("nvmlGpuInstanceDestroy", codes.IN_USE, times=None)
    assert [step.kind for step in a100.journal.read_steps()] == ["mig_mode", "mig_instance", "mig_instance"]
    assert a100.profiles() == ["3g.20gb", "3g.20gb"]
    assert "python -m pipeline.gpu clean" in str(caught.value)
    a100.heal()
    assert len(replay(a100.journal)) == 3
    assert a100.gpu == before


@pytest.mark.usefixtures("impatient")
def test_a_process_that_stays_on_an_instance_is_named(a100: Machine, sleeper: int) -> None:
    with (
        pytest.raises(SharingError, match=rf"end the processes on the GPU: train \(pid {sleeper}\)"),
        a100.shared(None) as slots,
    ):
        Clients(a100.file).hold(slots.slots[0].visible_devices, sleeper, "train", 100)
    assert a100.profiles() == ["7g.40gb"]
    os.kill(sleeper, signal.SIGKILL)
    replay(a100.journal)
    assert a100.gpu.instances == ()


@pytest.mark.usefixtures("impatient")
def test_instances_that_came_later_are_not_taken_by_switching_off(a100: Machine) -> None:
    with (
        pytest.raises(SharingError, match="because of 1 GPU instance that this project"),
        a100.shared(None, profile="1g.5gb"),
    ):
        a100.driver.create_gpu_instance(0, FOREIGN)
    assert a100.profiles() == ["2g.10gb"]
    assert [step.kind for step in a100.journal.read_steps()] == ["mig_mode"]


def test_the_error_of_the_body_is_not_hidden(a100: Machine, impatient: None) -> None:
    with pytest.raises(ValueError, match="the body") as caught, a100.shared(None):
        a100.fail("nvmlGpuInstanceDestroy", codes.IN_USE, times=None)
        raise ValueError("the body")
    assert any("destroying the MIG instance" in note for note in caught.value.__notes__)


@pytest.mark.slow
def test_whoever_may_not_list_instances_lists_them_as_administrator(a100: Machine) -> None:
    before = a100.gpu
    a100.fail("nvmlDeviceGetGpuInstances", codes.NO_PERMISSION, times=None)
    log = record_commands(a100)
    with a100.shared("S", "L", admin=(str(a100.folder / "admin"),)):
        assert sorted(a100.profiles()) == ["1g.5gb", "3g.20gb"]
    assert a100.gpu == before
    assert "-lgi" in log.read_text()


def test_a_later_instance_with_another_id_is_not_destroyed(h100: Machine) -> None:
    instance = h100.driver.create_gpu_instance(0, FOREIGN, 2)
    place = {"uuid": h100.device.uuid, "admin": [], "profile_id": FOREIGN, "start": 2}
    other_id = {"boot": host_info.boot_id(), "gi_id": instance.id + 1}
    for which in (other_id, {"boot": "an earlier one", "gi_id": instance.id}):
        h100.journal.undo(h100.journal.add("mig_instance", **place, **which))
        assert h100.profiles() == ["2g.20gb"]
    for _ in range(2):
        h100.journal.undo(h100.journal.add("mig_instance", **place, boot=host_info.boot_id()))
        assert h100.profiles() == []


@pytest.mark.parametrize(("model", "is_theirs"), [("a100_40gb", False), ("h100_80gb", True)])
def test_a_mode_that_is_on_after_a_restart_is_ours_only_where_the_gpu_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, is_theirs: bool
) -> None:
    with Machine.installed(tmp_path, model) as machine:
        with machine.shared(None):
            mode = machine.journal.read_steps()[0]
        machine.journal.add(mode.kind, **mode.arguments)
        machine.driver.set_mig_mode(0, is_on=True)
        monkeypatch.setattr("pipeline.clean.journal.boot_id", lambda: "another")
        assert [step.kind for step in replay(machine.journal)] == ["mig_mode"]
        assert machine.gpu.mig_current is is_theirs


def test_a_job_on_the_device_of_another_is_an_error(h100: Machine, sleeper: int) -> None:
    with h100.shared(None, None) as slots:
        slots.verify({0: sleeper, 1: os.getppid()})  # nobody has begun to compute
        Clients(h100.file).hold(slots.slots[1].visible_devices, sleeper, "train", 100)
        slots.verify({1: sleeper})
        with pytest.raises(SharingError, match=rf"0-job \(pid {sleeper}\) runs on MIG-.*not its MIG device"):
            slots.verify({0: sleeper, 1: os.getppid()})
        Clients(h100.file).release(sleeper)


def test_a_job_under_a_foreign_mps_server_is_an_error(h100: Machine, sleeper: int) -> None:
    with h100.shared(None) as slots:
        Clients(h100.file).hold(slots.slots[0].visible_devices, sleeper, "train", 100, "M+C")
        with pytest.raises(SharingError, match=r"MPS clients .* are on"):
            slots.verify({0: sleeper})
        Clients(h100.file).release(sleeper)


def test_slices_that_no_job_gets_are_a_warning(h100: Machine) -> None:
    assert Mig().warnings(h100.group(None)) == ()
    (warning,) = Mig().warnings(h100.group(None, None))
    name = h100.group(None).device.name
    assert warning == f"[3g.40gb,3g.40gb] leaves 1 of 7 compute slices of {name} unused"
    grouped, unused = Mig(profiles=["2c.3g", "3g"]).warnings(h100.group(None, None))
    created = (
        "[2c.3g.40gb,3g.40gb] needs the GPU instances 3g.40gb(2c), 3g.40gb; "
        "compute instances share the memory of their GPU instance"
    )
    assert grouped == created and "leaves 2 of 7 " in unused


def run_group(machine: Machine) -> None:
    with machine.shared(None, None, profiles=["1g", "1c.2g"]):
        pass


@pytest.mark.slow
@pytest.mark.parametrize("model", ["a100_40gb", pytest.param("h100_80gb", marks=pytest.mark.exhaustive)])
def test_killed_at_any_step_the_next_start_brings_the_gpu_back(tmp_path: Path, model: str) -> None:
    with Machine.installed(tmp_path, model) as machine:
        before = machine.gpu
        for fatal in range(1, 200):
            status = run_killed(partial(run_group, machine), fatal, STEPS, is_start_a_step=True)
            replay(machine.journal)
            assert machine.gpu == before, f"killed at step {fatal}"
            assert not machine.journal.path.exists()
            if status == 0:
                break
            assert os.WIFSIGNALED(status), f"step {fatal}"
            shutil.rmtree(tmp_path / "scratch")
        print(f"{model}: killed at {fatal - 1} points")
        assert status == 0
        assert fatal > 30, "the process was hardly killed anywhere"


def test_a_command_that_outlived_its_orchestrator_is_awaited(h100: Machine) -> None:
    """Killed right after it started nvidia-smi, an orchestrator leaves an instance that is not there yet."""
    uuid, place = h100.device.uuid, {"profile_id": FOREIGN, "start": 2}
    h100.journal.add("mig_instance", uuid=uuid, admin=[], **place, boot=host_info.boot_id())
    line = f'sleep 0.5; exec {h100.program} "$@"'
    argv = ["mig", "-i", uuid, "-cgi", f"{FOREIGN}:2", "-C"]
    with subprocess.Popen(["sh", "-c", line, "sh", *argv], stdout=subprocess.DEVNULL) as late:
        replay(h100.journal)
        assert late.poll() == 0
    assert h100.gpu.instances == ()


@pytest.fixture
def divided(a100: Machine) -> Machine:
    """A GPU that somebody else divided into 3g, 2g and 1g."""
    a100.driver.set_mig_mode(0, is_on=True)
    for profile, start in ((9, 4), (14, 0), (19, 2)):
        instance = a100.driver.create_gpu_instance(0, profile, start).id
        a100.driver.create_compute_instance(0, instance, None)
    device = nvml.list_devices()[0]
    return dataclasses.replace(a100, device=device)


def find_granted_device(uuid: str, monkeypatch: pytest.MonkeyPatch) -> Device:
    """The device of a study to which an allocation grants this one."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", uuid)
    return device_choice.find_device(None, needs_gpu=False)


def test_a_mig_device_that_is_granted_is_a_device_of_its_own(divided: Machine, monkeypatch) -> None:
    first = nvml.list_mig_devices(divided.device)[0]
    device = find_granted_device(first.uuid, monkeypatch)
    assert device.name == "NVIDIA A100-SXM4-40GB MIG 3g.20gb"
    assert (device.gpu_uuid, device.memory_mib) == (divided.device.uuid, 19968)
    assert device.facts.as_texts()["multiprocessors"] == "42"
    before = divided.gpu
    for sharing in (Naive(), Mps(program=divided.programs["nvidia-cuda-mps-control"])):
        group = divided.group(None, None, device=device, admin=None)
        sharing.check(group)
        assert sharing.list_setting_commands(group) == Commands()
        with (
            temporary_folder.hold(Path("/tmp"), "colloc-") as scratch,
            sharing.prepare(group, scratch) as slots,
        ):
            for slot in slots.slots:
                assert (slot.visible_devices, slot.gpu_uuid) == (device.uuid, divided.device.uuid)
                assert (slot.gi_id, slot.ci_id) == (device.gi_id, 0)
    assert divided.gpu == before
    Mps().check(divided.group(*[None] * 21, device=device))
    with pytest.raises(ConfigError, match=r"supports at most 21 clients on NVIDIA .* 3g.20gb, not 22"):
        Mps().check(divided.group(*[None] * 22, device=device))


def test_what_would_change_the_gpu_of_a_mig_device_is_refused(divided: Machine, monkeypatch) -> None:
    device = find_granted_device(nvml.list_mig_devices(divided.device)[1].uuid, monkeypatch)
    for options in ({}, {"layout": "existing"}):
        with pytest.raises(ConfigError, match=f"divides a whole GPU.* gpu.device={divided.device.uuid} scenario=mig"):
            Mig(**options).check(divided.group(None, device=device))
    exclusive = gpu_settings(lock_dir=divided.folder, exclusive_process=True)
    with pytest.raises(ConfigError, match="exclusive_process does not work on a MIG device"):
        Mps().check(divided.group(None, device=device, gpu=exclusive))


def test_jobs_get_the_instances_that_are_there_and_nothing_is_changed(divided: Machine) -> None:
    before = divided.gpu

    def places(*sizes: str | None, **options: Any) -> list[str]:
        with divided.shared(*sizes, admin=None, program="none", layout="existing", **options) as slots:
            assert {slot.gpu_uuid for slot in slots.slots} == {divided.device.uuid}
            assert len({slot.visible_devices for slot in slots.slots}) == len(sizes)
            return [dict(slot.facts)["mig_profile"] for slot in slots.slots]

    assert places(None, None) == ["3g.20gb", "2g.10gb"]
    assert places("S", "L", "M") == ["1g.5gb", "3g.20gb", "2g.10gb"]
    assert places(None, None, profiles=["2g", "1g.5gb"]) == ["2g.10gb", "1g.5gb"]
    with pytest.raises(
        ConfigError, match=r"has no free MIG device of 2g for job 1; .* its MIG devices: 3g.20gb, 2g.10gb, 1g.5gb"
    ):
        places(None, None, profile="2g")
    with pytest.raises(ConfigError, match=r"has no free MIG device for job 3"):
        places(None, None, None, None)
    assert divided.gpu == before
    assert not divided.journal.path.exists()


def test_jobs_get_parts_of_one_gpu_instance_that_is_there(divided: Machine) -> None:
    """Beside 3g, 2g and 1g there are, after this, a 2g with two parts instead of a whole one."""
    (two,) = (instance.id for instance in divided.gpu.instances if instance.profile_id == 14)
    divided.driver.destroy_compute_instance(0, two, 0)
    for _ in range(2):
        divided.driver.create_compute_instance(0, two, 0)
    before = divided.gpu

    def places(*requests: str | None) -> list[tuple[int | None, int | None, str]]:
        options = {"profiles": requests} if None not in requests else {}
        with divided.shared(*[None] * len(requests), admin=None, program="none", layout="existing", **options) as slots:
            return [(slot.gi_id, slot.ci_id, dict(slot.facts)["mig_profile"]) for slot in slots.slots]

    parts = [(two, 0, "1c.2g.10gb"), (two, 1, "1c.2g.10gb")]
    assert places("1c.2g", "1c.2g.10gb") == parts
    assert [profile for _, _, profile in places(None, None, None, None)] == ["3g.20gb", *["1c.2g.10gb"] * 2, "1g.5gb"]
    with pytest.raises(
        ConfigError, match=r"has no free MIG device of 2g for job 0; .* its MIG devices: 3g.20gb, 1c.2g.10gb, 1c.2g"
    ):
        places("2g")
    assert divided.gpu == before


def test_parts_that_follow_each_other_come_from_the_gpu_instance_that_has_them_all(h100: Machine) -> None:
    first, second = (h100.driver.create_gpu_instance(0, 9, start).id for start in (0, 4))
    h100.driver.create_compute_instance(0, first, 0)
    for width in (0, 1):
        h100.driver.create_compute_instance(0, second, width)
    device = nvml.list_devices()[0]
    assert [part.gi_id for part in assignment.assign(device, ["1c.3g", "2c.3g"])] == [second, second]
    assert [part.gi_id for part in assignment.assign(device, ["1c.3g", "2c.3g", "1c.3g"])] == [second, second, first]
    assert [part.gi_id for part in assignment.assign(device, ["1c.3g", "1c.3g"])] == [first, second]
