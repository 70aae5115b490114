"""Fixtures of tests on simulated machines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.simulation import nvidia_smi
from pipeline.simulation.machine.state_file import StateFile


@pytest.fixture
def state_file(tmp_path: Path) -> StateFile:
    file = StateFile(tmp_path / "machine.json")
    file.create(["h100_80gb"])
    return file


@pytest.fixture
def smi(state_file: StateFile, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run nvidia-smi in this process; return its exit status and output."""

    def call(*arguments: str) -> tuple[int, str]:
        status = nvidia_smi.main(["--state-file", str(state_file.path), *arguments])
        return status, capsys.readouterr().out

    return call
