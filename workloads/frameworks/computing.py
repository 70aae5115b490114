"""The frameworks that compute: how each is asked for its devices, and for a product. Each is imported when it is asked.

On a machine without a GPU, and on a simulated one, a framework that can compute on the CPU does.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from workloads.frameworks.task import Matrix

GPU, CPU = "gpu", "cpu"
# Frameworks that would take most of the memory of a GPU for themselves, which other jobs of the group need.
_MODEST = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}


class NotInstalledError(Exception):
    """The framework is not there; the message says what was looked for."""


@dataclass(frozen=True)
class Seen:
    """A device as a framework tells of it: what it does not tell is `None`."""

    kind: str
    name: str
    uuid: str | None = None
    memory_mib: int | None = None

    @property
    def words(self) -> str:
        """Return it for readers: `NVIDIA H100 MIG 1g.10gb, 9728 MiB`."""
        return self.name if self.memory_mib is None else f"{self.name}, {self.memory_mib} MiB"


class Framework(Protocol):
    """What can be asked of each; it is made when it is imported."""

    version: str

    def devices(self) -> Sequence[Seen]:
        """Return its GPUs, or else the CPU if it computes there, or else nothing."""
        ...

    def why_no_gpu(self) -> str:
        """Return why it has no GPU, in its own words; empty if it says nothing."""
        ...

    def compute(self, position: int, left: Matrix, right: Matrix) -> tuple[Matrix, float]:
        """Return the product, computed on the device at this position, and the sum of its elements."""
        ...

    def close(self) -> None:
        """End what was begun for it."""
        ...


class Computing:
    """A framework whose module is imported into this process."""

    module: str

    def __init__(self) -> None:
        for name, value in _MODEST.items():
            os.environ.setdefault(name, value)
        with importing(self.module):
            self.its = self.load()
        self.version = str(self.its.__version__)

    def load(self) -> Any:
        """Return its module."""
        raise NotImplementedError

    def why_no_gpu(self) -> str:
        """Nothing: it does not say."""
        return ""

    def close(self) -> None:
        """Nothing was begun."""


@contextmanager
def importing(module: str) -> Iterator[None]:
    """Say of a module that is not there that it is not installed.

    Raises:
        NotInstalledError: there is none of that name. What else goes wrong in it is its own error.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module:
            raise
        raise NotInstalledError(str(error)) from error


class Torch(Computing):
    """PyTorch."""

    module = "torch"

    def load(self) -> Any:
        """Import it."""
        import torch

        return torch

    def devices(self) -> Sequence[Seen]:
        """Return the devices of CUDA, or the CPU."""
        every = [self.its.cuda.get_device_properties(i) for i in range(self.its.cuda.device_count())]
        found = [Seen(GPU, each.name, _text(getattr(each, "uuid", None)), _mib(each.total_memory)) for each in every]
        return found or [Seen(CPU, "CPU")]

    def why_no_gpu(self) -> str:
        """Return the error of CUDA's initialisation."""
        try:
            self.its.cuda.init()
        except (RuntimeError, AssertionError) as error:
            return str(error)
        return ""

    def compute(self, position: int, left: Matrix, right: Matrix) -> tuple[Matrix, float]:
        """Return the product and its sum."""
        device = f"cuda:{position}" if self.its.cuda.device_count() else "cpu"
        one, other = (self.its.tensor(each, dtype=self.its.float32, device=device) for each in (left, right))
        product = one @ other
        return product.tolist(), float(product.sum().item())


class Jax(Computing):
    """JAX."""

    module = "jax"

    def load(self) -> Any:
        """Import it."""
        import jax

        return jax

    def devices(self) -> Sequence[Seen]:
        """Return the devices of its first backend, which is that of GPUs where it has one."""
        found = []
        for each in self.its.devices():
            kind = GPU if each.platform in ("gpu", "cuda", "rocm") else CPU
            memory = (each.memory_stats() or {}).get("bytes_limit") if kind == GPU else None
            found.append(Seen(kind, "CPU" if kind == CPU else each.device_kind, None, _mib(memory)))
        return found

    def why_no_gpu(self) -> str:
        """Return what it answers to who asks for GPUs."""
        try:
            self.its.devices("gpu")
        except RuntimeError as error:
            return str(error)
        return ""

    def compute(self, position: int, left: Matrix, right: Matrix) -> tuple[Matrix, float]:
        """Return the product and its sum."""
        numpy = self.its.numpy
        with self.its.default_device(self.its.devices()[position]):
            product = numpy.array(left, dtype="float32") @ numpy.array(right, dtype="float32")
            return product.tolist(), float(product.sum())


