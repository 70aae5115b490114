"""A process that hosts jobs, each in a green context: `python workloads/host_green.py FILE` (`tenants.py`).

A green context is a part of the multiprocessors. The device is split once, so the parts are disjoint. Only the stream
of a tenant belongs to its green context; the process's own context stays current. With the `GreenContext` of torch
2.11, which makes the green context current, or with the stream of its method `Stream`, matrix products or batch
normalisation fail and take the process with them (docs/one_process.md).

Before the jobs are built, operations of each library run in a green context. If one of them fails or computes other
values than on the whole device, the group is skipped.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # reason: see workloads/__init__.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from workloads import host_streams, tenants
from workloads.tenants import UnsupportedError

if TYPE_CHECKING:
    import torch

_SM_RESOURCE, _DEFAULT_STREAM, _NON_BLOCKING = 1, 1, 1  # Source: cuda.h, driver API 12.4 and later
_LEAST_STEP = 8  # step of the number of multiprocessors on compute capability 9.0, for drivers that do not report it
_TOLERANCE = 0.01


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
        total, rest = Resource(), Resource()
        self.call("cuDeviceGetDevResource", device, ctypes.byref(total), _SM_RESOURCE)
        step = total.step or _LEAST_STEP
        count = requested or max(step, total.num_multiprocessors // num_parts // step * step)
        parts, num_got = (Resource * num_parts)(), ctypes.c_uint(num_parts)
        self.call(
            "cuDevSmResourceSplitByCount",
            parts,
            ctypes.byref(num_got),
            ctypes.byref(total),
            ctypes.byref(rest),
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


class GreenContexts(host_streams.Streams):
    """A stream in a green context for each tenant."""

    def __init__(self, streams: Sequence[torch.cuda.Stream], requested: int | None, got: Sequence[int]) -> None:
        super().__init__(streams)
        self._requested, self._got = requested, got

    def describe(self, position: int) -> dict[str, object]:
        # Also in place of the number that torch reports, which is that of the device.
        return {"multiprocessors": self._got[position], "multiprocessors_requested": self._requested or "equal parts"}


def try_operations(stream: torch.cuda.Stream) -> None:
    """Compare operations on the stream with the same operations on the device's default stream.

    Raises:
        UnsupportedError: an operation fails or computes other values.
    """
    import torch

    for name, compute in list_operations("cuda"):
        expected = compute()
        torch.cuda.synchronize()
        try:
            with torch.cuda.stream(stream):
                computed = compute()
                is_right = torch.allclose(computed, expected, rtol=_TOLERANCE, atol=_TOLERANCE)
        except RuntimeError as error:
            first = str(error).partition("\n")[0]
            raise UnsupportedError(f"{name} fails in a green context: {first} ({_describe_versions()})") from error
        if not is_right:
            raise UnsupportedError(f"{name} computes wrong values in a green context ({_describe_versions()})")


def _describe_versions() -> str:
    import torch

    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return f"torch {torch.__version__}, CUDA {torch.version.cuda}, cuDNN {cudnn}, driver API {Driver().read_version()}"


def list_operations(device: str) -> Iterator[tuple[str, Callable[[], torch.Tensor]]]:
    """Yield an operation of each library, with its backward pass: cuBLAS, cuDNN, and torch's own kernels."""
    import torch
    from torch.nn import functional

    random = torch.Generator(device).manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, generator=random)

    def differentiate(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> Callable[[], torch.Tensor]:
        def compute() -> torch.Tensor:
            leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
            output = function(*leaves).float()
            gradients = torch.autograd.grad(output.square().mean(), leaves)
            return torch.cat([part.flatten().float() for part in (output.detach(), *gradients)])

        return compute

    matrix, heads = draw(512, 512), draw(4, 8, 128, 64).bfloat16()
    images, weights = (
        draw(*shape).to(memory_format=torch.channels_last) for shape in ((64, 64, 16, 16), (64, 64, 3, 3))
    )
    yield "a matrix product", differentiate(torch.mm, matrix / 512**0.5, matrix)
    yield "layer normalisation", differentiate(lambda rows: functional.layer_norm(rows, (512,)), matrix)
    yield "attention", differentiate(functional.scaled_dot_product_attention, heads, heads, heads)
    yield "a convolution", differentiate(lambda x, w: functional.conv2d(x, w, padding=1), images, weights / 24)
    yield "batch normalisation", differentiate(lambda x: functional.batch_norm(x, None, None, training=True), images)


def make_place(options: dict[str, Any], num_tenants: int) -> tenants.Place:
    """Return green contexts, or threads only if there is no GPU."""
    if not host_streams.has_gpu():
        return tenants.Place()
    import torch

    torch.cuda.init()  # type: ignore[no-untyped-call]
    torch.zeros(1, device="cuda")  # makes the process's context current
    driver, device, requested = Driver(), torch.cuda.current_device(), options.get("multiprocessors")
    contexts = [driver.make_stream(device, part) for part in driver.split(device, num_tenants, requested)]
    streams = [torch.cuda.ExternalStream(stream) for stream, _ in contexts]  # type: ignore[no-untyped-call]
    try_operations(streams[0])
    return GreenContexts(streams, requested, [number for _, number in contexts])


if __name__ == "__main__":
    tenants.run_tenants(make_place)
