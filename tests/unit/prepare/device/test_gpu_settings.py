"""Settings of a GPU that a group changes and puts back, and gpu.admin=null, which forbids every change."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from pipeline.base.domain.machine_state import cpu_device
from pipeline.base.domain.protocols import Profiler, Sharing
from pipeline.base.domain.records import Commands, DeviceFacts, Group, Plan
from pipeline.base.system import factory
from pipeline.base.system.errors import ConfigError, SharingError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.clean.journal import replay
from pipeline.plan import plan_text
from pipeline.prepare.device import compute_mode, time_slice
from pipeline.prepare.sharing.mig import Mig
from pipeline.prepare.sharing.mps import Mps
from pipeline.prepare.sharing.naive import Naive
from pipeline.prepare.sharing.timeslice import Timeslice
from pipeline.simulation.install import install_driver
from pipeline.simulation.machine.codes import NO_PERMISSION, NOT_SUPPORTED, DriverError
from pipeline.simulation.machine.driver import Clients
from pipeline.simulation.machine.state_file import Gpu
from tests.support import simulated
from tests.support.programs import write_script
from tests.support.simulated import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with Machine.installed(tmp_path, "h100_80gb") as machine:
        yield machine


def hold_slice(machine: Machine, length: str) -> AbstractContextManager[None]:
    return time_slice.hold(length, machine.smi, machine.journal)


def print_always(machine: Machine, words: str, status: int = 0) -> None:
    """Let nvidia-smi print this, whatever it is asked."""
    write_script(Path(machine.programs["nvidia-smi"]), f"cat <<'END'\n{words}\nEND\nexit {status}")


def test_jobs_run_on_the_whole_gpu_with_the_time_slice_which_is_put_back(machine, tmp_path):
    machine.driver.set_timeslice(0, 1)
    group, sharing = machine.group("a", "b"), Timeslice("long")
    smi = (machine.programs["nvidia-smi"], "compute-policy", "-i", machine.device.uuid, "--set-timeslice")
    assert sharing.list_setting_commands(group) == Commands(do=((*smi, "3"),), undo=((*smi, "1"),))
    with sharing.prepare(group, tmp_path) as slots:
        assert machine.gpu.timeslice == 3
        assert [slot.visible_devices for slot in slots.slots] == [machine.device.uuid] * 2
        assert "CUDA_MPS_PIPE_DIRECTORY" in dict(slots.slots[0].environ)
        assert [step.kind for step in machine.journal.read_steps()] == ["time_slice"]
    assert machine.gpu.timeslice == 1
    assert not machine.journal.path.exists()


def test_a_time_slice_that_is_there_is_not_touched(machine):
    machine.driver.set_timeslice(0, 2)
    assert time_slice.list_commands(machine.smi, "medium", "medium") == Commands()
    with hold_slice(machine, "medium"):
        assert machine.journal.read_steps() == ()
    assert machine.gpu.timeslice == 2


class Setting(NamedTuple):
    """A setting that a group changes to value 3, and that another program changes to value 2."""

    kind: str
    attribute: str
    hold: Callable[[Machine], AbstractContextManager[None]]
    change: Callable[[Machine], None]
    changed_to: str


SETTINGS = [
    Setting(
        kind="time_slice",
        attribute="timeslice",
        hold=lambda machine: hold_slice(machine, "long"),
        change=lambda machine: machine.driver.set_timeslice(0, 2),
        changed_to="medium",
    ),
    Setting(
        kind="compute_mode",
        attribute="compute_mode",
        hold=lambda machine: hold_exclusive(machine),
        change=lambda machine: compute_mode.set_mode(machine.smi, "prohibited"),
        changed_to="prohibited",
    ),
]


@pytest.fixture(params=SETTINGS, ids=lambda setting: setting.kind)
def changed_setting(request: pytest.FixtureRequest, machine: Machine) -> Setting:
    """A setting that a killed study has left changed."""
    setting: Setting = request.param
    pid = os.fork()
    if pid == 0:
        with setting.hold(machine):
            os._exit(9)
    os.waitpid(pid, 0)
    assert getattr(machine.gpu, setting.attribute) == 3
    return setting


def test_after_a_kill_the_journal_puts_a_setting_back(machine, changed_setting):
    (undone,) = replay(machine.journal)
    assert (undone.kind, getattr(machine.gpu, changed_setting.attribute)) == (changed_setting.kind, 0)


def test_what_another_program_has_set_since_the_kill_stays(machine, changed_setting, caplog):
    changed_setting.change(machine)
    assert [step.kind for step in replay(machine.journal)] == [changed_setting.kind]
    assert getattr(machine.gpu, changed_setting.attribute) == 2
    assert f"stays {changed_setting.changed_to}, because another program set it" in caplog.text


def test_after_a_restart_nothing_is_put_back_but_by_a_journal_that_knows_of_none(machine, changed_setting, monkeypatch):
    monkeypatch.setattr("pipeline.clean.journal.boot_id", lambda: "another")
    replay(machine.journal)
    assert getattr(machine.gpu, changed_setting.attribute) == 3
    assert not machine.journal.path.exists()
    if changed_setting.kind == "compute_mode":  # whose steps were once without the boot
        machine.journal.add("compute_mode", uuid=machine.device.uuid, admin=[], mode="default")
        replay(machine.journal)
        assert machine.gpu.compute_mode == 0


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (NO_PERMISSION, r"no permission for `.*--set-timeslice 3`: Failed to set timeslice policy .*administrator"),
        (
            NOT_SUPPORTED,
            r"is not long after .*Failed to set timeslice policy with value Long for GPU 0 : Not Supported",
        ),
    ],
)
def test_what_cannot_be_set_is_an_error_that_names_the_command(machine, code, says):
    machine.fail("compute-policy", code, times=None)
    with pytest.raises(SharingError, match=says) as refused, hold_slice(machine, "long"):
        pytest.fail("it is not set")
    assert "\n" not in str(refused.value)
    assert (machine.gpu.timeslice, machine.journal.read_steps()) == (0, ())


@pytest.mark.parametrize(
    ("listing", "value_read"),
    [
        ("GPU  0: Timeslice: Default", "default"),
        ("| GPU  Policy     Value  |\n|  0   Time slice LONG   |\n|  0   Other      Short  |", "long"),
        ("| GPU  Timeslice |\n|================|\n|  0   Medium    |", "medium"),
    ],
)
def test_the_list_is_read_whatever_its_layout(machine, listing, value_read):
    print_always(machine, listing)
    assert time_slice.read(machine.smi) == value_read


@pytest.mark.parametrize(
    ("words", "status"),
    [
        ("--set-timeslice: Set timeslice config for a GPU: 0=DEFAULT, 1=SHORT, 2=MEDIUM, 3=LONG", 0),
        ("Timeslice: Default", 3),
        ("Invalid combination of input arguments.", 2),
        ("", 0),
    ],
)
def test_without_the_time_slice_that_was_there_nothing_is_changed(machine, words, status):
    print_always(machine, words, status)
    with (
        pytest.raises(SharingError, match=rf"does not print the time slice.*\(status {status}\)"),
        hold_slice(machine, "long"),
    ):
        pytest.fail("it is not known")
    assert not machine.journal.path.exists()
    with pytest.raises(ConfigError, match=r"scenario=.*: `.*does not print the time slice") as refused:
        Timeslice("long").check(machine.group("a"))
    assert "\n" not in str(refused.value)


def test_a_group_without_time_slices_is_refused_beforehand(machine):
    device = machine.rehearsed
    refused = {
        "needs an NVIDIA GPU": machine.group("a", device=cpu_device()),
        "MIG mode is on": machine.group("a", device=dataclasses.replace(device, mig_enabled=True)),
        "is a MIG device": machine.group("a", device=dataclasses.replace(device, parent=device.uuid)),
        "gpu.admin=null forbids": machine.group("a", gpu={"admin": None}),
        "exclusive_process does not work": machine.group("a", gpu={"exclusive_process": True}),
    }
    for words, group in refused.items():
        with pytest.raises(ConfigError, match=words):
            Timeslice("long").check(group)
    with pytest.raises(
        ConfigError, match=r"scenario\.timeslice=lang is unknown; use one of default, short, medium, long"
    ):
        Timeslice("lang")


def test_a_dry_run_without_the_gpu_says_what_would_be_run(machine):
    unread = machine.group("a", device=dataclasses.replace(machine.rehearsed, facts=DeviceFacts()))
    shutil.copy("/bin/false", machine.programs["nvidia-smi"])
    commands = Timeslice("short").list_setting_commands(unread)
    assert [words[-1] for words in (*commands.do, *commands.undo)] == ["1", "0"]


def hold_exclusive(machine: Machine) -> AbstractContextManager[None]:
    return compute_mode.hold_exclusive(machine.smi, machine.journal)


def test_one_process_computes_and_the_mode_is_put_back(machine):
    uuid, clients = machine.device.uuid, Clients(machine.file)
    with hold_exclusive(machine):
        assert machine.gpu.compute_mode == 3
        clients.hold(uuid, os.getpid(), "nvidia-cuda-mps-server", 60)
        with pytest.raises(DriverError):
            clients.hold(uuid, os.getppid(), "bypasses", 60)
        clients.hold(uuid, os.getppid(), "client", 60, "M+C")
        clients.release(os.getpid())
    assert machine.gpu.compute_mode == 0
    assert machine.journal.read_steps() == ()


def test_a_mode_that_was_there_stays(machine):
    compute_mode.set_mode(machine.smi, "exclusive_process")
    with hold_exclusive(machine):
        assert machine.journal.read_steps() == ()
    assert machine.gpu.compute_mode == 3


def test_without_permission_nothing_changed_and_the_command_is_named(machine):
    machine.fail("nvmlDeviceSetComputeMode", NO_PERMISSION, times=None)
    with pytest.raises(SharingError, match=r"-c EXCLUSIVE_PROCESS.*administrator"), hold_exclusive(machine):
        pass
    assert (machine.gpu.compute_mode, machine.journal.read_steps()) == (0, ())


@pytest.mark.parametrize(
    ("sharing", "jobs", "gpu", "mode", "words"),
    [
        (Naive(), "ab", {"exclusive_process": True}, "default", "does not work with scenario=naive"),
        (Mig(), "ab", {"exclusive_process": True}, "default", "does not work with scenario"),
        (Mps(), "ab", {"exclusive_process": True, "admin": None}, "default", "gpu.admin=null forbids"),
        (Naive(), "ab", {}, "exclusive_process", "only one process at once, but this group has 2; .*-c DEFAULT"),
        (Naive(), "a", {}, "prohibited", "allows no process"),
        (Mig(), "ab", {}, "exclusive_process", "-c DEFAULT"),
    ],
)
def test_a_mode_that_does_not_fit_is_refused_beforehand(machine, sharing, jobs, gpu, mode, words):
    with pytest.raises(ConfigError, match=words):
        sharing.check(machine.group(*jobs, facts={"compute_mode": mode}, gpu=gpu))


@pytest.mark.parametrize(("jobs", "is_sequential"), [("a", False), ("ab", True)])
def test_a_job_alone_and_baselines_may_run(machine, tmp_path, jobs, is_sequential):
    group = machine.group(*jobs, facts={"compute_mode": "exclusive_process"}, sequential=is_sequential)
    with Naive().prepare(group, tmp_path) as slots:
        assert [slot.visible_devices for slot in slots.slots] == [machine.device.uuid] * len(jobs)


def test_a_naive_job_under_a_daemon_of_the_machine_is_an_error(machine, tmp_path):
    group = machine.group("a")
    with Naive().prepare(group, tmp_path) as slots:
        Clients(machine.file).hold(group.device.uuid, os.getppid(), "train", 60)
        slots.verify({0: os.getppid()})
        Clients(machine.file).hold(group.device.uuid, os.getppid(), "train", 60, "M+C")
        with pytest.raises(SharingError, match=r"MPS clients \(train \(pid"):
            slots.verify({0: os.getppid()})
    tolerant = machine.group("a", gpu={"tolerate": ("train",)})
    (tmp_path / "no-mps").rmdir()
    with Naive().prepare(tolerant, tmp_path) as slots:
        slots.verify({0: os.getppid()})
    Clients(machine.file).release(os.getppid())


SCENARIOS = sorted(path.stem for path in (PROJECT_DIR / "conf/scenario").glob("*.yaml"))
# Every scenario that changes a setting of the GPU, with and without gpu.exclusive_process.
CHANGES = [
    ("mig", False),
    ("mig_mps", False),
    ("mps", True),
    ("mps_percent", True),
    ("mps_static", True),
    ("timeslice", False),
]
TO_CHANGE = {"timeslice": ["scenario.timeslice=long"]}
"""Overrides with which a scenario changes something for certain."""
CHANGES_NOTHING = [
    *((scenario, False) for scenario in SCENARIOS if (scenario, False) not in CHANGES),
    ("serial", True),  # baselines of a study under MPS
]


@dataclasses.dataclass(kw_only=True)
class MachineOnPath(simulated.Machine):
    """An A100 whose programs are first on PATH."""

    make_plan: Callable[..., Plan]

    def group(self, scenario: str, admin: str, *, exclusive: bool) -> Group:
        """The group that a user asks for; refused as it would be for the user."""
        overrides = [f"scenario={scenario}", f"gpu.admin={admin}", f"gpu.lock_dir={self.folder}"]
        overrides += TO_CHANGE.get(scenario, [])
        plan = self.make_plan([*overrides, f"gpu.exclusive_process={exclusive}", "degree=2"], device=self.device)
        return plan.groups[0]

    @contextmanager
    def prepared(self, group: Group) -> Iterator[None]:
        """The GPU set up for the group."""
        sharing: Sharing = factory.build_object(group.sharing)
        with sharing.prepare(group, self.folder):
            yield

    @property
    def settings(self) -> Gpu:
        """The GPU as it is, but for the processes on it."""
        return dataclasses.replace(self.gpu, processes=())

    def changes(self) -> list[list[str]]:
        """Calls of nvidia-smi, dcgmi and sudo, as words; ids of instances as a plan shows them.

        Listing compute policies changes nothing.
        """
        ids = r"-(gi|ci) \d+"
        called = [re.sub(ids, lambda m: f"-{m[1]} <{m[1].upper()}>", line).split() for line in self.commands]
        return [words for words in called if words[-1] != "-l"]


@pytest.fixture
def machine_on_path(make_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch) -> Iterator[MachineOnPath]:
    # A short path, as that of a group's scratch folder: sockets of MPS lie below it.
    folder = Path(tempfile.mkdtemp(prefix="null-", dir="/tmp"))
    try:
        machine_on_path = MachineOnPath.make(folder, branch="615", make_plan=make_plan)
        programs = machine_on_path.record_commands(
            dcgmi=f'exec {machine_on_path.programs["dcgmi"]} "$@"', sudo="exit 1"
        )
        (programs / "nvidia-cuda-mps-control").symlink_to(machine_on_path.programs["nvidia-cuda-mps-control"])
        monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
        with install_driver(machine_on_path.file.path):
            yield machine_on_path
    finally:
        shutil.rmtree(folder)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("scenario", "exclusive"), CHANGES)
def test_what_needs_a_change_is_refused_before_anything(
    machine_on_path: MachineOnPath, scenario: str, exclusive: bool
) -> None:
    before = machine_on_path.settings
    with pytest.raises(ConfigError, match=r"gpu\.admin=null forbids") as refused:
        machine_on_path.group(scenario, "null", exclusive=exclusive)
    assert "\n" not in str(refused.value)

    # Nor does it happen if the plan were let through.
    group = machine_on_path.group(scenario, "[]", exclusive=exclusive)
    group = dataclasses.replace(group, gpu=dataclasses.replace(group.gpu, admin=None))
    files = sorted(machine_on_path.folder.iterdir())
    with pytest.raises(ConfigError, match=r"gpu\.admin=null forbids"), machine_on_path.prepared(group):
        pytest.fail("was not refused")
    assert machine_on_path.changes() == []
    assert machine_on_path.settings == before
    assert sorted(machine_on_path.folder.iterdir()) == files  # no journal, no pipe folder


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("scenario", "exclusive"), CHANGES_NOTHING)
def test_what_needs_no_change_runs_and_changes_nothing(
    machine_on_path: MachineOnPath, scenario: str, exclusive: bool
) -> None:
    before = machine_on_path.settings
    group = machine_on_path.group(scenario, "null", exclusive=exclusive)
    assert factory.build_object(group.sharing).list_setting_commands(group) == Commands()
    with machine_on_path.prepared(group):
        assert machine_on_path.settings == before
    assert machine_on_path.commands == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("scenario", "exclusive"), CHANGES)
def test_where_it_is_allowed_the_announced_commands_run_and_no_others(
    machine_on_path: MachineOnPath, scenario: str, exclusive: bool
) -> None:
    """Also shows that the programs of these tests tell when they are run."""
    before = machine_on_path.settings
    group = machine_on_path.group(scenario, "[]", exclusive=exclusive)
    with machine_on_path.prepared(group):
        assert machine_on_path.settings != before
    assert machine_on_path.settings == before
    assert not machine_on_path.journal.path.exists()
    commands = factory.build_object(group.sharing).list_setting_commands(group)
    assert machine_on_path.changes() == [list(words) for words in (*commands.do, *commands.undo)]
    assert commands.do and commands.undo


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("scenario", "exclusive"), [*CHANGES, ("naive", False)])
def test_what_a_dry_run_prints_is_what_is_run(machine_on_path: MachineOnPath, scenario: str, exclusive: bool) -> None:
    overrides = [f"scenario={scenario}", f"gpu.lock_dir={machine_on_path.folder}", f"gpu.exclusive_process={exclusive}"]
    profiled = [*TO_CHANGE.get(scenario, []), "degree=2", "profiler=nsys", "profiler.program=/bin/true"]
    plan = machine_on_path.make_plan([*overrides, *profiled], device=machine_on_path.device)
    _, *printed = plan_text.list_commands(plan)
    (group,) = plan.groups
    profiler: Profiler = factory.build_object(group.profiler.build)
    with profiler.prepare(group), machine_on_path.prepared(group):
        pass
    assert machine_on_path.changes() == [shlex.split(line) for line in printed]
    assert printed[0].endswith("dcgmi profile --pause") and printed[-1].endswith("dcgmi profile --resume")
