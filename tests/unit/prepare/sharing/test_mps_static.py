"""`scenario=mps_static` over the simulated control program, in the texts of two releases."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from pipeline.base.domain.records import DeviceFacts
from pipeline.base.system.errors import ConfigError, SharingError
from pipeline.prepare.mps import control_program, sm_partitions
from pipeline.prepare.mps.control_program import ControlProgram
from pipeline.prepare.sharing import mps_static
from pipeline.prepare.sharing.mps import Mps
from pipeline.prepare.sharing.mps_static import MpsStatic
from pipeline.simulation.mps.command_answers import Device, Partitions
from pipeline.simulation.mps.control_program import connect
from tests.support.simulated import Machine
from tests.unit.prepare.sharing.test_mps import client, daemons, folder  # noqa: F401

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
    assert daemons(machine.folder) == []
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
    assert daemons(machine.folder) == []
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
