"""`gpu.admin=null`: no scenario starts a command that changes settings, and what needs one is refused before anything.

A simulated driver beneath pynvml stands for a real GPU: the scenarios take it for one, and find its programs on PATH,
where each writes down how it is called.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pipeline.base.domain.protocols import Profiler, Sharing
from pipeline.base.domain.records import Commands, Group, Plan
from pipeline.base.system import factory
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.plan import plan_text
from pipeline.simulation.install import install_driver
from pipeline.simulation.machine.state_file import Gpu
from tests.support import simulated

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
"""What must be asked for besides, where a scenario may find that nothing is to be changed."""
CHANGES_NOTHING = [
    *((scenario, False) for scenario in SCENARIOS if (scenario, False) not in CHANGES),
    ("serial", True),  # baselines of a study under MPS
]


@dataclasses.dataclass(kw_only=True)
class Machine(simulated.Machine):
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
        """How nvidia-smi, dcgmi and sudo were called, as words; ids of instances as a plan shows them.

        Listing compute policies changes nothing.
        """
        ids = r"-(gi|ci) \d+"
        called = [re.sub(ids, lambda m: f"-{m[1]} <{m[1].upper()}>", line).split() for line in self.commands]
        return [words for words in called if words[-1] != "-l"]


@pytest.fixture
def machine(make_plan: Callable[..., Plan], monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    # A short path, as that of a group's scratch folder: sockets of MPS lie below it.
    folder = Path(tempfile.mkdtemp(prefix="null-", dir="/tmp"))
    try:
        machine = Machine.make(folder, branch="615", make_plan=make_plan)
        programs = machine.record_commands(dcgmi=f'exec {machine.programs["dcgmi"]} "$@"', sudo="exit 1")
        (programs / "nvidia-cuda-mps-control").symlink_to(machine.programs["nvidia-cuda-mps-control"])
        monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
        with install_driver(machine.file.path):
            yield machine
    finally:
        shutil.rmtree(folder)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("scenario", "exclusive"), CHANGES)
def test_what_needs_a_change_is_refused_before_anything(machine: Machine, scenario: str, exclusive: bool) -> None:
    before = machine.settings
    with pytest.raises(ConfigError, match=r"gpu\.admin=null forbids") as refused:
        machine.group(scenario, "null", exclusive=exclusive)
    assert "\n" not in str(refused.value)

    # Nor does it happen if the plan were let through.
    group = machine.group(scenario, "[]", exclusive=exclusive)
    group = dataclasses.replace(group, gpu=dataclasses.replace(group.gpu, admin=None))
    files = sorted(machine.folder.iterdir())
    with pytest.raises(ConfigError, match=r"gpu\.admin=null forbids"), machine.prepared(group):
        pytest.fail("was not refused")
    assert machine.changes() == []
    assert machine.settings == before
    assert sorted(machine.folder.iterdir()) == files  # no journal, no pipe folder


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("scenario", "exclusive"), CHANGES_NOTHING)
def test_what_needs_no_change_runs_and_changes_nothing(machine: Machine, scenario: str, exclusive: bool) -> None:
    before = machine.settings
    group = machine.group(scenario, "null", exclusive=exclusive)
    assert factory.build_object(group.sharing).list_setting_commands(group) == Commands()
    with machine.prepared(group):
        assert machine.settings == before
    assert machine.commands == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("scenario", "exclusive"), CHANGES)
def test_where_it_is_allowed_the_announced_commands_run_and_no_others(
    machine: Machine, scenario: str, exclusive: bool
) -> None:
    """Also shows that the programs of these tests tell when they are run."""
    before = machine.settings
    group = machine.group(scenario, "[]", exclusive=exclusive)
    with machine.prepared(group):
        assert machine.settings != before
    assert machine.settings == before
    assert not machine.journal.path.exists()
    commands = factory.build_object(group.sharing).list_setting_commands(group)
    assert machine.changes() == [list(words) for words in (*commands.do, *commands.undo)]
    assert commands.do and commands.undo


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("scenario", "exclusive"), [*CHANGES, ("naive", False)])
def test_what_a_dry_run_prints_is_what_is_run(machine: Machine, scenario: str, exclusive: bool) -> None:
    overrides = [f"scenario={scenario}", f"gpu.lock_dir={machine.folder}", f"gpu.exclusive_process={exclusive}"]
    profiled = [*TO_CHANGE.get(scenario, []), "degree=2", "profiler=nsys", "profiler.program=/bin/true"]
    plan = machine.make_plan([*overrides, *profiled], device=machine.device)
    _, *printed = plan_text.list_commands(plan)
    (group,) = plan.groups
    profiler: Profiler = factory.build_object(group.profiler.build)
    with profiler.prepare(group), machine.prepared(group):
        pass
    assert machine.changes() == [shlex.split(line) for line in printed]
    assert printed[0].endswith("dcgmi profile --pause") and printed[-1].endswith("dcgmi profile --resume")
