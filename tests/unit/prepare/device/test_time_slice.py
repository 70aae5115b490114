"""`scenario=timeslice`: the time slice is read, set, read back and put back, over the simulated driver."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from pipeline.base.domain.machine_state import cpu_device
from pipeline.base.domain.records import Commands
from pipeline.base.system.errors import ConfigError, SharingError
from pipeline.clean.journal import replay
from pipeline.prepare.device import time_slice
from pipeline.prepare.sharing.timeslice import Timeslice
from pipeline.simulation.machine.codes import NO_PERMISSION, NOT_SUPPORTED
from tests.support.simulated import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with Machine.installed(tmp_path, "h100_80gb") as machine:
        yield machine


def hold_slice(machine: Machine, length: str) -> AbstractContextManager[None]:
    return time_slice.hold(length, machine.smi, machine.journal)


def print_always(machine: Machine, words: str, status: int = 0) -> None:
    """Let nvidia-smi print this, whatever it is asked."""
    program = Path(machine.programs["nvidia-smi"])
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{words}\nEND\nexit {status}\n")


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


def killed(machine: Machine) -> None:
    pid = os.fork()
    if pid == 0:
        with hold_slice(machine, "long"):
            os._exit(9)
    os.waitpid(pid, 0)
    assert machine.gpu.timeslice == 3


def test_after_a_kill_the_journal_puts_it_back(machine):
    killed(machine)
    (undone,) = replay(machine.journal)
    assert (undone.kind, machine.gpu.timeslice) == ("time_slice", 0)


def test_what_somebody_else_has_set_meanwhile_stays(machine, caplog):
    killed(machine)
    machine.driver.set_timeslice(0, 2)
    replay(machine.journal)
    assert machine.gpu.timeslice == 2
    assert "stays medium, because another program set it" in caplog.text


def test_after_a_restart_of_the_machine_nothing_is_put_back(machine, monkeypatch):
    killed(machine)
    monkeypatch.setattr("pipeline.clean.journal.boot_id", lambda: "another")
    replay(machine.journal)
    assert machine.gpu.timeslice == 3
    assert not machine.journal.path.exists()


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
    unread = machine.group("a", device=dataclasses.replace(machine.rehearsed, details=()))
    shutil.copy("/bin/false", machine.programs["nvidia-smi"])
    commands = Timeslice("short").list_setting_commands(unread)
    assert [words[-1] for words in (*commands.do, *commands.undo)] == ["1", "0"]
