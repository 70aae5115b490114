"""Settings of a GPU that a group changes and puts back: the compute mode, and the time slice."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from pipeline.base.domain.machine_state import cpu_device
from pipeline.base.domain.records import Commands, DeviceFacts
from pipeline.base.system.errors import ConfigError, SharingError
from pipeline.clean.journal import replay
from pipeline.prepare.device import compute_mode, time_slice
from pipeline.prepare.sharing.mig import Mig
from pipeline.prepare.sharing.mps import Mps
from pipeline.prepare.sharing.naive import Naive
from pipeline.prepare.sharing.timeslice import Timeslice
from pipeline.simulation.machine.codes import NO_PERMISSION, NOT_SUPPORTED, DriverError
from pipeline.simulation.machine.driver import Clients
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


def be_killed(machine):
    """A study that is killed while only one process may compute."""
    pid = os.fork()
    if pid == 0:
        with hold_exclusive(machine):
            os._exit(9)
    os.waitpid(pid, 0)
    assert machine.gpu.compute_mode == 3


def test_after_a_kill_the_journal_puts_the_mode_back(machine):
    be_killed(machine)
    (undone,) = replay(machine.journal)
    assert undone.kind == "compute_mode"
    assert machine.gpu.compute_mode == 0


def test_what_an_administrator_has_set_since_the_kill_stays(machine, caplog):
    be_killed(machine)
    compute_mode.set_mode(machine.smi, "prohibited")
    assert [step.kind for step in replay(machine.journal)] == ["compute_mode"]
    assert machine.gpu.compute_mode == 2
    assert "stays prohibited, because another program set it" in caplog.text


def test_after_a_restart_nothing_is_put_back_but_by_a_journal_that_knows_of_none(machine, monkeypatch):
    be_killed(machine)
    monkeypatch.setattr("pipeline.clean.journal.boot_id", lambda: "another")
    replay(machine.journal)
    assert machine.gpu.compute_mode == 3
    machine.journal.add("compute_mode", uuid=machine.device.uuid, admin=[], mode="default")  # as they once were
    replay(machine.journal)
    assert machine.gpu.compute_mode == 0


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
