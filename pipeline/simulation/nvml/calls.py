"""The interface between pynvml and the simulated driver: names, handles, reference arguments, return codes."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pynvml

from pipeline.simulation.machine import codes, queries
from pipeline.simulation.machine.codes import DriverError
from pipeline.simulation.machine.driver import Driver
from pipeline.simulation.machine.gpu_clients import Clients
from pipeline.simulation.machine.state_file import ComputeInstance, Gpu, GpuInstance, StateFile

_NOT_AVAILABLE = 0xFFFFFFFF  # Source: nvml.h, NVML_VALUE_NOT_AVAILABLE as an unsigned int

# Retired pages; from Ampere on GPUs have none: they replace rows instead.
_NOT_SUPPORTED = frozenset({"nvmlDeviceGetRetiredPagesPendingStatus", "nvmlDeviceGetRetiredPages"})


class Calls:
    """The C functions as attributes, and the meanings of their handle arguments.

    Method `_nvmlX` implements function `nvmlX`. It returns a code or nothing (success), or raises `DriverError`.

    A handle is a pointer to a structure that pynvml treats as opaque. Its meaning is a tuple: `gpu`, `mig` (a MIG
    device) or `gi`, then GPU index, GPU instance id and compute instance id where they apply. A handle of a wrong kind,
    or of an object that no longer exists, raises `DriverError`.

    Attributes:
        functions: the methods by the names of their C functions.
        num_open: open sessions of this process.
        lock: for state shared by the threads of this process.
    """

    def __init__(self, state_file: Path) -> None:
        self.functions: dict[str, Callable[..., int | None]] = dict.fromkeys(_NOT_SUPPORTED, _refuse_unsupported)
        methods = [name for name in dir(type(self)) if name.startswith("_nvml")]
        self.functions |= {name.removeprefix("_"): getattr(self, name) for name in methods}
        self.driver = Driver(StateFile(state_file))
        self.clients = Clients(StateFile(state_file))
        self.num_open = 0
        # Several threads may call NVML at once.
        self.lock = threading.Lock()
        self._structures: dict[tuple[Any, ...], Any] = {}
        self._meanings: dict[int, tuple[Any, ...]] = {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name == "nvmlErrorString":
            return lambda code: codes.text_of(code).encode()
        if name not in self.functions:
            raise AttributeError(name)
        return lambda *arguments: self._call(name, arguments)

    def _call(self, name: str, arguments: Sequence[Any]) -> int:
        try:
            # Faults of nvidia-smi, too, are checked where the session is opened.
            if name != "nvmlInitWithFlags":
                if self.num_open == 0:
                    return codes.UNINITIALIZED
                self.driver.check(name, self._gpu_index(arguments))
            return self.functions[name](*arguments) or 0
        except DriverError as error:
            return error.code

    def _gpu_index(self, arguments: Sequence[Any]) -> int | None:
        handle = arguments[0] if arguments else None
        if not isinstance(handle, ctypes._Pointer) or not handle:
            return None
        meaning = self._meanings.get(ctypes.addressof(handle.contents))
        return None if meaning is None else int(meaning[1])

    def meaning(self, handle: Any, *kinds: str) -> tuple[Any, ...]:
        """Return the meaning of a handle, which must be of one of these kinds."""
        meaning = self._meanings.get(ctypes.addressof(handle.contents)) if handle else None
        if meaning is None or meaning[0] not in kinds:
            raise DriverError(codes.INVALID_ARGUMENT)
        return meaning

    def gpu(self, handle: Any) -> Gpu:
        """Return the GPU of a GPU handle or MIG device handle."""
        index: int = self.meaning(handle, "gpu", "mig")[1]
        return self.driver.state().gpus[index]

    def whole_gpu(self, handle: Any) -> tuple[int, Gpu]:
        """Return index and GPU of a whole-GPU handle."""
        index: int = self.meaning(handle, "gpu")[1]
        return index, self.driver.state().gpus[index]

    def mig_device(self, handle: Any) -> tuple[Gpu, GpuInstance, ComputeInstance]:
        _, index, *ids = self.meaning(handle, "mig")
        gpu = self.driver.state().gpus[index]
        pairs = (pair for pair in queries.mig_devices(gpu) if [pair[0].id, pair[1].id] == ids)
        return gpu, *queries.first(pairs, codes.NOT_FOUND)

    def is_mig_device(self, handle: Any) -> bool:
        return bool(self.meaning(handle, "gpu", "mig")[0] == "mig")

    def point(self, handle: Any, *meaning: Any) -> None:
        """Make a handle refer to this meaning."""
        with self.lock:
            if meaning not in self._structures:
                kind = pynvml.struct_c_nvmlGpuInstance_t if meaning[0] == "gi" else pynvml.struct_c_nvmlDevice_t
                self._structures[meaning] = kind()
                self._meanings[ctypes.addressof(self._structures[meaning])] = meaning
            handle.contents = self._structures[meaning]


def _refuse_unsupported(*_: object) -> int:
    return codes.NOT_SUPPORTED


def pointee(argument: Any) -> Any:
    """Return the object behind a reference argument, made by `byref` or `pointer`."""
    return argument._obj if hasattr(argument, "_obj") else argument.contents


def fill(argument: Any, value: int) -> None:
    """Write a number to a reference argument."""
    pointee(argument).value = value


def number(argument: Any) -> int:
    """Return a number that pynvml passes as an int or ctypes object."""
    return int(getattr(argument, "value", argument))


def encode_count(value: int | None) -> int:
    """Return a count for a structure field; NVML's "not available" if the table does not have it."""
    return _NOT_AVAILABLE if value is None else value
