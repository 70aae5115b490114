"""Real nvidia-smi and NVML of two branches of the driver, on a machine without a driver.

The programs are those of `nvidia_packages`; where they cannot be had, these tests are skipped.
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from pipeline.base.system.errors import SharingError
from pipeline.prepare.device import time_slice
from pipeline.prepare.device.smi_commands import Smi
from pipeline.simulation.machine.releases import RELEASES
from pipeline.simulation.machine.state_file import StateFile
from pipeline.simulation.nvml.library import NvmlLibrary
from tests.support import nvidia_packages

pytestmark = pytest.mark.covers("pipeline/simulation", "tests/support/nvidia_packages.py")
UUID = "GPU-11111111-2222-3333-4444-555555555555"


@pytest.fixture(params=["535", "550"])
def branch(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def programs(branch: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = nvidia_packages.find_or_skip(branch)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    return folder


def test_the_simulated_nvml_has_functions_of_the_real_one_only(branch: str, programs: Path, tmp_path: Path) -> None:
    real = ctypes.CDLL(str(programs / "libnvidia-ml.so.1"))
    file = StateFile(tmp_path / "machine.json")
    file.create(["h100_80gb"], branch=branch)
    simulated = NvmlLibrary(file.path)
    assert {name for name in simulated.functions if not hasattr(real, name)} == RELEASES[branch].missing_calls
    assert {name for name in simulated.functions if not hasattr(simulated, name)} == RELEASES[branch].missing_calls


def test_nvidia_smi_has_the_options_that_this_project_uses(programs: Path) -> None:
    help_text = subprocess.run([programs / "nvidia-smi", "-h"], capture_output=True, text=True, check=True).stdout
    words = set(help_text.replace(",", " ").split())
    assert {"-i", "-c", "-mig", "mig", "compute-policy", "--gpu-reset"} <= words


def test_an_error_says_what_nvidia_smi_printed(programs: Path) -> None:
    smi = Smi(uuid=UUID, program=str(programs / "nvidia-smi"), admin=())
    says = r"NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver\..*\(status 9\); use"
    with pytest.raises(SharingError, match=says) as raised:
        time_slice.read(smi)
    assert "\n" not in str(raised.value)
    completed = smi.run(smi.compute_mode_command("DEFAULT"))
    assert (completed.status, completed.printed_line[:21]) == (9, "NVIDIA-SMI has failed")
