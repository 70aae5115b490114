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
from pipeline.simulation.machine.driver import Clients, Driver
from pipeline.simulation.machine.state_file import ComputeInstance, Gpu, GpuInstance, StateFile

_NOT_AVAILABLE = 0xFFFFFFFF  # Source: nvml.h, NVML_VALUE_NOT_AVAILABLE as an unsigned int

# GPUs before Ampere have retired pages; later GPUs replace rows instead.
_NOT_SUPPORTED = frozenset({"nvmlDeviceGetRetiredPagesPendingStatus", "nvmlDeviceGetRetiredPages"})


class Calls:
    """The C functions as attributes, and the meanings of their handle arguments.

    The method `_nvmlX` implements the function `nvmlX`. It returns a code or, on success, nothing; or it raises
    `DriverError`.

    A handle is a pointer to a structure that pynvml treats as opaque. Its meaning is a tuple: the kind (`gpu`, `mig`
    for a MIG device, `gi` for a GPU instance), the GPU index and, if the kind has them, the GPU instance id and compute
    instance id. A handle of the wrong kind, or of an object that no longer exists, raises `DriverError`.

    Attributes:
        functions: methods by the names of their C functions.
        num_open: number of open sessions of this process.
        lock: lock for the state that the threads of this process share.
    """

    def __init__(self, state_file: Path) -> None:
        self.functions: dict[str, Callable[..., int | None]] = dict.fromkeys(
            _NOT_SUPPORTED, lambda *_: codes.NOT_SUPPORTED
        )
        methods = [name for name in dir(type(self)) if name.startswith("_nvml")]
        self.functions |= {name.removeprefix("_"): getattr(self, name) for name in methods}
        self.driver = Driver(StateFile(state_file))
        self.clients = Clients(StateFile(state_file))
        self.num_open = 0
        # The lock is needed because several threads may call NVML at once.
        self.lock = threading.Lock()
        self._structures: dict[tuple[Any, ...], Any] = {}
        self._meanings: dict[int, tuple[Any, ...]] = {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name == "nvmlErrorString":
            return lambda code: codes.text_of(code).encode()
        if name not in self.functions or name in self.driver.state().release.missing_calls:
            raise AttributeError(name)
        return lambda *arguments: self._call(name, arguments)

    def _call(self, name: str, arguments: Sequence[Any]) -> int:
        try:
            # Faults of nvmlInitWithFlags are checked when a session is opened, which nvidia-smi does too.
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
        """Return the meaning of a handle; the handle must be of one of these kinds."""
        meaning = self._meanings.get(ctypes.addressof(handle.contents)) if handle else None
        if meaning is None or meaning[0] not in kinds:
            raise DriverError(codes.INVALID_ARGUMENT)
        return meaning

    def gpu(self, handle: Any) -> Gpu:
        """Return the GPU of a GPU handle or MIG device handle."""
        index: int = self.meaning(handle, "gpu", "mig")[1]
        return self.driver.state().gpus[index]

    def whole_gpu(self, handle: Any) -> tuple[int, Gpu]:
        """Return the index and the GPU of a handle for a whole GPU."""
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


def pointee(argument: Any) -> Any:
    """Return the object of a reference argument, which was created by `byref` or `pointer`."""
    return argument._obj if hasattr(argument, "_obj") else argument.contents


def fill(argument: Any, value: int) -> None:
    """Write a number to a reference argument."""
    pointee(argument).value = value


def number(argument: Any) -> int:
    """Return a number as an int; pynvml passes an int or a ctypes object."""
    return int(getattr(argument, "value", argument))


def encode_count(value: int | None) -> int:
    """Return a count for a structure field; if it is unknown, return NVML's value for "not available"."""
    return _NOT_AVAILABLE if value is None else value
