"""Simulated machines for tests, and their faults."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from pipeline.base.domain.driver_programs import find_device_programs
from pipeline.base.domain.records import Device, Group
from pipeline.clean.journal import Journal
from pipeline.prepare.device import nvml
from pipeline.prepare.device.smi_commands import Smi
from pipeline.simulation.install import install_driver, write_programs
from pipeline.simulation.machine.driver import Driver
from pipeline.simulation.machine.releases import RECORDED
from pipeline.simulation.machine.state_file import Fault, Gpu, StateFile
from tests.support import fast_programs, rows
from tests.support.programs import write_script


def set_faults(file: StateFile, *faults: Fault, of_mps: tuple[str, ...] = ()) -> None:
    """Replace the faults: these driver calls fail, and MPS has these faults (`State.mps_faults`)."""
    with file.change() as cell:
        cell.state = dataclasses.replace(cell.state, faults=faults, mps_faults=of_mps)


@dataclasses.dataclass(kw_only=True)
class Machine:
    """A simulated machine; a test module may derive a class with further attributes.

    Attributes:
        device: GPU 0 as NVML reports it; the project cannot distinguish it from a real GPU.
        programs: paths of the programs, by name of the real program, such as `nvidia-smi`; they run as forks.
        locks: folder of locks and journals.
    """

    folder: Path
    file: StateFile
    device: Device
    programs: dict[str, str]
    locks: Path

    @classmethod
    def make(
        cls,
        folder: Path,
        *models: str,
        is_on: bool = False,
        locks: Path | None = None,
        branch: str = RECORDED,
        **of: Any,
    ) -> Self:
        """Create a machine with these GPUs (by default, one A100), whose files are in `folder`.

        The GPUs have unique UUIDs, because the project searches the whole computer for commands that change a GPU, and
        other tests may run concurrently.

        Args:
            folder: folder of the machine's files; created if it does not exist.
            models: model of each GPU.
            is_on: whether GPU 0 is in MIG mode.
            locks: folder of locks and journals; by default `folder`.
            branch: branch of the driver.
            of: further attributes of the derived class.
        """
        folder.mkdir(exist_ok=True)
        file = StateFile(folder / "machine.json")
        file.keep(models or ["a100_40gb"], branch)
        if is_on:
            Driver(file).set_mig_mode(0, is_on=True)
        programs = {name: str(path) for name, path in write_programs(folder / "bin", file.path).items()}
        fast_programs.use_in(folder / "bin", file.path)
        with install_driver(file.path):
            device = nvml.list_devices()[0]
        return cls(folder=folder, file=file, device=device, programs=programs, locks=locks or folder, **of)

    @classmethod
    @contextmanager
    def installed(cls, folder: Path, *models: str, **options: Any) -> Iterator[Self]:
        """Create a machine whose driver is beneath pynvml in this process, until the context is left."""
        machine = cls.make(folder, *models, **options)
        with install_driver(machine.file.path):
            yield machine

    def group(self, *jobs: str, facts: Mapping[str, Any] | None = None, **changes: Any) -> Group:
        """Return a group on GPU 0 in a rehearsal, with the locks of this machine.

        Args:
            jobs: name of each job.
            facts: facts of the device that differ.
            changes: attributes of the group that differ; `gpu` are settings that differ.
        """
        device = dataclasses.replace(self.rehearsed, facts=dataclasses.replace(self.rehearsed.facts, **(facts or {})))
        settings = {"lock_dir": self.locks} | changes.pop("gpu", {})
        return rows.group(*jobs, **{"device": device, "gpu": rows.gpu_settings(**settings)} | changes)

    def change(self, **attributes: Any) -> None:
        """Change attributes of GPU 0, as the driver or its user would."""
        with self.file.change() as cell:
            cell.state = cell.state.replace_gpu(0, dataclasses.replace(cell.state.gpus[0], **attributes))

    @property
    def smi(self) -> Smi:
        return Smi.locate(find_device_programs(self.rehearsed), self.device.uuid)

    @property
    def gpu(self) -> Gpu:
        return self.file.read().gpus[0]

    @property
    def driver(self) -> Driver:
        return Driver(self.file)

    @property
    def journal(self) -> Journal:
        return Journal(self.locks, self.device.uuid, find_device_programs(self.rehearsed))

    @property
    def rehearsed(self) -> Device:
        """GPU 0 as in a rehearsal: marked as simulated, with the machine's programs."""
        return dataclasses.replace(self.device, kind="simulated", programs=tuple(self.programs.items()))

    def fail(self, function: str, code: int, **changes: Any) -> None:
        """Add a fault: this call fails, by default once."""
        state = self.file.read()
        set_faults(self.file, *state.faults, Fault(function=function, code=code, **changes), of_mps=state.mps_faults)

    def heal(self) -> None:
        set_faults(self.file)

    def record_commands(self, **programs: str) -> Path:
        """Create a folder for PATH, whose programs record their command lines.

        Args:
            others: further programs in addition to nvidia-smi: name, and the command that runs after the recording.
        """
        folder = self.folder / "recording"
        for name, then in {"nvidia-smi": f'exec {self.programs["nvidia-smi"]} "$@"', **programs}.items():
            write_script(folder / name, f'echo "$0" "$@" >> {self.folder}/commands\n{then}')
        return folder

    @property
    def commands(self) -> list[str]:
        """The recorded command lines of the programs of `record_commands`."""
        log = self.folder / "commands"
        return log.read_text().splitlines() if log.exists() else []
