"""The lists of `nvidia-smi mig` that a simulated GPU prints, against those of real GPUs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.simulation import nvidia_smi
from pipeline.simulation.machine.state_file import StateFile
from tests.support.mig_listings import LISTINGS

Smi = Callable[..., str]


@pytest.fixture
def state_file(tmp_path: Path) -> StateFile:
    return StateFile(tmp_path / "machine.json")


@pytest.fixture
def smi(state_file: StateFile, capsys: pytest.CaptureFixture[str]) -> Smi:
    def call(*arguments: str) -> str:
        assert nvidia_smi.main(["--state-file", str(state_file.path), *arguments]) == 0
        return capsys.readouterr().out

    return call


def test_the_compute_instance_profiles_are_listed_as_on_a_real_a100(state_file: StateFile, smi: Smi) -> None:
    """Rows of a public transcript, A100 80GB with a 3g.40gb and a 4g.40gb; the last has one 1c."""
    state_file.create(["a100_80gb"])
    smi("-mig", "1")
    smi("mig", "-cgi", "9,5")
    text = smi("mig", "-lcip")
    for rows in (
        (
            "|   0      1       MIG 1c.3g.40gb       0      3/3           14        2     0     0   |",
            "|                                                                      3     0         |",
        ),
        (
            "|   0      1       MIG 2c.3g.40gb       1      1/1           28        2     0     0   |",
            "|                                                                      3     0         |",
        ),
        (
            "|   0      1       MIG 3g.40gb          2*     1/1           42        2     0     0   |",
            "|                                                                      3     0         |",
        ),
        (
            "|   0      2       MIG 2c.4g.40gb       1      2/2           28        2     0     0   |",
            "|                                                                      4     0         |",
        ),
        (
            "|   0      2       MIG 4g.40gb          3*     1/1           56        2     0     0   |",
            "|                                                                      4     0         |",
        ),
    ):
        assert "\n".join(rows) in text
    assert len({len(line) for line in text.splitlines()}) == 1
    smi("mig", "-gi", "2", "-cci", "0")
    text = smi("mig", "-gi", "2", "-lcip")
    assert "MIG 3g.40gb" not in text
    assert [line.split()[5:7] for line in text.splitlines() if "MIG" in line] == [
        ["0", "3/4"],
        ["1", "1/2"],
        ["3*", "0/1"],
    ]


def play(session: str, smi: Smi) -> tuple[list[str], list[str]]:
    """Run the commands of a session on a simulated GPU in MIG mode; the lines printed, and those of the session."""
    smi("-mig", "1")
    printed, expected = [], []
    for block in re.split(r"^[$#] ", (LISTINGS / session).read_text(), flags=re.MULTILINE)[1:]:
        command, *lines = block.splitlines()
        words = command.removeprefix("sudo ").split()[1:]
        if words[:1] == ["mig"] and "-dgi" not in words:
            printed += [re.sub(r"[ =-]+", " ", line) for line in smi(*words).splitlines()]
            expected += [re.sub(r"[ =-]+", " ", line) for line in lines]
    return printed, expected


@pytest.mark.parametrize(
    ("session", "model", "num_lines"),
    [("session_a30.txt", "a30_24gb", 43), ("session_rtxpro6000.txt", "rtxpro6000_96gb", 28)],
)
def test_a_session_on_a_simulated_gpu_prints_what_the_real_one_printed(
    state_file: StateFile, smi: Smi, session: str, model: str, num_lines: int
) -> None:
    """Placements, starts and ids without a chosen start, and compute profiles; the widths of tables differ."""
    state_file.create([model])
    printed, expected = play(session, smi)
    assert printed == expected
    assert len(expected) == num_lines
