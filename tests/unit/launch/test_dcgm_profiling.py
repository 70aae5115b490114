"""DCGM's profiling is paused for a profiler, and always resumed; over the simulated dcgmi, a real process."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.base.domain.records import Commands, GpuSettings, Group
from pipeline.base.system import helper_program
from pipeline.base.system.errors import ConfigError, SharingError
from pipeline.clean.journal import replay
from pipeline.launch.profilers.none import NoProfiler
from pipeline.launch.profilers.nsight import Nsys
from pipeline.simulation import dcgmi
from tests.support import simulated
from tests.support.rows import gpu_settings
from tests.support.rows import group as make_group


@dataclasses.dataclass(kw_only=True)
class Machine(simulated.Machine):
    settings: GpuSettings

    @property
    def program(self) -> str:
        return self.programs["dcgmi"]

    @property
    def group(self) -> Group:
        return make_group("a", device=self.rehearsed, gpu=self.settings)

    @property
    def is_paused(self) -> bool:
        return self.file.read().dcgm_is_paused


@pytest.fixture
def make_machine(tmp_path: Path) -> Callable[..., Machine]:
    def make(model: str = "a100_40gb", *, fails: str | None = None, **gpu) -> Machine:
        machine = Machine.make(tmp_path, model, settings=gpu_settings(lock_dir=tmp_path, **gpu))
        if fails:
            machine.fail(fails, 999, times=None)
        return machine

    return make


def test_it_is_paused_meanwhile_and_resumed_at_the_end(make_machine):
    machine = make_machine()
    with pytest.raises(RuntimeError, match="on the way"), Nsys().prepare(machine.group):
        assert machine.is_paused
        assert [step.kind for step in machine.journal.read_steps()] == ["dcgm_profiling"]
        raise RuntimeError("on the way")
    assert not machine.is_paused and machine.journal.read_steps() == ()


def test_what_a_killed_run_paused_is_resumed_by_the_journal(make_machine):
    machine = make_machine()
    context = Nsys().prepare(machine.group)
    context.__enter__()
    assert machine.is_paused
    assert [step.kind for step in replay(machine.journal)] == ["dcgm_profiling"]
    assert not machine.is_paused


def test_the_commands_are_known_before(make_machine):
    machine = make_machine()
    commands = Nsys().list_setting_commands(machine.group)
    assert commands.do == ((machine.program, "profile", "--pause"),)
    assert commands.undo == ((machine.program, "profile", "--resume"),)


@pytest.mark.parametrize("model", ["h100_80gb", "b200_180gb"])
def test_from_hopper_on_nothing_is_paused(make_machine, model):
    machine = make_machine(model)
    assert Nsys().list_setting_commands(machine.group) == Commands()
    with Nsys().prepare(machine.group):
        assert not machine.is_paused


def test_without_a_profiler_nothing_is_paused(make_machine):
    machine = make_machine(admin=None)
    NoProfiler().check(machine.group)
    assert NoProfiler().list_setting_commands(machine.group) == Commands()
    with NoProfiler().prepare(machine.group):
        assert not machine.is_paused


def test_where_no_host_engine_answers_there_is_nothing_to_pause(make_machine):
    machine = make_machine(fails=dcgmi.CONNECT)
    with Nsys().prepare(machine.group):
        pass
    assert machine.journal.read_steps() == ()


def test_an_engine_that_does_not_pause_is_an_error(make_machine):
    machine = make_machine(fails=dcgmi.PAUSE)
    with (
        pytest.raises(SharingError, match="--pause` failed with status 219: The third-party Profiling module"),
        Nsys().prepare(machine.group),
    ):
        pytest.fail("the counters are not free")
    assert machine.journal.read_steps() == ()


def test_an_engine_that_does_not_resume_stays_in_the_journal(make_machine):
    machine = make_machine(fails=dcgmi.RESUME)
    with pytest.raises(SharingError, match="--resume`"), Nsys().prepare(machine.group):
        pass
    assert [step.kind for step in machine.journal.read_steps()] == ["dcgm_profiling"]


def test_it_is_refused_where_nothing_may_be_changed(make_machine):
    machine = make_machine(admin=None)
    nsys = Nsys(program="/bin/true")
    with pytest.raises(ConfigError, match=r"gpu\.admin=null forbids pausing DCGM"):
        nsys.check(machine.group)
    with pytest.raises(ConfigError, match=r"gpu\.admin=null forbids pausing DCGM"), nsys.prepare(machine.group):
        pytest.fail("was not refused")
    assert not machine.is_paused


def test_the_simulated_dcgmi_says_what_the_real_one_says(make_machine):
    machine = make_machine()
    for what, message in (
        ("--pause", "Successfully paused profiling.\n"),
        ("--resume", "Successfully resumed profiling.\n"),
    ):
        assert helper_program.run([machine.program, "profile", what], timeout_s=30).stdout == message
    assert helper_program.run([machine.program, "profile", "--stop"], timeout_s=30, check=False).status != 0
