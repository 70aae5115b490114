"""A simulated MPS daemon answers as the real one of each recorded branch, command by command (`data/mps_control`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from pipeline.simulation.machine.releases import RELEASES
from pipeline.simulation.mps.command_answers import Answers, Device, Limits, Partitions, Server
from tests.conftest import DATA

H100 = Device("GPU-11111111-2222-3333-4444-555555555555", 132, 8, 15, "NVIDIA H100 80GB HBM3", "0000:00.06.00")
PID = 595  # of the recorded server


@dataclass
class Deeds:
    """A daemon whose server is there at once, and gone at once."""

    answers: Answers | None = None
    server: Server | None = None

    def start_server(self, uid: int) -> None:
        assert self.answers is not None
        limits = Limits(self.answers.defaults.percentage)
        self.server = Server(pid=PID, uid=uid, ready_s=0, limits=limits, status="ACTIVE")

    def shut_down_server(self) -> None:
        self.server = None

    def disconnect_clients(self, pid: int) -> bool:
        return False


def make_answers(
    branch: str, log: list[str], *, devices: Sequence[Device] = (H100,), is_static: bool = False
) -> Answers:
    deeds = Deeds()
    partitions = Partitions(devices, RELEASES[branch].cuda_version) if is_static else None
    deeds.answers = Answers(RELEASES[branch].mps, devices, partitions, deeds, log.append)
    return deeds.answers


@pytest.mark.parametrize(
    ("version", "is_static"),
    [
        ("535.261.03", False),
        ("550.163.01", False),
        ("580.159.04", False),
        ("595.99.02", False),
        ("595.99.02", True),
        ("615.71.09", False),
        ("615.71.09", True),
    ],
)
def test_each_command_is_answered_as_recorded(version: str, is_static: bool) -> None:
    answers = make_answers(version[:3], [], devices=[] if is_static else [H100], is_static=is_static)
    name = f"session_{version}{'_static' * is_static}.txt"
    entries = re.split(r"^> ?", (DATA / "mps_control" / name).read_text(), flags=re.MULTILINE)[1:]
    num_compared = 0
    for entry in entries:
        command, *lines, status = entry.splitlines()
        if command.startswith("quit"):
            break
        assert (answers.answer(command.split()), "exit 0") == (lines, status), command
        num_compared += 1
    assert num_compared > (5 if is_static else 30)


@pytest.mark.parametrize("branch", RELEASES)
def test_only_what_a_branch_knows_is_answered(branch: str) -> None:
    answers = make_answers(branch, [])
    unknown = {name: f'Unknown command "{name}"' for name in ("get_server_status", "device_query", "lspart")}
    known = {name for name, answer in unknown.items() if answers.answer([name, "1"]) != [answer]}
    since = {"get_server_status": 550, "device_query": 580, "lspart": 590}
    assert known == {name for name, first in since.items() if int(branch) >= first}


def test_a_percentage_out_of_range_is_said_in_the_log_only() -> None:
    log: list[str] = []
    answers = make_answers("580", log)
    assert answers.answer(["set_default_active_thread_percentage", "400"]) == ["100.0"]
    assert log == ["Invalid percentage, expected between (0.0, 100.0]"]
