"""The operations of `workloads/micro.py`: arithmetic in several number formats, memory, transfers and launches.

On a GPU, Triton kernels run chains of multiply-adds on CUDA cores, and torch's libraries compute products on tensor
cores. On CPUs, torch runs smaller versions. NaN is written to the checked results before each step, so results that
were not written are found.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from workloads.rates.loop import Operation

_FACTOR, _SUMMAND = -1.0, 1.0
"""x alternates between x and 1 - x without rounding: every x is a multiple of 1/1024 below 1, exact even in fp16."""

_BLOCK, _UNROLLED, _NUM_WARPS = 1024, 32, 4
_LOOKED_AT = 4096
_TOLERANCE = 0.05
"""Tolerance for a product of random numbers, in standard deviations of its elements. Errors of fp16 and bf16 reach
0.02."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The size of a call: elements and rounds of multiply-adds, rows of a square product, MiB of an array."""

    elements: int
    rounds: int
    rows: int
    array_mib: int
    transfer_mib: int


SIZES = {
    "cuda": Size(elements=1 << 26, rounds=32, rows=8192, array_mib=512, transfer_mib=128),
    "cpu": Size(elements=1 << 16, rounds=1, rows=192, array_mib=4, transfer_mib=4),
}
"""Sizes by device type. They do not depend on the size of the GPU, so that equal work is compared."""

CALLS = {"fma": 4, "mm": 8, "copy": 20, "triad": 20, "to_device": 4, "to_host": 4, "launch": 2000}
CALLS_CPU = {"launch": 1000}
"""Calls per step, by kind of operation; a step takes some milliseconds on a large GPU."""


def build(name: str, device: torch.device, size: Size) -> Operation:
    """Return the operation with this name: `fp32_cuda`, `bf16_tensor`, `copy`, ..."""
    kind = find_kind(name)
    if kind == "fma":
        return MultiplyAdd(name.partition("_")[0], device, size)
    if kind == "mm":
        return Product(name.partition("_")[0], device, size.rows)
    if kind in ("copy", "triad"):
        return Stream(kind, device, size.array_mib)
    if kind == "launch":
        return Launch(device)
    return Transfer(kind, device, size.transfer_mib)


def find_kind(name: str) -> str:
    """Return the kind of an operation: its name without the number format."""
    return {"cuda": "fma", "tensor": "mm"}.get(name.partition("_")[2], name)


def count_calls(name: str, device: torch.device) -> int:
    """Return the number of calls per step."""
    kind = find_kind(name)
    return CALLS[kind] if device.type == "cuda" else CALLS_CPU.get(kind, 2)


