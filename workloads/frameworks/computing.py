"""The computing frameworks: each lists its devices and computes a matrix product on each device.

A class imports its framework when instantiated. Without a GPU, or with a simulated GPU, a framework uses the CPU if it
supports the CPU.
"""

from __future__ import annotations

import importlib
import operator
import os
import random
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from operator import mul
from typing import Any

Matrix = list[list[float]]

ROWS = 128
_LARGEST = 3


@dataclass(frozen=True)
class Task:
    """Two square matrices, their product as computed on the CPU, and the sum of the product's elements."""

    a: Matrix
    b: Matrix
    product: Matrix
    total: float

    @classmethod
    def make(cls, rows: int = ROWS, seed: int = 0) -> Task:
        numbers = random.Random(seed)  # noqa: S311  numbers, not secrets
        a, b = (
            [[float(numbers.randint(-_LARGEST, _LARGEST)) for _ in range(rows)] for _ in range(rows)] for _ in range(2)
        )
        columns = list(zip(*b, strict=True))
        product = [[sum(map(mul, row, column)) for column in columns] for row in a]
        return cls(a, b, product, sum(map(sum, product)))

    def describe_difference(self, product: Matrix, total: float) -> str:
        """Describe how an answer differs from the CPU's result; return an empty string if they are equal."""
        if [len(row) for row in product] != [len(row) for row in self.product]:
            size = len(self.product)
            return f"the product has {len(product)} rows, instead of {size} rows of {size} numbers"
        pairs = list(zip(chain.from_iterable(product), chain.from_iterable(self.product), strict=True))
        mismatches = [(element, expected) for element, expected in pairs if element != expected]
        if mismatches:
            element, expected = mismatches[0]
            return (
                f"{len(mismatches)} of {len(pairs)} elements of the product are wrong: "
                f"{element:g} instead of {expected:g}"
            )
        return "" if total == self.total else f"the sum is {total:g} instead of {self.total:g}"


GPU, CPU = "gpu", "cpu"
# Without these settings, JAX and TensorFlow allocate most of a GPU's memory, which other jobs of the group need.
_MODEST = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}


class NotInstalledError(Exception):
    """The framework is not installed; the message names the missing package."""


@dataclass(frozen=True)
class Seen:
    """A device as a framework describes it; values that the framework does not report are `None`."""

    kind: str
    name: str
    uuid: str | None = None
    memory_mib: int | None = None

    @property
    def description(self) -> str:
        """The device as text: `NVIDIA H100 MIG 1g.10gb, 9728 MiB`."""
        return self.name if self.memory_mib is None else f"{self.name}, {self.memory_mib} MiB"


class Framework(ABC):
    """A framework, or a server in front of a framework."""

    version: str

    @abstractmethod
    def devices(self) -> Sequence[Seen]:
        """Return the framework's GPUs; without a GPU, return the CPU if the framework supports it, else nothing."""

    @abstractmethod
    def compute(self, position: int, a: Matrix, b: Matrix) -> tuple[Matrix, float]:
        """Return the product, computed on the device at this position, and the sum of the product's elements."""

    def why_no_gpu(self) -> str:
        """Return the framework's own reason for having no GPU; empty if it gives none."""
        return ""

    def close(self) -> None:  # noqa: B027
        """Stop the processes and remove the files that this object has created."""


class Computing(Framework):
    """A framework whose module is imported into this process."""

    module: str

    def __init__(self) -> None:
        for name, setting in _MODEST.items():
            os.environ.setdefault(name, setting)
        with require_module(self.module):
            self.its: Any = importlib.import_module(self.module)
        self.version = str(self.its.__version__)

    def why_no_gpu(self) -> str:
        try:
            self.begin_gpu()
        except (RuntimeError, AssertionError) as error:
            return str(error)
        return ""

    def begin_gpu(self) -> None:
        """Initialise the GPU; if this fails, raise the framework's exception. By default, do nothing."""


