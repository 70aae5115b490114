"""Green contexts: parts of the multiprocessors of a device, by functions of the CUDA driver.

The device is split once, so the parts are disjoint. Only a stream belongs to its green context; the process's own
context stays current. With the `GreenContext` of torch 2.11, which makes the green context current, or with the stream
of its method `Stream`, matrix products or batch normalisation fail and take the process with them
(docs/one_process.md).
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from workloads.tenants import UnsupportedError

if TYPE_CHECKING:
    import torch

_SM_RESOURCE, _DEFAULT_STREAM, _NON_BLOCKING = 1, 1, 1  # Source: cuda.h, driver API 12.4 and later
_LEAST_STEP = 8  # step of the number of multiprocessors on compute capability 9.0, for drivers that do not report it


class Resource(ctypes.Structure):
    """A CUdevResource that holds multiprocessors."""

    _fields_ = (
        ("kind", ctypes.c_int),
        ("padding", ctypes.c_ubyte * 92),
        ("num_multiprocessors", ctypes.c_uint),
        ("least", ctypes.c_uint),  # since driver API 13.0; before, 0
        ("step", ctypes.c_uint),
        ("rest", ctypes.c_ubyte * 36),
    )


class Driver:
    """Functions of the CUDA driver."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function; raise `UnsupportedError` if it is missing or fails."""
        function = getattr(self._library, name, None)
        if function is None:
            raise UnsupportedError(f"the driver has no function {name}; green contexts need driver 550 or later")
        if status := function(*arguments):
            text = ctypes.c_char_p()
            self._library.cuGetErrorName(status, ctypes.byref(text))
            raise UnsupportedError(f"{name} failed: {text.value.decode() if text.value else status}")

    def read_version(self) -> int:
        """Return the version of CUDA that the driver supports, such as 13000."""
        version = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(version))
        return version.value

    def split(self, device: int, num_parts: int, requested: int | None) -> list[Resource]:
        """Split the multiprocessors of a device once, into parts with the requested number, or into equal parts."""
        total, remaining = Resource(), Resource()
        self.call("cuDeviceGetDevResource", device, ctypes.byref(total), _SM_RESOURCE)
        step = total.step or _LEAST_STEP
        count = requested or max(step, total.num_multiprocessors // num_parts // step * step)
        parts, num_got = (Resource * num_parts)(), ctypes.c_uint(num_parts)
        self.call(
            "cuDevSmResourceSplitByCount",
            parts,
            ctypes.byref(num_got),
            ctypes.byref(total),
            ctypes.byref(remaining),
            0,
            count,
        )
        if num_got.value < num_parts:
            raise UnsupportedError(
                f"{num_parts} parts of {count} multiprocessors do not fit into {total.num_multiprocessors}, which are "
                f"split in steps of {step}; use a lower scenario.multiprocessors"
            )
        return list(parts)

    def make_stream(self, device: int, part: Resource) -> tuple[int, int]:
        """Make a green context with a stream; return the stream, and the number of its multiprocessors as read back."""
        description, context, stream, got = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), Resource()
        self.call("cuDevResourceGenerateDesc", ctypes.byref(description), ctypes.byref(part), 1)
        self.call("cuGreenCtxCreate", ctypes.byref(context), description, device, _DEFAULT_STREAM)
        self.call("cuGreenCtxGetDevResource", context, ctypes.byref(got), _SM_RESOURCE)
        self.call("cuGreenCtxStreamCreate", ctypes.byref(stream), context, _NON_BLOCKING, 0)
        return int(stream.value or 0), int(got.num_multiprocessors)


def make_streams(num_contexts: int, requested: int | None) -> list[tuple[torch.cuda.Stream, int]]:
    """Split the device; return the stream of each green context, and the number of its multiprocessors."""
    import torch

    torch.zeros(1, device="cuda")  # makes the process's context current
    driver, device = Driver(), torch.cuda.current_device()
    parts = driver.split(device, num_contexts, requested)
    contexts = [driver.make_stream(device, part) for part in parts]
    return [(torch.cuda.ExternalStream(stream), got) for stream, got in contexts]  # type: ignore[no-untyped-call]