class MultiplyAdd:
    """Chains of fused multiply-adds in registers. The work unit is TFLOP, with two FLOP per multiply-add."""

    def __init__(self, precision: str, device: torch.device, size: Size) -> None:
        self._dtype = {"fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64}[precision]
        self._rounds = size.rounds
        self._out = torch.empty(size.elements, dtype=self._dtype, device=device)
        steps = size.rounds * _UNROLLED + 1
        assert steps % 2, "with an even number of steps, the result would equal the start value"
        self.work = 2 * steps * size.elements / 1e12
        index = torch.arange(size.elements - _LOOKED_AT, size.elements, device=device)
        self._must_be = 1 - (index % 1024 / 1024).to(self._dtype)
        self._apply = self._run_on_gpu if device.type == "cuda" else self._run_on_cpu

    def begin(self) -> None:
        self._out.fill_(torch.nan)

    def call(self) -> None:
        self._apply()

    def count_wrong(self) -> Tensor:
        looked_at = self._out[-_LOOKED_AT:]
        num_wrong = (looked_at != self._must_be).sum()
        looked_at.fill_(torch.nan)
        return num_wrong

    def _run_on_gpu(self) -> None:
        import triton.language as tl

        from workloads.rates import kernels

        dtype = {torch.float16: tl.float16, torch.float32: tl.float32, torch.float64: tl.float64}[self._dtype]
        kernels.multiply_add[(len(self._out) // _BLOCK,)](
            self._out,
            _FACTOR,
            _SUMMAND,
            self._rounds,
            dtype=dtype,
            packed=self._dtype == torch.float16,
            block=_BLOCK,
            unrolled=_UNROLLED,
            num_warps=_NUM_WARPS,
        )

    def _run_on_cpu(self) -> None:
        x = (torch.arange(len(self._out)) % 1024 / 1024).to(self._dtype)
        summand = torch.full_like(x, _SUMMAND)
        for _ in range(self._rounds * _UNROLLED + 1):
            x = torch.add(summand, x, alpha=_FACTOR)
        self._out.copy_(x)


class Product:
    """Square matrix products of random numbers, on tensor cores if available. The work unit is TFLOP."""

    def __init__(self, precision: str, device: torch.device, rows: int) -> None:
        self._is_fp8 = precision == "fp8"
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32, "fp8": torch.float8_e4m3fn}
        self._left, self._right = (torch.randn(rows, rows, device=device).to(dtype[precision]) for _ in range(2))
        if self._is_fp8:  # torch's fp8 product requires the right matrix in column-major order
            self._right = self._right.t()
        self._one = torch.ones((), device=device)
        self._out = torch.empty(rows, rows, dtype=torch.bfloat16 if self._is_fp8 else dtype[precision], device=device)
        self.work = 2 * rows**3 / 1e12
        # The checked elements are spread over the product, so that most blocks of the product are sampled.
        self._at = slice(None, None, max(1, rows // 64)), slice(None, None, max(1, rows // 64))
        host = self._left[self._at[0]].cpu().double() @ self._right[:, self._at[1]].cpu().double()
        self._must_be, self._scale = host.float().to(device), rows**0.5

    def begin(self) -> None:
        self._out.fill_(torch.nan)

    def call(self) -> None:
        if not self._is_fp8:
            torch.mm(self._left, self._right, out=self._out)
        elif self._out.is_cuda:
            factors, one = (self._left, self._right), self._one  # for fp8, torch has only this private function
            torch._scaled_mm(*factors, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, out=self._out)
        else:
            self._out.copy_(self._left.float() @ self._right.float())

    def count_wrong(self) -> Tensor:
        looked_at = self._out[self._at]
        is_right = (looked_at.float() - self._must_be).abs() <= _TOLERANCE * self._scale
        looked_at.fill_(torch.nan)
        is_wrong: Tensor = ~is_right  # NaN counts as wrong
        return is_wrong.sum()


class Stream:
    """A copy of an array in device memory, or a = b + 3 c. The work unit is GB, read and written."""

    def __init__(self, kind: str, device: torch.device, array_mib: int) -> None:
        num = array_mib * 2**20 // 4
        # The numbers are small integers, so results are exact.
        count = 2 if kind == "triad" else 1
        arrays = [torch.randint(1000, (num,), device=device, dtype=torch.float32) for _ in range(count)]
        self._from, self._more = arrays[0], arrays[1] if kind == "triad" else None
        self._to = torch.empty(num, device=device)
        self.work = (2 if self._more is None else 3) * 4 * num / 1e9

    def begin(self) -> None:
        self._to.fill_(torch.nan)

    def call(self) -> None:
        if self._more is None:
            self._to.copy_(self._from)
        else:
            torch.add(self._from, self._more, alpha=3, out=self._to)

    def count_wrong(self) -> Tensor:
        at = slice(None, None, max(1, len(self._to) // _LOOKED_AT))
        must_be = self._from[at] if self._more is None else self._from[at] + 3 * self._more[at]
        num_wrong = (self._to[at] != must_be).sum()
        self._to[at] = torch.nan
        return num_wrong


class Transfer:
    """Copies between pinned host memory and device memory. The work unit is GB."""

    def __init__(self, kind: str, device: torch.device, array_mib: int) -> None:
        num = array_mib * 2**20 // 4
        self._device = device
        self._host = torch.randint(1000, (num,), dtype=torch.float32)
        if device.type == "cuda":
            self._host = self._host.pin_memory()
        self._there = self._host.to(device, copy=True)
        self._must_be = self._there[-_LOOKED_AT:].clone()
        self._from, self._to = (self._host, self._there) if kind == "to_device" else (self._there, self._host)
        self._nothing = torch.full_like(self._must_be, torch.nan)
        self.work = 4 * num / 1e9

    def begin(self) -> None:
        self._to[-_LOOKED_AT:].copy_(self._nothing, non_blocking=True)

    def call(self) -> None:
        self._to.copy_(self._from, non_blocking=True)

    def count_wrong(self) -> Tensor:
        # This copy is queued in the same stream, so host memory is read only after the measured copy.
        looked_at = self._to[-_LOOKED_AT:].to(self._device, non_blocking=True)
        num_wrong = (looked_at != self._must_be).sum()
        self.begin()
        return num_wrong


class Launch:
    """Tiny kernels, one after another, which measure the launch cost. The work unit is launches."""

    work = 1.0

    def __init__(self, device: torch.device) -> None:
        self._counter = torch.zeros((), dtype=torch.int64, device=device)
        self._num = 0

    def begin(self) -> None:
        self._counter.zero_()
        self._num = 0

    def call(self) -> None:
        self._counter.add_(1)
        self._num += 1

    def count_wrong(self) -> Tensor:
        is_wrong: Tensor = self._counter != self._num
        return is_wrong.sum()
