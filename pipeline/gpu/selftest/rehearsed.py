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
from pipeline.base.system.paths import expanded
from pipeline.gpu.selftest.steps import IDLE, Load
from pipeline.simulation.install import installed, write_programs
from pipeline.simulation.machine import occupied
from pipeline.simulation.machine.state_file import StateFile

_SOURCE = f"{occupied.__name__}.{occupied.Occupied.__name__}"


class Rehearsal:
    """A copy of a simulated machine, whose counters know what runs where."""

    def __init__(self, file: StateFile, programs: dict[str, Path]) -> None:
        self._file = file
        self._programs = tuple((name, str(path)) for name, path in programs.items())
        self._loads: dict[int, tuple[int, int, int, int]] = {}

    def simulated(self, device: Device) -> Device:
        """The device with the programs of the copy."""
        return dataclasses.replace(device, kind="simulated", programs=self._programs)

    @contextmanager
    def started(self, device: Device, _scratch: Path) -> Iterator[RehearsedLoader]:
        """What stands for the process that loads a device."""
        self.set(device, IDLE)
        yield RehearsedLoader(self, device)

    def set(self, device: Device, load: Load) -> None:
        """Let this be what runs on a device."""
        place = occupied.WHOLE if device.gi_id is None else device.gi_id
        self._loads[place] = (place, load.blocks, load.threads, multiprocessors_of(device) or 0)
        source = Spec(target=_SOURCE, options=(("loads", tuple(self._loads.values())),))
        with self._file.changing() as cell:
            cell.state = dataclasses.replace(cell.state, sources=(source,))

    def threads_each(self, device: Device) -> int:
        """How many threads a multiprocessor of the device holds."""
        return next(occupied.threads_each(gpu) for gpu in self._file.read().gpus if gpu.uuid == device.gpu_uuid)


class RehearsedLoader:
    """As `load.Loader`, but that nothing runs."""

    def __init__(self, rehearsal: Rehearsal, device: Device) -> None:
        self._rehearsal, self._device = rehearsal, device
        self.facts: dict[str, Any] = {
            "multiprocessors": multiprocessors_of(device),
            "threads_per_multiprocessor": rehearsal.threads_each(device),
        }

    def wait_for_device(self) -> None:
        """It is there."""

    def begin(self, load: Load) -> None:
        """From now on the counters show this."""
        self._rehearsal.set(self._device, load)

    def wait_running(self) -> None:
        """It is under way at once."""

    def stop(self) -> None:
        """From now on the counters show nothing."""
        self._rehearsal.set(self._device, IDLE)

    def wait_done(self) -> dict[str, Any]:
        """It has no results."""
        return {"num_wrong": 0}


def multiprocessors_of(device: Device) -> int | None:
    """What the driver says; `None` where the table of models does not know."""
    number = dict(device.details).get("multiprocessors")
    return None if number is None else int(number)


@contextmanager
def copied(gpu: str, machine: str | None, scratch: Path) -> Iterator[Rehearsal]:
    """A copy of the machine that is kept in a file, or of that which a model stands for, beneath pynvml here."""
    file = StateFile(scratch / "machine.json")
    if machine is None:
        file.create([gpu])
    else:
        shutil.copyfile(expanded("--machine", machine), file.path)
    programs = write_programs(scratch / "bin", file.path)
    with installed(file.path):
        yield Rehearsal(file, programs)
