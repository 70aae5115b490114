"""The loads of `workloads/stressor.py`: one operation for each resource."""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from workloads import client, program
from workloads.rates import operations
from workloads.rates.loop import Operation
from workloads.rates.stressor_loop import Load

_OF_TRITON = ("issue_fp32", "tensor_cores", "shared_memory", "l2", "memory_bandwidth")
"""Resources whose kernels are compiled by Triton.

A kernel has few warps on each multiprocessor and takes about 10 us on a large GPU. Beside longer kernels or more
warps, jobs would wait until multiprocessors are free, whatever resource the stressor loads (docs/sensitivity.md).
"""
_CALLS = 16
"""Calls of such a kernel in a CUDA graph, because the host takes longer to launch a kernel than the kernel takes."""
_CHAINS, _ROUNDS = 4096, 18
"""Chains of multiply-adds on each multiprocessor, and their rounds in a call."""
_PRODUCT, _PRODUCTS = (64, 64, 256), 34
"""Rows, inner dimension and columns of a product on one multiprocessor, and their number in a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Settings of reads of a table.

    Attributes:
        num_bytes: size of the table.
        num_programs: programs on each multiprocessor.
        rounds: rounds of a call; in each, a program reads `block` elements at once.
        is_cached: whether L1 caches the table.
    """

    num_bytes: int
    num_programs: int
    num_warps: int
    rounds: int
    block: int
    is_cached: bool = False


_READINGS = {
    "shared_memory": Reading(num_bytes=16 << 10, num_programs=2, num_warps=8, rounds=66, block=4096, is_cached=True),
    "l2": Reading(num_bytes=8 << 20, num_programs=1, num_warps=16, rounds=17, block=8192),
    "memory_bandwidth": Reading(num_bytes=256 << 20, num_programs=1, num_warps=16, rounds=6, block=8192),
}

_OPERATIONS = {"launches": ("launch", 40), "pcie_copies": ("to_device", 1)}
"""Microbenchmark of a resource, and the number of its calls between two looks at the clock."""
_TRANSFER_MIB = 8
_AHEAD = 3
"""Bursts of calls that are issued before the oldest is complete."""

_HASHED_BYTES = 256 << 10
_FILE_BYTES, _READ_BYTES = 512 << 20, 1 << 20
"""Size of the file that `host_memory` reads, more than the caches of most hosts, and of one read."""


def set_up(args: argparse.Namespace, job: client.NullJob, resources: Sequence[str]) -> dict[str, Load]:
    """Build the loads of a program and record its params; return the loads by resource."""
    job.phase("build")
    device = program.find_device(args)
    torch.manual_seed(args.seed)
    if set(resources) & set(_OF_TRITON):
        program.need_triton(device)
    loads = {resource: build(resource, device, args.threads) for resource in resources}
    params = program.describe_run(device) | program.record_options(args)
    job.param(**{key: param for key, param in params.items() if param is not None})
    return loads


def build(resource: str, device: torch.device, threads: int | None) -> Load:
    """Return the load of a resource, for resources of the host with this number of threads."""
    if resource in ("host_cores", "host_memory"):
        if device.type == "cuda":
            torch.zeros(1, device=device)  # jobs under MPS must be clients of its server
        num_threads = len(os.sched_getaffinity(0)) if threads is None else threads
        return HostLoad(Hashing() if resource == "host_cores" else FileReading(num_threads), num_threads)
    size = operations.Size(elements=0, rounds=_ROUNDS, rows=0, array_mib=0, transfer_mib=_TRANSFER_MIB)
    if resource in _OPERATIONS:
        name, num_calls = _OPERATIONS[resource]
        return GpuLoad(operations.build(name, device, size), num_calls)
    gpu = torch.cuda.get_device_properties(device)
    if resource == "issue_fp32":
        chains = replace(size, elements=_CHAINS * gpu.multi_processor_count)
        return GpuLoad(operations.build("fp32_cuda", device, chains), _CALLS, is_captured=True)
    if resource == "tensor_cores":
        return GpuLoad(BlockProducts(device, gpu.multi_processor_count), _CALLS, is_captured=True)
    reading = choose_reading(resource, getattr(gpu, "L2_cache_size", 0))
    return GpuLoad(TableReading(device, reading, gpu.multi_processor_count), _CALLS, is_captured=True)


