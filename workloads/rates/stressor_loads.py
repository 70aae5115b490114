"""The loads of `workloads/stressor.py`: one operation for each resource."""

from __future__ import annotations

import argparse
import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from workloads import client, program
from workloads.rates import operations
from workloads.rates.duty_cycle import Load
from workloads.rates.loop import Operation

_OF_TRITON = ("issue_fp32", "shared_memory", "l2")
"""Resources whose kernels are compiled by Triton."""

_SIZE = operations.Size(elements=1 << 21, rounds=64, rows=2048, array_mib=256, transfer_mib=8)
"""Sizes of calls that take 0.2 ms or less on a large GPU, so that a phase of work ends in time."""

_OPERATIONS = {
    "issue_fp32": ("fp32_cuda", 1),
    "tensor_cores": ("bf16_tensor", 4),
    "memory_bandwidth": ("copy", 1),
    "launches": ("launch", 40),
    "pcie_copies": ("to_device", 1),
}
"""Microbenchmark of a resource, and the number of its calls between two looks at the clock."""

_BLOCK, _PROGRAMS = 1024, 4096
_L1_BYTES, _L1_ROUNDS, _L2_ROUNDS, _MOST_L2_BYTES = 16 << 10, 256, 48, 8 << 20
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
    if resource in _OPERATIONS:
        name, num_calls = _OPERATIONS[resource]
        return GpuLoad(operations.build(name, device, _SIZE), num_calls)
    if resource == "shared_memory":
        return GpuLoad(TableReading(device, _L1_BYTES, _L1_ROUNDS, is_cached=True), 1)
    quarter = getattr(torch.cuda.get_device_properties(device), "L2_cache_size", 4 * _MOST_L2_BYTES) // 4
    num_bytes = min(_MOST_L2_BYTES, 1 << (quarter.bit_length() - 1))
    return GpuLoad(TableReading(device, num_bytes, _L2_ROUNDS, is_cached=False), 1)


class GpuLoad:
    """An operation of a microbenchmark that keeps a GPU busy until a given time."""

    def __init__(self, operation: Operation, calls: int) -> None:
        self._operation, self._calls = operation, calls
        operation.begin()

    def run_until(self, end_ns: int) -> int:
        pending: deque[torch.cuda.Event] = deque()
        num_calls = 0
        while num_calls == 0 or time.monotonic_ns() < end_ns:
            for _ in range(self._calls):
                self._operation.call()
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


class TableReading:
    """Reads of a small table of ones by all multiprocessors: from L1, or from L2 past L1."""

    work = 1.0

    def __init__(self, device: torch.device, num_bytes: int, rounds: int, *, is_cached: bool) -> None:
        self._table = torch.ones(num_bytes // 4, device=device)
        self._out = torch.zeros(_PROGRAMS, device=device)
        self._rounds, self._is_cached = rounds, is_cached

    def begin(self) -> None:
        self._out.fill_(torch.nan)

    def call(self) -> None:
        from workloads.rates import kernels

        kernels.read_table[(_PROGRAMS,)](
            self._out,
            self._table,
            self._rounds,
            len(self._table) - 1,
            is_cached=self._is_cached,
            block=_BLOCK,
            num_warps=4,
        )

    def count_wrong(self) -> Tensor:
        wrong: Tensor = self._out != self._rounds * _BLOCK
        return wrong.sum()


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
