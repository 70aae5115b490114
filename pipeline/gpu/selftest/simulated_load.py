"""A self-test on a simulated GPU: nothing runs, and a model of the load answers for the counters.

It works on a copy of the machine, so that the machine itself is as it was, whenever this ends.
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
    """A copy of a simulated machine, whose counters know what runs where."""

    def __init__(self, file: StateFile, programs: dict[str, Path]) -> None:
        self._file = file
        self._programs = tuple((name, str(path)) for name, path in programs.items())
        self._loads: dict[int, tuple[int, int, int, int]] = {}

    def attach(self, device: Device) -> Device:
        """Give the device the programs of the copy."""
        return dataclasses.replace(device, kind="simulated", programs=self._programs)

    @contextmanager
    def start_loader(self, device: Device, _scratch: Path) -> Iterator[SimulatedLoader]:
        """Start what stands for the process that loads a device."""
        self.set_load(device, IDLE)
        yield SimulatedLoader(self, device)

    def set_load(self, device: Device, load: Load) -> None:
        """Set the load that runs on a device."""
        place = occupied.WHOLE if device.gi_id is None else device.gi_id
        self._loads[place] = (place, load.blocks, load.threads, count_multiprocessors(device) or 0)
        source = Spec(target=_SOURCE, options=(("loads", tuple(self._loads.values())),))
        with self._file.change() as cell:
            cell.state = dataclasses.replace(cell.state, sources=(source,))

    def count_threads(self, device: Device) -> int:
        """Count the threads that a multiprocessor of the device holds."""
        return next(occupied.threads_each(gpu) for gpu in self._file.read().gpus if gpu.uuid == device.gpu_uuid)


class SimulatedLoader:
    """Stand-in for `load_process.Loader` that runs nothing."""

    def __init__(self, rehearsal: Rehearsal, device: Device) -> None:
        self._rehearsal, self._device = rehearsal, device
        self.facts: dict[str, Any] = {
            "multiprocessors": count_multiprocessors(device),
            "threads_per_multiprocessor": rehearsal.count_threads(device),
        }

    def wait_for_device(self) -> None:
        """Return at once: the device is there."""

    def begin(self, load: Load) -> None:
        """Let the counters show this load from now on."""
        self._rehearsal.set_load(self._device, load)

    def wait_running(self) -> None:
        """Return at once: the load runs."""

    def stop(self) -> None:
        """Let the counters show an idle device from now on."""
        self._rehearsal.set_load(self._device, IDLE)

    def wait_done(self) -> dict[str, Any]:
        """Return no wrong results."""
        return {"num_wrong": 0}


def count_multiprocessors(device: Device) -> int | None:
    """Return what the driver tells; `None` if the table of models does not know it."""
    number = dict(device.details).get("multiprocessors")
    return None if number is None else int(number)


@contextmanager
def copy_machine(gpu: str, machine: str | None, scratch: Path) -> Iterator[Rehearsal]:
    """Copy the machine of a file, or make one of a model, and put it beneath pynvml here."""
    file = StateFile(scratch / "machine.json")
    if machine is None:
        file.create([gpu])
    else:
        shutil.copyfile(expand_path("--machine", machine), file.path)
    programs = write_programs(scratch / "bin", file.path)
    with install_driver(file.path):
        yield Rehearsal(file, programs)
