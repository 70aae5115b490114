"""MPS static partitions in the texts of two releases, and MPS inside MIG."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pipeline.base.domain.records import DeviceFacts
from pipeline.base.system.errors import ConfigError, SharingError
from pipeline.clean.journal import Journal
from pipeline.prepare.mps import client_proof, control_program, sm_partitions
from pipeline.prepare.mps.control_program import ControlProgram
from pipeline.prepare.sharing import mps_static
from pipeline.prepare.sharing.mig_mps import MigMps
from pipeline.prepare.sharing.mps import Mps
from pipeline.prepare.sharing.mps_static import MpsStatic
from pipeline.simulation.machine.driver import Clients
from pipeline.simulation.machine.state_file import StateFile
from pipeline.simulation.mps import control_program as simulated_program
from pipeline.simulation.mps.command_answers import Device, Partitions
from pipeline.simulation.mps.control_program import connect
from tests.support.simulated import Machine
from tests.unit.prepare.sharing.test_mps import client, folder, list_daemons  # noqa: F401

VARIABLE, INVALID = "CUDA_MPS_SM_PARTITION", "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION"


@pytest.fixture
def machine(folder: Path, request: pytest.FixtureRequest) -> Iterator[Machine]:  # noqa: F811
    with Machine.installed(folder, "h100_80gb", branch=getattr(request, "param", "615")) as machine:
        yield machine


def partition_of(slot) -> str:
    return dict(slot.environ)[VARIABLE]


@pytest.mark.slow
def test_jobs_get_equal_parts_of_the_gpu_and_are_proved_to_be_in_them(machine, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PROTOCOL_VERSION", "3")
    group = machine.group("a", "b")
    with MpsStatic().prepare(group, machine.folder) as slots, ExitStack() as stack:
        assert [slot.facts for slot in slots.slots] == [(("mps_chunks", "7"), ("mps_multiprocessors", "56"))] * 2
        names = [partition_of(slot) for slot in slots.slots]
        assert len(set(names)) == 2 and all(name.startswith(f"{machine.device.uuid}/D/") for name in names)
        assert slots.slots[0].visible_devices == machine.device.uuid
        assert [step.kind for step in machine.journal.read_steps()] == ["mps_daemon"]
        slots.verify({i: stack.enter_context(client(slot)) for i, slot in enumerate(slots.slots)})
        stack.close()
    assert list_daemons(machine.folder) == []
    assert not machine.journal.path.exists()


def test_the_commands_of_a_newer_protocol_are_not_those_that_are_used_here(machine, monkeypatch):
    """What makes the test above one that can fail."""
    monkeypatch.setattr(control_program, "_PROTOCOL", "CUDA_MPS_PROTOCOL")
    monkeypatch.setattr(
        ControlProgram, "environ", lambda self, **more: os.environ | {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipes)} | more
    )
    monkeypatch.setenv("CUDA_MPS_PROTOCOL_VERSION", "3")
    group = machine.group("a")
    refused = pytest.raises(SharingError, match=r'replied to .*Unknown command "get_server_list"')
    with refused, Mps().prepare(group, machine.folder):
        pytest.fail("it understands")


def test_parts_are_as_large_as_asked_and_the_last_chunk_brings_the_rest(machine):
    group = machine.group("a", "b")
    with MpsStatic(chunks=(10, 5)).prepare(group, machine.folder) as slots:
        assert [dict(slot.facts)["mps_multiprocessors"] for slot in slots.slots] == ["80", "52"]


def test_more_than_the_daemon_has_is_an_error_and_nothing_is_left(machine, monkeypatch):
    monkeypatch.setattr(mps_static.mig_table, "count_chunks", lambda *_: 16)  # as on a chip without a report
    group = machine.group("a", "b")
    says = "has 15 chunks of multiprocessors, but 2 jobs need 16"
    chunks = MpsStatic(chunks=8)
    with pytest.raises(SharingError, match=says) as error, chunks.prepare(group, machine.folder):
        pytest.fail("there are not so many")
    assert "control.log" not in str(error.value)  # it has the reply with the chunks only
    assert list_daemons(machine.folder) == []
    assert not machine.journal.path.exists()


def test_a_partition_that_the_daemon_refuses_is_an_error_with_its_words(machine, monkeypatch):
    ask = ControlProgram.ask
    monkeypatch.setattr(ControlProgram, "ask", lambda self, text, *limit: ask(self, text.replace(" 4", " 40"), *limit))
    group = machine.group("a")
    says = "did not create a partition of 4 chunks .*: Failed to create partition"
    with pytest.raises(SharingError, match=says), MpsStatic(chunks=4).prepare(group, machine.folder):
        pytest.fail("it was refused")


def test_a_job_that_is_in_the_partition_of_another_is_an_error_that_names_it(machine, monkeypatch):
    monkeypatch.setattr(mps_static, "_PROOF_LIMIT_S", 0.2)
    group = machine.group("a", "b")
    with MpsStatic().prepare(group, machine.folder) as slots, ExitStack() as stack:
        first, second = slots.slots
        pids = [stack.enter_context(client(first))]
        pids.append(stack.enter_context(client(second, **{VARIABLE: partition_of(first)})))
        with pytest.raises(SharingError, match=rf"not in their MPS static partitions: 1-b \(pid {pids[1]}\)"):
            slots.verify(dict(enumerate(pids)))
        with pytest.raises(RuntimeError, match=INVALID):
            connect({key: value for key, value in first.environ if key != VARIABLE})


@pytest.mark.parametrize("machine", ["580"], indirect=True)
def test_an_older_driver_is_refused_and_so_is_an_older_control_program(machine):
    with pytest.raises(ConfigError, match=r"CUDA 13\.1 or newer \(R590\), not 580\.159\.04 with CUDA 13\.0") as refused:
        MpsStatic().check(machine.group("a"))
    assert "\n" not in str(refused.value)
    group = machine.group("a", facts={"cuda_version": "13.1"})
    says = "MPS did not start .* -d -S was refused: Unrecognized option"
    with pytest.raises(SharingError, match=says), MpsStatic().prepare(group, machine.folder):
        pytest.fail("it does not know static partitions")
    assert not machine.journal.path.exists()


def test_a_program_that_starts_all_the_same_but_has_no_partitions_is_refused(machine, monkeypatch):
    monkeypatch.setattr(
        ControlProgram, "ask", lambda self, text, *_: ['Unknown command "lspart"'] if text == "lspart" else []
    )
    says = r"lists no chunks of multiprocessors for .* \(reply: Unknown command.*; use driver R590"
    with pytest.raises(SharingError, match=says):
        sm_partitions.divide(ControlProgram(program="/x", pipes=Path("/p")), machine.device.uuid, None, 2)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"chunks": 0}, "scenario.chunks=0 must be a whole number, at least 1"),
        ({"chunks": (2, 1.5)}, r"scenario.chunks=1\.5"),
        ({"chunks": True}, "scenario.chunks=True"),
        ({"chunks": (5, 5)}, "scenario.chunks has 2 values for 3 jobs"),
        ({"chunks": (6, 5, 5)}, "has at most 15 chunks of 8 multiprocessors, but the jobs need 16"),
        ({"priority": 2}, "scenario.priority=2"),
    ],
)
def test_what_cannot_be_is_refused_beforehand(machine, options, says):
    with pytest.raises(ConfigError, match=says):
        MpsStatic(**options).check(machine.group("a", "b", "c"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"parent": "GPU-1"}, "divides a whole GPU"),
        ({"mig_enabled": True}, "MIG mode is on"),
        ({"facts": DeviceFacts(compute_capability=(7, 0), cuda_version="13.1")}, "needs an Ampere GPU"),
    ],
)
def test_a_device_that_cannot_be_divided_is_refused(machine, changes, says):
    group = machine.group("a")
    group = dataclasses.replace(group, device=dataclasses.replace(group.device, **changes))
    with pytest.raises(ConfigError, match=says):
        MpsStatic().check(group)
    unread = dataclasses.replace(group, device=dataclasses.replace(machine.rehearsed, facts=DeviceFacts()))
    MpsStatic().check(unread)


def test_a_simulated_gpu_whose_multiprocessors_nobody_knows_is_refused_and_a_real_one_is_asked(machine):
    group = machine.group("a")
    device = dataclasses.replace(group.device, facts=dataclasses.replace(group.device.facts, multiprocessors=None))
    with pytest.raises(ConfigError, match=r"number of multiprocessors of .* is unknown"):
        MpsStatic().check(dataclasses.replace(group, device=device))
    real = dataclasses.replace(device, kind=machine.device.kind, programs=())
    MpsStatic().check(dataclasses.replace(group, device=real))


@pytest.fixture
def books() -> Partitions:
    return Partitions([Device("GPU-74d43ed3-cdf7-e667-3644-bf5b4f46ed65", 92, 8, 10)], 13040)


def test_partitions_are_listed_as_documented_and_removed_when_they_are_empty(books):
    """What the simulated program does; here partitions end with their daemon."""
    names = [books.answer(["sm_partition", "add", "GPU-74d4", chunks], ())[0] for chunks in ("5", "3", "2")]
    assert [name.partition("/")[0] for name in names] == ["GPU-74d43ed3-cdf7-e667-3644-bf5b4f46ed65"] * 3
    ids = [name.partition("/")[2] for name in names]
    assert [line.split() for line in books.answer(["lspart"], ids)] == [
        ["GPU", "Partition", "free", "used", "free", "used", "clients"],
        ["chunks", "chunks", "SM", "SM"],
        ["GPU-74d43ed3", "-", "0", "10", "0", "80", "-"],
        ["GPU-74d43ed3", ids[0], "-", "5", "-", "40", "Yes"],
        ["GPU-74d43ed3", ids[1], "-", "3", "-", "24", "Yes"],
        ["GPU-74d43ed3", ids[2], "-", "2", "-", "28", "Yes"],
    ]
    assert books.answer(["sm_partition", "add", "GPU-74d4", "1"], ()) == ["Failed to create partition"]
    remove = ["sm_partition", "rm", "GPU-74d4", ids[0]]
    assert "in use" in books.answer(remove, ids)[0]
    assert (books.answer(remove, ()), books.answer(remove, ())) == ([], ["Failed to remove partition"])


def test_the_answers_of_earlier_programs_are_read_as_well(monkeypatch):
    """In these, a cell that does not apply is blank, and a partition is named within a sentence."""
    uuid = "GPU-6b47fc4c-5ff2-5f75-af0b-aeea2dbeef5f"
    books = Partitions([Device(uuid, 132, 8, 15)], 13010)
    used: list[str] = []
    monkeypatch.setattr(ControlProgram, "ask", lambda _, text, *limit: books.answer(text.split(), used))
    control = ControlProgram(program="/x", pipes=Path("/p"))
    partitions = sm_partitions.divide(control, uuid, None, 2)
    assert [(partition.chunks, partition.multiprocessors) for partition in partitions] == [(7, 56)] * 2
    assert control.ask("sm_partition add GPU 1")[0] == f"Partition {uuid}/D/79AgAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA created"
    assert sm_partitions.list_unused(control, partitions) == partitions
    used.append(partitions[0].id)
    assert sm_partitions.list_unused(control, partitions) == partitions[1:]
    with pytest.raises(SharingError, match="has 0 chunks of multiprocessors, but 1 jobs need 1"):
        sm_partitions.divide(control, uuid, None, 1)


@pytest.fixture
def mig_folder() -> Iterator[Path]:
    """A short path, as a group's scratch folder has."""
    path = Path(tempfile.mkdtemp(prefix="mm-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def make(mig_folder) -> Iterator:
    """Makes groups of a number of jobs on a simulated A100."""
    with Machine.installed(mig_folder) as machine:
        yield lambda degree, **gpu: machine.group(*["job"] * degree, scenario="mig_mps", gpu=gpu)


@pytest.fixture
def sleepers() -> Iterator[list[int]]:
    processes = [subprocess.Popen(["sleep", "60"]) for _ in range(4)]
    yield [process.pid for process in processes]
    for process in processes:
        process.kill()
        process.wait()


def gpu_of(mig_folder: Path):
    return StateFile(mig_folder / "machine.json").read().gpus[0]


def join(mig_folder: Path, slot, pid: int) -> None:
    """Act as a CUDA program in its slot: take memory there, and become a client of the daemon it finds."""
    connection = simulated_program.connect(dict(slot.environ), on_behalf_of=pid)
    assert connection is not None
    connection.close()
    Clients(StateFile(mig_folder / "machine.json")).hold(slot.visible_devices, pid, "job", 100, "M+C")


@pytest.mark.slow
def test_jobs_share_instances_each_with_a_server_of_its_own_and_nothing_is_left(
    make, mig_folder, sleepers, monkeypatch
):
    monkeypatch.setattr(client_proof, "_PROOF_LIMIT_S", 0.3)
    group, before = make(3), gpu_of(mig_folder)
    with MigMps(profiles=["3g.20gb", "2g.10gb"]).prepare(group, mig_folder) as shared:
        slots = shared.slots
        assert slots[0].visible_devices == slots[2].visible_devices != slots[1].visible_devices
        assert slots[0].environ == slots[2].environ != slots[1].environ
        assert (slots[0].gi_id, slots[0].ci_id, slots[0].gpu_uuid) == (slots[2].gi_id, 0, group.device.uuid)
        assert [p.name for p in gpu_of(mig_folder).processes] == ["nvidia-cuda-mps-server"] * 2
        assert len({p.gpu_instance_id for p in gpu_of(mig_folder).processes}) == 2
        *jobs, bystander = sleepers
        for slot, pid in zip(slots, jobs, strict=True):
            join(mig_folder, slot, pid)
        shared.verify(dict(enumerate(jobs)))
        with pytest.raises(SharingError, match="not clients of MPS: 1-job"):
            shared.verify({1: bystander})
        # On the instance of another, under the server of another.
        with pytest.raises(SharingError, match=r"0-job.*which is not its MIG device"):
            shared.verify({0: jobs[1]})
        for pid in jobs:
            Clients(StateFile(mig_folder / "machine.json")).release(pid)
    assert gpu_of(mig_folder) == before
    assert Journal(mig_folder, group.device.uuid).read_steps() == ()


@pytest.mark.slow
def test_compute_instances_of_one_gpu_instance_have_servers_of_their_own(make, mig_folder):
    group, before = make(3), gpu_of(mig_folder)
    with MigMps(profiles=["1c.3g", "2c.3g"]).prepare(group, mig_folder) as shared:
        first, second, third = shared.slots
        assert (first.gi_id, first.ci_id) == (third.gi_id, third.ci_id)
        assert first.gi_id == second.gi_id
        assert first.visible_devices == third.visible_devices != second.visible_devices
        assert first.environ == third.environ != second.environ
        assert len({p.compute_instance_id for p in gpu_of(mig_folder).processes}) == 2
    assert gpu_of(mig_folder) == before


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
