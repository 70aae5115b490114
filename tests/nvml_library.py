"""A test's stand-in for libnvidia-ml.so, placed below pynvml: an object whose methods are the C functions.

Its values are those of one H100 80GB HBM3 (driver 580.159.04) with two MPS clients. It is not the simulated driver of
the product: it knows no MIG rules and is there to make single functions fail.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pynvml

from pipeline.base.library_internals import nvml_answered_by

MIB = 2**20
UUID = "GPU-11111111-2222-3333-4444-555555555555"
OTHER_UUID = "GPU-11199999-2222-3333-4444-666666666666"
NOT_AVAILABLE = (1 << 64) - 1
MPS_LISTS = {
    "Compute": [(577, 66 * MIB), (539, 744 * MIB), (538, 744 * MIB)],
    "MPSCompute": [(539, 744 * MIB), (538, 744 * MIB)],
    "Graphics": [],
}


@dataclass
class Gpu:
    """One GPU, or one MIG device of it."""

    uuid: str = UUID
    processes: dict[str, list[tuple[int, int]]] = field(
        default_factory=lambda: {kind: list(p) for kind, p in MPS_LISTS.items()}
    )
    mig_mode: tuple[int, int] = (0, 0)
    mig_devices: dict[int, Gpu] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.structure = pynvml.struct_c_nvmlDevice_t()


class NvmlLibrary:
    """The C functions that the project calls.

    Attributes:
        errors: C function to the code that it returns instead of doing anything.
        open_sessions: initialisations that were not shut down yet.
        names: PID to what nvmlSystemGetProcessName answers.
    """

    def __init__(self, *gpus: Gpu) -> None:
        self.gpus = list(gpus or (Gpu(),))
        self.errors: dict[str, int] = {}
        self.open_sessions = 0
        self.names = {577: "nvidia-cuda-mps-server", 538: "/usr/bin/python3 train.py", 539: "python3"}
        self.pstate = 0

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("nvml") and name in self.errors:
            code = self.errors[name]
            return lambda *_: code
        return object.__getattribute__(self, name)

    def _gpu(self, handle: Any) -> Gpu:
        address = ctypes.addressof(handle.contents)
        every = [*self.gpus, *(mig for gpu in self.gpus for mig in gpu.mig_devices.values())]
        return next(gpu for gpu in every if ctypes.addressof(gpu.structure) == address)

    def nvmlInitWithFlags(self, _flags: int) -> int:  # noqa: N802
        self.open_sessions += 1
        return 0

    def nvmlShutdown(self) -> int:  # noqa: N802
        if self.open_sessions == 0:
            return pynvml.NVML_ERROR_UNINITIALIZED
        self.open_sessions -= 1
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        return _fill(count, len(self.gpus))

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:  # noqa: N802
        return _point(handle, self.gpus[index.value])

    def nvmlDeviceGetHandleByUUID(self, uuid: Any, handle: Any) -> int:  # noqa: N802
        for gpu in self.gpus:
            if gpu.uuid.encode() == uuid.value:
                return _point(handle, gpu)
        return pynvml.NVML_ERROR_NOT_FOUND

    def nvmlDeviceGetUUID(self, handle: Any, text: Any, _size: Any) -> int:  # noqa: N802
        text.value = self._gpu(handle).uuid.encode()
        return 0

    def nvmlDeviceGetName(self, _handle: Any, text: Any, _size: Any) -> int:  # noqa: N802
        text.value = b"NVIDIA H100 80GB HBM3"
        return 0

    def nvmlSystemGetDriverVersion(self, text: Any, _size: Any) -> int:  # noqa: N802
        text.value = b"580.159.04"
        return 0

    def nvmlSystemGetCudaDriverVersion(self, version: Any) -> int:  # noqa: N802
        return _fill(version, 13000)

    def nvmlSystemGetProcessName(self, pid: Any, text: Any, _size: Any) -> int:  # noqa: N802
        if pid.value not in self.names:
            return pynvml.NVML_ERROR_NOT_FOUND
        text.value = self.names[pid.value].encode()
        return 0

    def nvmlDeviceGetPciInfo_v3(self, _handle: Any, info: Any) -> int:  # noqa: N802
        info._obj.busId = b"00000000:00:06.0"
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, _handle: Any, major: Any, minor: Any) -> int:  # noqa: N802
        return _fill(major, 9) or _fill(minor, 0)

    def nvmlDeviceGetNumGpuCores(self, _handle: Any, cores: Any) -> int:  # noqa: N802
        return _fill(cores, 132 * 128)

    def nvmlDeviceGetPersistenceMode(self, _handle: Any, mode: Any) -> int:  # noqa: N802
        return _fill(mode, 1)

    def nvmlDeviceGetComputeMode(self, _handle: Any, mode: Any) -> int:  # noqa: N802
        return _fill(mode, 0)

    def nvmlDeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> int:  # noqa: N802
        mode = self._gpu(handle).mig_mode
        return _fill(current, mode[0]) or _fill(pending, mode[1])

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any, count: Any) -> int:  # noqa: N802
        return _fill(count, 7 if self._gpu(handle).mig_mode[0] else 0)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: Any, device: Any) -> int:  # noqa: N802
        mig = self._gpu(handle).mig_devices.get(index.value)
        return pynvml.NVML_ERROR_NOT_FOUND if mig is None else _point(device, mig)

    def nvmlDeviceGetMemoryInfo(self, _handle: Any, memory: Any) -> int:  # noqa: N802
        # Version 1 counts the 480 MiB that the driver reserves as used.
        memory._obj.total, memory._obj.used = 81559 * MIB, (1564 + 480) * MIB
        return 0

    def nvmlDeviceGetMemoryInfo_v2(self, _handle: Any, memory: Any) -> int:  # noqa: N802
        if memory._obj.version != pynvml.nvmlMemory_v2:
            return pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
        memory._obj.total, memory._obj.reserved, memory._obj.used = 81559 * MIB, 480 * MIB, 1564 * MIB
        return 0

    def nvmlDeviceGetUtilizationRates(self, _handle: Any, rates: Any) -> int:  # noqa: N802
        rates._obj.gpu, rates._obj.memory = 100, 15
        return 0

    def nvmlDeviceGetPowerUsage(self, _handle: Any, power: Any) -> int:  # noqa: N802
        return _fill(power, 581023)

    def nvmlDeviceGetTotalEnergyConsumption(self, _handle: Any, energy: Any) -> int:  # noqa: N802
        return _fill(energy, 5637754)

    def nvmlDeviceGetClockInfo(self, _handle: Any, kind: Any, clock: Any) -> int:  # noqa: N802
        return _fill(clock, {pynvml.NVML_CLOCK_SM: 345, pynvml.NVML_CLOCK_MEM: 2619}[kind.value])

    def nvmlDeviceGetTemperature(self, _handle: Any, _sensor: Any, temperature: Any) -> int:  # noqa: N802
        return _fill(temperature, 42)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, _handle: Any, reasons: Any) -> int:  # noqa: N802
        return _fill(reasons, 0x4)

    def nvmlDeviceGetPerformanceState(self, _handle: Any, state: Any) -> int:  # noqa: N802
        return _fill(state, self.pstate)

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, array: Any) -> int:  # noqa: N802
        return _list(self._gpu(handle).processes["Compute"], count, array)

    def nvmlDeviceGetMPSComputeRunningProcesses_v3(self, handle: Any, count: Any, array: Any) -> int:  # noqa: N802
        return _list(self._gpu(handle).processes["MPSCompute"], count, array)

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: Any, count: Any, array: Any) -> int:  # noqa: N802
        return _list(self._gpu(handle).processes["Graphics"], count, array)


def _fill(argument: Any, value: int) -> int:
    argument._obj.value = value
    return 0


def _point(argument: Any, gpu: Gpu) -> int:
    argument._obj.contents = gpu.structure
    return 0


def _list(processes: list[tuple[int, int]], count: Any, array: Any) -> int:
    room, count._obj.value = count._obj.value, len(processes)
    if room < len(processes):
        return pynvml.NVML_ERROR_INSUFFICIENT_SIZE
    for entry, (pid, used) in zip(array or (), processes, strict=False):
        entry.pid, entry.usedGpuMemory = pid, used
    return 0


@contextmanager
def installed(library: NvmlLibrary) -> Iterator[NvmlLibrary]:
    """Put the library below pynvml; afterwards pynvml is as it was, and no session may be left open."""
    with nvml_answered_by(_Uncached(library)):
        yield library
    assert library.open_sessions == 0, "an NVML session was left open"


class _Uncached:
    """Looks a function up at every call, because pynvml keeps what it was given once, and knobs turn later."""

    def __init__(self, library: NvmlLibrary) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Callable[..., int]:
        getattr(self._library, name)
        return lambda *arguments: getattr(self._library, name)(*arguments)
