"""Self-test on a simulated GPU: no kernel runs, and the counters come from a model of the load.

The self-test changes only a copy of the machine; the machine itself remains unchanged even if the self-test is killed.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.base.domain.records import Device
from pipeline.base.system.factory import Spec
from pipeline.base.system.paths import expand_path
from pipeline.gpu.selftest.load_plan import IDLE, Load
from pipeline.simulation.install import install_driver, write_programs
from pipeline.simulation.machine import occupied
from pipeline.simulation.machine.state_file import StateFile

_SOURCE = f"{occupied.__name__}.{occupied.Occupied.__name__}"


class Rehearsal:
    """A copy of a simulated machine whose counters show the load of each device."""

    def __init__(self, file: StateFile, programs: dict[str, Path]) -> None:
        self._file = file
        self._programs = tuple((name, str(path)) for name, path in programs.items())
        self._loads: dict[int, tuple[int, int, int, int]] = {}

    def attach(self, device: Device) -> Device:
        """Return the device with the simulated programs of the copy."""
        return dataclasses.replace(device, kind="simulated", programs=self._programs)

    @contextmanager
    def start_loader(self, device: Device, _scratch: Path) -> Iterator[SimulatedLoader]:
        """Start the replacement of the process that loads a device."""
        self.set_load(device, IDLE)
        yield SimulatedLoader(self, device, self._file)

    def set_load(self, device: Device, load: Load) -> None:
        """Set the load that the counters of a device show."""
        place = occupied.WHOLE if device.gi_id is None else device.gi_id
        self._loads[place] = (place, load.blocks, load.threads, count_multiprocessors(device) or 0)
        source = Spec(target=_SOURCE, options=(("loads", tuple(self._loads.values())),))
        with self._file.change() as cell:
            cell.state = dataclasses.replace(cell.state, sources=(source,))


class SimulatedLoader:
    """Replacement for `load_process.Loader` that starts no process."""

    def __init__(self, rehearsal: Rehearsal, device: Device, file: StateFile) -> None:
        self._rehearsal, self._device = rehearsal, device
        gpu = next(gpu for gpu in file.read().gpus if gpu.uuid == device.gpu_uuid)
        self.facts: dict[str, Any] = {
            "multiprocessors": count_multiprocessors(device),
            "threads_per_multiprocessor": occupied.threads_each(gpu),
        }

    def wait_for_device(self) -> None:
        """Return at once: a simulated device is always ready."""

    def begin(self, load: Load) -> None:
        """Make the counters show this load from now on."""
        self._rehearsal.set_load(self._device, load)

    def wait_running(self) -> None:
        """Return at once: the counters already show the load."""

    def stop(self) -> None:
        """Make the counters show an idle device from now on."""
        self._rehearsal.set_load(self._device, IDLE)

    def wait_done(self) -> dict[str, Any]:
        """Report that no result is wrong."""
        return {"num_wrong": 0}


def count_multiprocessors(device: Device) -> int | None:
    """Return the device's number of multiprocessors as the driver reports it; `None` if unknown."""
    return device.facts.multiprocessors


@contextmanager
def copy_machine(gpu: str, machine: str | None, scratch: Path) -> Iterator[Rehearsal]:
    """Copy a simulated machine, or create one of a model, and install its driver in this process."""
    file = StateFile(scratch / "machine.json")
    if machine is None:
        file.create([gpu])
    else:
        shutil.copyfile(expand_path("--machine", machine), file.path)
    programs = write_programs(scratch / "bin", file.path)
    with install_driver(file.path):
        yield Rehearsal(file, programs)
