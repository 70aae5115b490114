"""`scenario=mig` where it cannot be had, as a user sees it: one line each that says what to do, and nothing touched.

A simulated driver beneath pynvml in the process of run.py stands for the GPUs that this machine has not: with
`gpu=auto`, so that all above it takes them for real ones.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from pipeline.base.system.paths import PROJECT_DIR
from pipeline.simulation.machine import codes
from tests.support import forks, simulated
from tests.support.run_cases import TOY

pytest_plugins = ["tests.support.tracking_fixtures"]
pytestmark = pytest.mark.covers("pipeline/prepare")
RUN = str(PROJECT_DIR / "run.py")
WITH_SIMULATED_DRIVER = f"""
import runpy, sys
from pathlib import Path
from pipeline.simulation.install import install_driver
state_file, *arguments = sys.argv[1:]
sys.argv = [{RUN!r}, *arguments]
with install_driver(Path(state_file)):
    runpy.run_path({RUN!r}, run_name="__main__")
"""
WITHOUT_DRIVER = f"""
import runpy, sys
from pipeline.prepare.device import nvml
nvml._start = lambda: False
sys.argv[0] = {RUN!r}
runpy.run_path({RUN!r}, run_name="__main__")
"""


def run(folder: Path, *command: str, **environ: str) -> tuple[int, str, str]:
    """Run Python to its end in a folder: exit status, output, errors."""
    environment = os.environ | {"PYTHONPATH": str(PROJECT_DIR)} | environ
    done = forks.run(*command, f"gpu.lock_dir={folder}", cwd=folder, env=environment)
    return done.returncode, done.stdout, done.stderr


class Machine(simulated.Machine):
    """A machine with one simulated GPU, of which run.py does not know that it is simulated."""

    def run(self, *arguments: str) -> tuple[int, str, str]:
        """run.py on this machine, whose own nvidia-smi is the first on PATH."""
        path = f"{self.folder / 'recording'}:{os.environ['PATH']}"
        return run(
            self.folder,
            "-c",
            WITH_SIMULATED_DRIVER,
            str(self.file.path),
            *arguments,
            "baseline=never",
            "gpu=auto",
            PATH=path,
        )


@pytest.fixture
def machine(tmp_path: Path, template_store: Path) -> Machine:
    """An A100 whose programs write down how they are called."""
    shutil.copytree(template_store, tmp_path / "mlruns")
    machine = Machine.make(tmp_path)
    machine.record_commands(**dict.fromkeys(("sudo", "nvidia-cuda-mps-control"), "exit 1"))
    return machine


@pytest.mark.slow
def test_mig_without_a_gpu_is_one_line_that_says_what_to_do(tmp_path: Path) -> None:
    # A dry run, so that a GPU which is there after all stays as it is.
    status, out, err = run(tmp_path, "-c", WITHOUT_DRIVER, "gpu=auto", "scenario=mig", "dry_run=true")
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("error: scenario=mig needs an NVIDIA GPU with MIG, not ")
    assert "rehearse it with gpu=simulated_h100_80gb" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_mig_on_a_gpu_without_it_is_one_line_that_says_what_to_do(machine: Machine) -> None:
    machine.fail("nvmlDeviceGetMigMode", codes.NOT_SUPPORTED, times=None)
    before = machine.file.read().gpus
    status, out, err = machine.run("scenario=mig")
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert "does not support MIG; choose another GPU with gpu.device, or scenario=mps" in line
    assert machine.commands == []
    assert machine.file.read().gpus == before


@pytest.mark.slow
def test_mig_without_permission_is_one_line_that_names_the_command_to_allow(machine: Machine) -> None:
    machine.fail("nvmlDeviceSetMigMode", codes.NO_PERMISSION, times=None)
    before = machine.file.read().gpus
    status, out, err = machine.run(*TOY, "scenario=mig", "listeners=[]")
    assert status == 1, err  # only trying tells: the group begins, and its row says why it failed
    (line,) = [line for line in err.splitlines() if "failed:" in line]
    uuid = before[0].uuid
    assert f"failed: no permission for `{machine.folder / 'recording/nvidia-smi'} -i {uuid} -mig 1`" in line
    assert "ask an administrator to allow this command" in line and "'gpu.admin=[sudo,-n]'" in line
    assert line.partition("no permission")[2].rpartition(" (")[0] in out
    assert machine.commands == [f"{machine.folder}/recording/nvidia-smi -i {uuid} -mig 1"]
    assert machine.file.read().gpus == before
    assert list(machine.folder.glob("*.journal")) == []


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [["scenario=mig"], ["scenario=mps", "gpu.exclusive_process=true"]], ids=" ".join)
def test_what_would_change_settings_is_refused_where_that_is_forbidden(machine: Machine, overrides: list[str]) -> None:
    before = machine.file.read().gpus
    status, out, err = machine.run(*overrides, "gpu.admin=null")
    assert (status, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("error: ") and "gpu.admin=null forbids" in line
    assert machine.commands == []
    assert machine.file.read().gpus == before
    assert list(machine.folder.glob("*.journal")) == []
