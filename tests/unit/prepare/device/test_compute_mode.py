"""`gpu.exclusive_process` and what a compute mode forbids, over the simulated driver."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from pipeline.base.system.errors import ConfigError, SharingError
from pipeline.clean.journal import replay
from pipeline.prepare.device import compute_mode
from pipeline.prepare.sharing.mig import Mig
from pipeline.prepare.sharing.mps import Mps
from pipeline.prepare.sharing.naive import Naive
from pipeline.simulation.machine.codes import NO_PERMISSION, DriverError
from pipeline.simulation.machine.gpu_clients import Clients
from tests.support.simulated import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with Machine.installed(tmp_path, "h100_80gb") as machine:
        yield machine


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


def test_after_a_kill_the_journal_puts_it_back(machine):
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
        sharing.check(machine.group(*jobs, details={"compute_mode": mode}, gpu=gpu))


@pytest.mark.parametrize(("jobs", "is_sequential"), [("a", False), ("ab", True)])
def test_a_job_alone_and_baselines_may_run(machine, tmp_path, jobs, is_sequential):
    group = machine.group(*jobs, details={"compute_mode": "exclusive_process"}, sequential=is_sequential)
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
