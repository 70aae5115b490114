"""The simulated NVML with readings that only hardware has: an H100 80GB HBM3 (driver 580.159.04) with two MPS clients.

Tests can replace single functions, or make functions fail.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from pipeline.simulation.install import replace_nvml
from pipeline.simulation.machine.state_file import Process, StateFile
from pipeline.simulation.nvml import library as simulated
from pipeline.simulation.nvml.calls import fill, pointee

MIB = 2**20
UUID = "GPU-11111111-2222-3333-4444-555555555555"
OTHER_UUID = "GPU-11199999-2222-3333-4444-666666666666"
_NOT_AVAILABLE = (1 << 64) - 1  # Source: nvml.h, NVML_VALUE_NOT_AVAILABLE
PROCESSES = (
    Process(pid=538, name="/usr/bin/python3 train.py", memory_mib=744, kind="M+C"),
    Process(pid=539, name="python3", memory_mib=744, kind="M+C"),
    Process(pid=577, name="nvidia-cuda-mps-server", memory_mib=66),
)


class NvmlLibrary(simulated.NvmlLibrary):
    """The C functions of a machine whose file is in a folder. GPU 0 has the UUID `UUID`; further GPUs have others.

    A test can replace entries of `functions`, whose keys are names of C functions. A replacement gets the arguments of
    the C function and returns its code.
    """

    def __init__(self, folder: Path, *missing: str) -> None:
        self.file = StateFile(folder / "machine.json")
        state = self.file.create(["h100_80gb"] * (1 + len(missing)))
        super().__init__(self.file.path)
        with self.file.change() as cell:
            pairs = zip(state.gpus, (UUID, *missing), strict=True)
            gpus = (dataclasses.replace(gpu, uuid=uuid, processes=PROCESSES) for gpu, uuid in pairs)
            cell.state = dataclasses.replace(state, gpus=tuple(gpus))
        self.functions |= {
            "nvmlDeviceGetUtilizationRates": _utilization,
            "nvmlDeviceGetPowerUsage": _number(581023),
            "nvmlDeviceGetTotalEnergyConsumption": _number(5637754),
            "nvmlDeviceGetClockInfo": _clock,
            "nvmlDeviceGetTemperature": _number(42),
            "nvmlDeviceGetEnforcedPowerLimit": _number(650_000),
            "nvmlDeviceGetApplicationsClock": _setting,
            "nvmlDeviceGetCurrentClocksThrottleReasons": _number(4),
            "nvmlDeviceGetPerformanceState": _number(0),
        }

    def fail(self, **codes: int) -> None:
        """Make these functions do nothing and return these codes."""
        self.functions |= {name: lambda *_, code=code: code for name, code in codes.items()}

    def change(self, **attributes: Any) -> None:
        """Set attributes of the first GPU (`machine.state.Gpu`)."""
        with self.file.change() as cell:
            cell.state = cell.state.replace_gpu(0, dataclasses.replace(cell.state.gpus[0], **attributes))

    def hide_memory(self, of: int) -> None:
        """Make the memory of this process unknown, which some drivers do."""
        name = "nvmlDeviceGetComputeRunningProcesses_v3"
        listed = self.functions[name]

        def hidden(handle: Any, count: Any, array: Any) -> None:
            listed(handle, count, array)
            for entry in array or ():
                if entry.pid == of:
                    entry.usedGpuMemory = _NOT_AVAILABLE

        self.functions[name] = hidden

    def remove_gpus(self) -> None:
        """Remove all GPUs."""
        with self.file.change() as cell:
            cell.state = dataclasses.replace(cell.state, gpus=())


Utilization = tuple[int, int, int, int]
"""PID, time in microseconds, and utilisation of multiprocessors and memory in per cent."""


def report_utilization(library: NvmlLibrary, sample: Callable[[int], list[Utilization]]) -> None:
    """Make both calls return what `sample` returns for the time in microseconds since which they are asked."""

    def write(entries: list[Utilization], array: Any, room: int) -> int:
        if room < len(entries):
            return pynvml.NVML_ERROR_INSUFFICIENT_SIZE
        for position, (pid, t_us, sm, memory) in enumerate(entries):
            entry = array[position]
            entry.pid, entry.timeStamp, entry.smUtil, entry.memUtil = pid, t_us, sm, memory
        return pynvml.NVML_SUCCESS

    def read_new(_handle: Any, info: Any) -> int:
        target = pointee(info)
        entries, room = sample(target.lastSeenTimeStamp), target.processSamplesCount
        target.processSamplesCount = len(entries)
        return write(entries, target.procUtilArray, room)

    def read_old(_handle: Any, array: Any, count: Any, since_us: Any) -> int:
        entries, room = sample(since_us.value), pointee(count).value
        pointee(count).value = len(entries)
        return write(entries, array, room)

    library.functions |= {
        "nvmlDeviceGetProcessesUtilizationInfo": read_new,
        "nvmlDeviceGetProcessUtilization": read_old,
    }


def _number(value: int) -> Any:
    """Return a C function that writes a number to its last argument."""
    return lambda *arguments: fill(arguments[-1], value)


def _clock(_handle: Any, kind: Any, clock: Any) -> None:
    fill(clock, {pynvml.NVML_CLOCK_SM: 345, pynvml.NVML_CLOCK_MEM: 2619}[kind.value])


def _setting(_handle: Any, kind: Any, clock: Any) -> None:
    fill(clock, {pynvml.NVML_CLOCK_GRAPHICS: 1980, pynvml.NVML_CLOCK_MEM: 2619}[kind.value])


def _utilization(_handle: Any, rates: Any) -> None:
    pointee(rates).gpu, pointee(rates).memory = 100, 15


Library = TypeVar("Library", bound=NvmlLibrary)


@contextmanager
def installed(library: Library) -> Iterator[Library]:
    """Make pynvml call the library; on exit, restore pynvml and check that no session is open."""
    with replace_nvml(library):
        yield library
    assert library.num_open == 0, "an NVML session was left open"
