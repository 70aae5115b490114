"""The twin of a GPU: a simulated GPU of the same model and driver branch, on which the same checks run.

Its nvidia-smi runs in this process, because an acceptance needs hundreds of commands.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pipeline.base.domain import mig_table
from pipeline.base.domain.driver_programs import Execute, Programs
from pipeline.base.domain.records import Device
from pipeline.base.system import helper_program
from pipeline.base.system.errors import ConfigError
from pipeline.clean.journal import Journal
from pipeline.gpu.acceptance.mig_board import CommandRecord, MigBoard
from pipeline.prepare.device import nvml
from pipeline.prepare.mig import profiles
from pipeline.simulation.install import install_driver, write_programs
from pipeline.simulation.machine.driver import Driver
from pipeline.simulation.machine.releases import RELEASES
from pipeline.simulation.machine.state_file import StateFile
from pipeline.simulation.smi import nvidia_smi


def find_branch(device: Device) -> str:
    """Find the simulated branch nearest to a GPU's driver: the newest that is not newer, else the oldest."""
    branch = device.facts.driver_branch or 0
    return max((name for name in RELEASES if int(name) <= branch), key=int, default=min(RELEASES, key=int))


@contextmanager
def make_twin(device: Device, folder: Path, mark: str, *, is_on: bool) -> Iterator[MigBoard]:
    """Make the twin of a GPU in an empty folder; `is_on` is the MIG mode in which it was found.

    While the twin is used, `install_driver` has to replace the driver of this process.

    Raises:
        ConfigError: the project has no table of this GPU.
    """
    try:
        model = mig_table.find(device.name)
    except ConfigError as error:
        raise ConfigError(
            f"{device.name} cannot be compared with the simulated driver: {error}; add its profiles to "
            "pipeline/base/domain/mig_profiles.json"
        ) from error
    file = StateFile(folder / "machine.json")
    file.keep([model.name], find_branch(device))
    if is_on:
        Driver(file).set_mig_mode(0, is_on=True)
    record = CommandRecord(folder / "commands.jsonl", _execute_on(file))
    paths = write_programs(folder / "bin", file.path)
    programs = Programs(
        purpose="the simulated twin",
        simulated={name: str(path) for name, path in paths.items()},
        admin=(),
        execute=record.execute,
    )
    with install_driver(file.path):
        twin_device = nvml.list_devices()[0]
        yield MigBoard(
            device=twin_device,
            gpu=profiles.read_gpu(twin_device),
            programs=programs,
            journal=Journal(folder, twin_device.uuid, programs),
            scratch=folder,
            mark=mark,
            record=record,
            machine=file.path,
            was_on=is_on,
        )


def _execute_on(file: StateFile) -> Execute:
    def execute(words: Sequence[str]) -> helper_program.Completed:
        position = next(number for number, word in enumerate(words) if Path(word).name == "nvidia-smi")
        with contextlib.redirect_stdout(io.StringIO()) as output:
            status = nvidia_smi.main(["--state-file", str(file.path), *words[position + 1 :]])
        return helper_program.Completed(argv=tuple(words), status=status, stdout=output.getvalue(), stderr="")

    return execute