def choose_reading(resource: str, l2_bytes: int) -> Reading:
    """Return how the table of a resource is read; the table of L2 is at most a quarter of it, if its size is known."""
    reading = _READINGS[resource]
    if resource != "l2" or not l2_bytes:
        return reading
    quarter = max(l2_bytes // 4, 4 * reading.block)
    return replace(reading, num_bytes=min(reading.num_bytes, 1 << (quarter.bit_length() - 1)))


class GpuLoad:
    """An operation of a microbenchmark that keeps a GPU busy until a given time; `calls` are issued at once."""

    def __init__(self, operation: Operation, calls: int, *, is_captured: bool = False) -> None:
        self._operation, self._calls = operation, calls
        operation.begin()
        self._issue = self._capture() if is_captured else self._repeat

    def run_until(self, end_ns: int) -> int:
        pending: deque[torch.cuda.Event] = deque()
        num_calls = 0
        while num_calls == 0 or time.monotonic_ns() < end_ns:
            self._issue()
            num_calls += self._calls
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            event.record()
            pending.append(event)
            if len(pending) >= _AHEAD:
                pending.popleft().synchronize()
        if pending:
            pending[-1].synchronize()
        return num_calls

    def count_wrong(self) -> int:
        return int(self._operation.count_wrong().item())

    def _repeat(self) -> None:
        for _ in range(self._calls):
            self._operation.call()

    def _capture(self) -> Callable[[], None]:
        self._repeat()  # Triton compiles a kernel for each kind of argument; a capture should not contain that
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._repeat()
        return graph.replay


class TableReading:
    """Reads of a table of ones by all multiprocessors: from L1, from L2, or from device memory if it is large."""

    work = 1.0

    def __init__(self, device: torch.device, reading: Reading, multiprocessors: int) -> None:
        self._reading = reading
        self._table = torch.ones(reading.num_bytes // 4, device=device)
        self._out = torch.zeros(reading.num_programs * multiprocessors, device=device)
        self._first = 0

    def begin(self) -> None:
        self._out.fill_(torch.nan)

    def call(self) -> None:
        from workloads.rates import kernels

        kernels.read_table[(len(self._out),)](
            self._out,
            self._table,
            self._first,
            self._reading.rounds,
            len(self._table) - 1,
            is_cached=self._reading.is_cached,
            block=self._reading.block,
            num_warps=self._reading.num_warps,
        )
        # The calls of a graph read different blocks of a large table, 96 MiB on 32 multiprocessors and more on others,
        # which do not stay in L2.
        self._first = (self._first + self._reading.rounds * len(self._out)) % (len(self._table) // self._reading.block)

    def count_wrong(self) -> Tensor:
        is_wrong: Tensor = self._out != self._reading.rounds * self._reading.block
        return is_wrong.sum()


class BlockProducts:
    """Products of two small bf16 matrices, again and again on each multiprocessor, without other memory traffic."""

    work = 1.0

    def __init__(self, device: torch.device, num_programs: int, dtype: torch.dtype = torch.bfloat16) -> None:
        rows, inner, columns = _PRODUCT
        # Small integers, so results are exact.
        lhs, rhs = torch.randint(-1, 2, (rows, inner)), torch.randint(-1, 2, (inner, columns))
        self._lhs, self._rhs = lhs.to(device, dtype), rhs.to(device, dtype)
        self._out = torch.zeros(num_programs, rows, device=device)
        self._must_be = (_PRODUCTS * (lhs @ rhs).sum(1)).to(device, torch.float32)

    def begin(self) -> None:
        self._out.fill_(torch.nan)

    def call(self) -> None:
        from workloads.rates import kernels

        rows, inner, columns = _PRODUCT
        kernels.multiply_blocks[(len(self._out),)](
            self._out,
            self._lhs,
            self._rhs,
            _PRODUCTS,
            rows=rows,
            inner=inner,
            columns=columns,
            num_warps=4,
        )

    def count_wrong(self) -> Tensor:
        is_wrong: Tensor = self._out != self._must_be
        return is_wrong.sum()


class HostLoad:
    """A function that threads repeat until a given time; it must release the interpreter's lock."""

    def __init__(self, call: Callable[[int], None], threads: int) -> None:
        self._call, self._threads = call, threads
        self._pool = ThreadPoolExecutor(threads)

    def run_until(self, end_ns: int) -> int:
        return sum(self._pool.map(self._repeat, range(self._threads), [end_ns] * self._threads))

    def _repeat(self, thread: int, end_ns: int) -> int:
        num_calls = 0
        while num_calls == 0 or time.monotonic_ns() < end_ns:
            self._call(thread)
            num_calls += 1
        return num_calls

    def count_wrong(self) -> int:
        return 0


class Hashing:
    """Hashes of a text that stays in the caches of a core."""

    def __init__(self) -> None:
        self._text = bytes(_HASHED_BYTES)

    def __call__(self, thread: int) -> None:
        hashlib.sha256(self._text).digest()


class FileReading:
    """Reads of a file that lies in the page cache, from a different place by each thread."""

    def __init__(self, threads: int) -> None:
        self._file = os.memfd_create("stressor")
        text = bytes(_READ_BYTES)
        for _ in range(_FILE_BYTES // _READ_BYTES):
            os.write(self._file, text)
        self._buffers = [bytearray(_READ_BYTES) for _ in range(threads)]
        self._places = [thread * _FILE_BYTES // threads // _READ_BYTES * _READ_BYTES for thread in range(threads)]

    def __call__(self, thread: int) -> None:
        os.preadv(self._file, [self._buffers[thread]], self._places[thread])
        self._places[thread] = (self._places[thread] + _READ_BYTES) % _FILE_BYTES