@contextmanager
def require_module(module: str) -> Iterator[None]:
    """Raise `NotInstalledError` if the module is missing; do not catch other exceptions, such as for a dependency."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module:
            raise
        raise NotInstalledError(str(error)) from error


class Torch(Computing):
    """PyTorch."""

    module = "torch"

    def devices(self) -> Sequence[Seen]:
        gpus = [self.its.cuda.get_device_properties(i) for i in range(self.its.cuda.device_count())]
        return [Seen(GPU, gpu.name, _text(getattr(gpu, "uuid", None)), _mib(gpu.total_memory)) for gpu in gpus] or [
            Seen(CPU, "CPU")
        ]

    def begin_gpu(self) -> None:
        self.its.cuda.init()

    def compute(self, position: int, a: Matrix, b: Matrix) -> tuple[Matrix, float]:
        device = f"cuda:{position}" if self.its.cuda.device_count() else "cpu"
        factors = (self.its.tensor(factor, dtype=self.its.float32, device=device) for factor in (a, b))
        product = operator.matmul(*factors)
        return product.tolist(), float(product.sum().item())


class Jax(Computing):
    """JAX."""

    module = "jax"

    def devices(self) -> Sequence[Seen]:
        # These are the devices of the default backend: the GPU backend if JAX has a GPU backend.
        devices = []
        for device in self.its.devices():
            kind = GPU if device.platform in ("gpu", "cuda", "rocm") else CPU
            memory = (device.memory_stats() or {}).get("bytes_limit") if kind == GPU else None
            devices.append(Seen(kind, "CPU" if kind == CPU else device.device_kind, None, _mib(memory)))
        return devices

    def begin_gpu(self) -> None:
        self.its.devices("gpu")

    def compute(self, position: int, a: Matrix, b: Matrix) -> tuple[Matrix, float]:
        numpy = self.its.numpy
        with self.its.default_device(self.its.devices()[position]):
            product = numpy.array(a, dtype="float32") @ numpy.array(b, dtype="float32")
            return product.tolist(), float(product.sum())


class Cupy(Computing):
    """CuPy, which computes on GPUs only."""

    module = "cupy"

    def devices(self) -> Sequence[Seen]:
        try:
            count = self.its.cuda.runtime.getDeviceCount()
        except self.its.cuda.runtime.CUDARuntimeError:
            return []
        gpus = [self.its.cuda.runtime.getDeviceProperties(i) for i in range(count)]
        return [Seen(GPU, gpu["name"].decode(), _text(gpu.get("uuid")), _mib(gpu["totalGlobalMem"])) for gpu in gpus]

    def begin_gpu(self) -> None:
        self.its.cuda.runtime.getDeviceCount()

    def compute(self, position: int, a: Matrix, b: Matrix) -> tuple[Matrix, float]:
        with self.its.cuda.Device(position):
            product = self.its.array(a, dtype="float32") @ self.its.array(b, dtype="float32")
            return product.tolist(), float(product.sum())


class Tensorflow(Computing):
    """TensorFlow. It prints the reason for having no GPU only to stderr, and never reports the memory size of a GPU."""

    module = "tensorflow"

    def __init__(self) -> None:
        super().__init__()
        self.its.config.set_soft_device_placement(False)  # else TensorFlow may compute on another device, without error

    def devices(self) -> Sequence[Seen]:
        configuration = self.its.config
        details = map(configuration.experimental.get_device_details, configuration.list_physical_devices("GPU"))
        return [Seen(GPU, detail.get("device_name", "GPU")) for detail in details] or [Seen(CPU, "CPU")]

    def why_no_gpu(self) -> str:
        return "" if self.its.test.is_built_with_cuda() else "this build of tensorflow is without CUDA"

    def compute(self, position: int, a: Matrix, b: Matrix) -> tuple[Matrix, float]:
        device = f"/GPU:{position}" if self.its.config.list_physical_devices("GPU") else "/CPU:0"
        with self.its.device(device):
            factors = (self.its.constant(factor, dtype=self.its.float32) for factor in (a, b))
            product = self.its.linalg.matmul(*factors)
            return product.numpy().tolist(), float(self.its.reduce_sum(product).numpy())


class Paddle(Computing):
    """PaddlePaddle."""

    module = "paddle"

    def devices(self) -> Sequence[Seen]:
        cuda = self.its.device.cuda
        count = cuda.device_count() if self.its.device.is_compiled_with_cuda() else 0
        gpus = [cuda.get_device_properties(i) for i in range(count)]
        return [Seen(GPU, gpu.name, None, _mib(gpu.total_memory)) for gpu in gpus] or [Seen(CPU, "CPU")]

    def why_no_gpu(self) -> str:
        return "" if self.its.device.is_compiled_with_cuda() else "this build of paddle is without CUDA"

    def compute(self, position: int, a: Matrix, b: Matrix) -> tuple[Matrix, float]:
        self.its.device.set_device(f"gpu:{position}" if self.devices()[0].kind == GPU else "cpu")
        factors = (self.its.to_tensor(factor, dtype="float32") for factor in (a, b))
        product = self.its.matmul(*factors)
        return product.numpy().tolist(), float(product.sum().item())


def _mib(number: object) -> int | None:
    return number >> 20 if isinstance(number, int) else None


def _text(identifier: object) -> str | None:
    """Return a UUID as text; some libraries report UUIDs as bytes or as objects."""
    if isinstance(identifier, bytes):
        return str(uuid.UUID(bytes=identifier)) if len(identifier) == 16 else None
    return None if identifier is None else str(identifier)
