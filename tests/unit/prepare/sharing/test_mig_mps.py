"""MPS inside MIG: who goes where, and that each job is proved to be where it belongs."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.base.system.errors import ConfigError, SharingError
from pipeline.clean.journal import Journal
from pipeline.prepare.mps import client_proof
from pipeline.prepare.sharing.mig_mps import MigMps
from pipeline.simulation.machine.driver import Clients
from pipeline.simulation.machine.state_file import StateFile
from pipeline.simulation.mps import control_program
from tests.support.simulated import Machine


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path, as a group's scratch folder has."""
    path = Path(tempfile.mkdtemp(prefix="mm-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def make(folder) -> Iterator:
    """Makes groups of a number of jobs on a simulated A100."""
    with Machine.installed(folder) as machine:
        yield lambda degree, **gpu: machine.group(*["job"] * degree, scenario="mig_mps", gpu=gpu)


@pytest.fixture
def sleepers() -> Iterator[list[int]]:
    processes = [subprocess.Popen(["sleep", "60"]) for _ in range(4)]
    yield [process.pid for process in processes]
    for process in processes:
        process.kill()
        process.wait()


def gpu_of(folder: Path):
    return StateFile(folder / "machine.json").read().gpus[0]


def join(folder: Path, slot, pid: int) -> None:
    """What a CUDA program does in its slot: it takes memory there, and becomes a client of the daemon it finds."""
    connection = control_program.connect(dict(slot.environ), on_behalf_of=pid)
    assert connection is not None
    connection.close()
    Clients(StateFile(folder / "machine.json")).hold(slot.visible_devices, pid, "job", 100, "M+C")


@pytest.mark.slow
def test_jobs_share_instances_each_with_a_server_of_its_own_and_nothing_is_left(make, folder, sleepers, monkeypatch):
    monkeypatch.setattr(client_proof, "_PROOF_LIMIT_S", 0.3)
    group, before = make(3), gpu_of(folder)
    with MigMps(profiles=["3g.20gb", "2g.10gb"]).prepare(group, folder) as shared:
        slots = shared.slots
        assert slots[0].visible_devices == slots[2].visible_devices != slots[1].visible_devices
        assert slots[0].environ == slots[2].environ != slots[1].environ
        assert (slots[0].gi_id, slots[0].ci_id, slots[0].gpu_uuid) == (slots[2].gi_id, 0, group.device.uuid)
        assert [p.name for p in gpu_of(folder).processes] == ["nvidia-cuda-mps-server"] * 2
        assert len({p.gpu_instance_id for p in gpu_of(folder).processes}) == 2
        *jobs, bystander = sleepers
        for slot, pid in zip(slots, jobs, strict=True):
            join(folder, slot, pid)
        shared.verify(dict(enumerate(jobs)))
        with pytest.raises(SharingError, match="not clients of MPS: 1-job"):
            shared.verify({1: bystander})
        # On the instance of another, under the server of another.
        with pytest.raises(SharingError, match=r"0-job.*which is not its MIG device"):
            shared.verify({0: jobs[1]})
        for pid in jobs:
            Clients(StateFile(folder / "machine.json")).release(pid)
    assert gpu_of(folder) == before
    assert Journal(folder, group.device.uuid).read_steps() == ()


@pytest.mark.slow
def test_compute_instances_of_one_gpu_instance_have_servers_of_their_own(make, folder):
    group, before = make(3), gpu_of(folder)
    with MigMps(profiles=["1c.3g", "2c.3g"]).prepare(group, folder) as shared:
        first, second, third = shared.slots
        assert (first.gi_id, first.ci_id) == (third.gi_id, third.ci_id)
        assert first.gi_id == second.gi_id
        assert first.visible_devices == third.visible_devices != second.visible_devices
        assert first.environ == third.environ != second.environ
        assert len({p.compute_instance_id for p in gpu_of(folder).processes}) == 2
    assert gpu_of(folder) == before


def test_as_many_instances_as_jobs_at_most(make):
    assert len(MigMps().list_sizes(make(1))) == 1
    assert len(MigMps().list_sizes(make(5))) == 2
    assert len(MigMps(num_instances=3).list_sizes(make(5))) == 3
    MigMps(num_instances=3).check(make(5))


@pytest.mark.parametrize(
    ("options", "degree", "words"),
    [
        ({"profiles": ["3g", "3g", "1g"]}, 4, "1g.5gb"),
        ({"profiles": ["1g", "1g", "1g"]}, 2, "use only the instances 0, 1"),
        ({"instance_of": [0, 0]}, 2, "use only the instances 0"),
        ({"instance_of": [0, 1]}, 3, "2 values for 3 jobs"),
        ({"active_thread_pct": [50, 50]}, 3, "scenario.active_thread_pct has 2 values for 3 jobs"),
    ],
)
def test_what_does_not_match_is_refused(make, options, degree, words):
    with pytest.raises(ConfigError, match=words):
        MigMps(**options).check(make(degree))


@pytest.mark.parametrize(
    ("options", "device", "most"),
    [
        ({"profiles": ["1g"]}, "1g.5gb", 7),
        ({"profiles": ["3g", "1g"], "instance_of": [1, *[0] * 22]}, "3g.20gb", 21),
        ({"profiles": ["2c.3g", "1c.3g"], "instance_of": [0, *[1] * 8]}, "1c.3g.20gb", 7),
    ],
)
def test_more_jobs_than_mps_takes_clients_on_an_instance_are_refused(make, options, device, most):
    dealt = options.pop("instance_of", [0] * (most + 1))
    with pytest.raises(
        ConfigError, match=f"supports at most {most} clients on a {device}, not {most + 1}; .* larger MIG devices"
    ):
        MigMps(**options, instance_of=dealt).check(make(len(dealt)))
    MigMps(**options, instance_of=dealt[:-1]).check(make(len(dealt) - 1))


def test_settings_that_neither_knows_are_refused(make):
    for options in ({"num_instances": 0}, {"active_thread_pct": 0}, {"priority": 2}, {"pinned_mem_limit": "much"}):
        with pytest.raises(ConfigError):
            MigMps(**options)
    with pytest.raises(ConfigError, match=r"gpu\.admin=null"):
        MigMps().check(make(2, admin=None))


def test_the_commands_that_need_an_administrator_are_named_in_order(make):
    group = make(4)
    smi, uuid = dict(group.device.programs)["nvidia-smi"], group.device.uuid
    destroy = [["mig", "-dci", "-i", uuid, "-gi", "<GI>", "-ci", "<CI>"], ["mig", "-dgi", "-i", uuid, "-gi", "<GI>"]]
    expected = [
        ["-i", uuid, "-mig", "1"],
        ["mig", "-i", uuid, "-cgi", "9:0", "-C"],
        ["mig", "-i", uuid, "-cgi", "9:4", "-C"],
        *destroy,
        *destroy,
        ["-i", uuid, "-mig", "0"],
    ]
    commands = MigMps().list_setting_commands(group)
    assert [list(words) for words in (*commands.do, *commands.undo)] == [[smi, *rest] for rest in expected]
