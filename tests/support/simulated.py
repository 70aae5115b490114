"""The one way in which tests make a simulated machine, and tell it what to fail at."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Self

from pipeline.base.domain.driver_programs import find_device_programs
from pipeline.base.domain.records import Device
from pipeline.clean.journal import Journal
from pipeline.prepare.device import nvml
from pipeline.simulation.install import install_driver, write_programs
from pipeline.simulation.machine.driver import Driver
from pipeline.simulation.machine.releases import RECORDED
from pipeline.simulation.machine.state_file import Fault, Gpu, StateFile


def set_faults(file: StateFile, *faults: Fault, of_mps: tuple[str, ...] = ()) -> None:
    """From now on these calls of the driver fail, MPS in these ways (`State.mps_faults`), and nothing else."""
    with file.change() as cell:
        cell.state = dataclasses.replace(cell.state, faults=faults, mps_faults=of_mps)


@dataclasses.dataclass(kw_only=True)
class Machine:
    """A simulated machine. A test module that needs more of it derives its own.

    Attributes:
        device: GPU 0 as NVML shows it below `installed`; the product takes it for a real one.
        programs: path by the name of the real program, as `nvidia-smi`.
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
        """A machine with these GPUs (an A100 if none is named), whose files lie in `folder`.

        The GPUs have UUIDs of their own: commands that change a GPU are looked for on the whole machine, and other
        tests may run beside.

        Args:
            folder: made if it is not there.
            models: one a GPU.
            is_on: whether GPU 0 is in MIG mode.
            locks: `folder` if not given.
            branch: of the driver.
            of: attributes of the derived class.
        """
        folder.mkdir(exist_ok=True)
        file = StateFile(folder / "machine.json")
        file.keep(models or ["a100_40gb"], branch)
        if is_on:
            Driver(file).set_mig_mode(0, is_on=True)
        programs = {name: str(path) for name, path in write_programs(folder / "bin", file.path).items()}
        with install_driver(file.path):
            device = nvml.list_devices()[0]
        return cls(folder=folder, file=file, device=device, programs=programs, locks=locks or folder, **of)

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
        """GPU 0 as a rehearsal has it: simulated, and with its programs."""
        return dataclasses.replace(self.device, kind="simulated", programs=tuple(self.programs.items()))

    def fail(self, function: str, code: int, **changes: Any) -> None:
        """This call fails as well, once if `times` is not given."""
        state = self.file.read()
        set_faults(self.file, *state.faults, Fault(function=function, code=code, **changes), of_mps=state.mps_faults)

    def heal(self) -> None:
        set_faults(self.file)

    def record_commands(self, **others: str) -> Path:
        """A folder for PATH, whose programs write down how they are called.

        Args:
            others: beside nvidia-smi, what a program does then, by its name.
        """
        folder = self.folder / "recording"
        folder.mkdir()
        for name, then in {"nvidia-smi": f'exec {self.programs["nvidia-smi"]} "$@"', **others}.items():
            (folder / name).write_text(f'#!/bin/sh\necho "$0" "$@" >> {self.folder}/commands\n{then}\n')
            (folder / name).chmod(0o755)
        return folder

    @property
    def commands(self) -> list[str]:
        """How the programs of `record_commands` were called."""
        log = self.folder / "commands"
        return log.read_text().splitlines() if log.exists() else []