class Cupy(Computing):
    """CuPy, which computes on GPUs only."""

    module = "cupy"

    def load(self) -> Any:
        """Import it."""
        import cupy

        return cupy

    def devices(self) -> Sequence[Seen]:
        """Return the devices of CUDA."""
        try:
            count = self.its.cuda.runtime.getDeviceCount()
        except self.its.cuda.runtime.CUDARuntimeError:
            return []
        every = [self.its.cuda.runtime.getDeviceProperties(i) for i in range(count)]
        return [
            Seen(GPU, each["name"].decode(), _text(each.get("uuid")), _mib(each["totalGlobalMem"])) for each in every
        ]

    def why_no_gpu(self) -> str:
        """Return the error of CUDA's runtime."""
        try:
            self.its.cuda.runtime.getDeviceCount()
        except self.its.cuda.runtime.CUDARuntimeError as error:
            return str(error)
        return ""

    def compute(self, position: int, left: Matrix, right: Matrix) -> tuple[Matrix, float]:
        """Return the product and its sum."""
        with self.its.cuda.Device(position):
            product = self.its.array(left, dtype="float32") @ self.its.array(right, dtype="float32")
            return product.tolist(), float(product.sum())


class Tensorflow(Computing):
    """TensorFlow, which says why it has no GPU in its error output only, and of no GPU how much memory it has."""

    module = "tensorflow"

    def load(self) -> Any:
        """Import it."""
        import tensorflow

        return tensorflow

    def __init__(self) -> None:
        super().__init__()
        self.its.config.set_soft_device_placement(False)  # else it computes elsewhere and says nothing

    def devices(self) -> Sequence[Seen]:
        """Return its GPUs, or the CPU."""
        configuration = self.its.config
        details = map(configuration.experimental.get_device_details, configuration.list_physical_devices("GPU"))
        return [Seen(GPU, each.get("device_name", "GPU")) for each in details] or [Seen(CPU, "CPU")]

    def why_no_gpu(self) -> str:
        """Return whether it was built without CUDA; else its error output says it."""
        return "" if self.its.test.is_built_with_cuda() else "this build of tensorflow is without CUDA"

    def compute(self, position: int, left: Matrix, right: Matrix) -> tuple[Matrix, float]:
        """Return the product and its sum."""
        device = f"/GPU:{position}" if self.its.config.list_physical_devices("GPU") else "/CPU:0"
        with self.its.device(device):
            one, other = (self.its.constant(each, dtype=self.its.float32) for each in (left, right))
            product = self.its.linalg.matmul(one, other)
            return product.numpy().tolist(), float(self.its.reduce_sum(product).numpy())


class Paddle(Computing):
    """PaddlePaddle."""

    module = "paddle"

    def load(self) -> Any:
        """Import it."""
        import paddle

        return paddle

    def devices(self) -> Sequence[Seen]:
        """Return its GPUs, or the CPU."""
        cuda = self.its.device.cuda
        count = cuda.device_count() if self.its.device.is_compiled_with_cuda() else 0
        every = [cuda.get_device_properties(i) for i in range(count)]
        return [Seen(GPU, each.name, None, _mib(each.total_memory)) for each in every] or [Seen(CPU, "CPU")]

    def why_no_gpu(self) -> str:
        """Return whether it was built without CUDA; else it does not say."""
        return "" if self.its.device.is_compiled_with_cuda() else "this build of paddle is without CUDA"

    def compute(self, position: int, left: Matrix, right: Matrix) -> tuple[Matrix, float]:
        """Return the product and its sum."""
        self.its.device.set_device(f"gpu:{position}" if self.devices()[0].kind == GPU else "cpu")
        one, other = (self.its.to_tensor(each, dtype="float32") for each in (left, right))
        product = self.its.matmul(one, other)
        return product.numpy().tolist(), float(product.sum().item())


def _mib(number: object) -> int | None:
    """Return bytes as MiB."""
    return number >> 20 if isinstance(number, int) else None


def _text(given: object) -> str | None:
    """Return a UUID that a library gives as bytes, or as an object, as text."""
    if isinstance(given, bytes):
        return str(uuid.UUID(bytes=given)) if len(given) == 16 else None
    return None if given is None else str(given)
