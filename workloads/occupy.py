"""Load a GPU with a known number of thread blocks; used by `python -m pipeline.gpu selftest`.

The program reads standard input: a line `BLOCKS THREADS` begins a load, and any further line or the end of input ends
this load. By hand: start the program, type `132 1024`, then `stop`. The program writes one JSON object per line: first
the device, then for each load `running` as soon as the load runs, and `done` with the number of wrong results.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":  # reason: see workloads/__init__.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from workloads import program

if TYPE_CHECKING:
    import torch

WARP = 32
"""Threads of a warp: the minimum that Triton launches, and the unit of occupancy counters."""

_THREADS = tuple(WARP << doubled for doubled in range(6))

_KERNEL_S = 0.05
"""Duration of a kernel; long enough that the microseconds between two kernels are negligible."""

_ROUNDS_BY, _TRIED_ROUNDS, _MOST_ROUNDS = 16, 2000, 1 << 30
"""The number of rounds per kernel is a multiple of this: Triton compiles one kernel for all multiples of 16."""

_AHEAD = 3
"""Maximum number of kernels issued ahead, so that the device never waits for the host."""

_WAVES = 64
"""Blocks per kernel, as a multiple of the blocks that fit on the device, for a load that fills the device. Blocks
compete for an SM's arithmetic, and the oldest block ends first. With a multiple of 1, SMs had too few blocks towards
the end of a kernel: an H200 showed an occupancy of 0.63."""

_UNROLLED, _FACTOR, _SUMMAND = 32, -1.0, 1.0
"""Steps per round, and the constants of a step, as in `rates.operations`: after an odd number of steps, x has become
exactly 1 - x."""


def main() -> None:
    """Execute the commands from standard input."""
    import torch

    parser = program.Parser(description="Run loads from standard input: BLOCKS THREADS begins a load, stop ends it.")
    parser.add_argument("--device", default="cuda", choices=["auto", "cuda"])
    parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch finds no GPU; run this program on a machine with a GPU")
    device = torch.device("cuda", 0)
    program.need_triton(device)
    properties = torch.cuda.get_device_properties(device)
    _tell(
        device={
            "name": properties.name,
            "multiprocessors": properties.multi_processor_count,
            "threads_per_multiprocessor": properties.max_threads_per_multi_processor,
            "torch": torch.__version__,
        }
    )
    lines = Lines(sys.stdin.fileno())
    while (line := lines.next()) is not None:
        numbers = [int(word) for word in line.split() if word.isdecimal()]
        if len(numbers) != 2 or numbers[0] < 1 or numbers[1] not in _THREADS:
            parser.error(f"{line!r} is not BLOCKS THREADS; use one of {_THREADS} for THREADS")
        occupy(device, numbers[0], numbers[1], lines)
        lines.next()


class Lines:
    """A reader of lines from a descriptor, which can check whether a line has arrived."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._pending, self._has_ended = descriptor, b"", False

    def next(self) -> str | None:
        """Return the next line without its newline; `None` at the end of input."""
        while b"\n" not in self._pending and not self._has_ended:
            self._read()
        line, newline, self._pending = self._pending.partition(b"\n")
        return line.decode(errors="replace").strip() if newline else None

    def is_there(self) -> bool:
        """Return whether a line, or the end of input, has arrived."""
        while b"\n" not in self._pending and not self._has_ended and select.select([self._descriptor], [], [], 0)[0]:
            self._read()
        return self._has_ended or b"\n" in self._pending

    def _read(self) -> None:
        chunk = os.read(self._descriptor, 4096)
        self._pending += chunk
        self._has_ended = not chunk


def occupy(device: torch.device, blocks: int, threads: int, lines: Lines) -> None:
    """Run kernels with these blocks one after another until a line arrives; check the last kernel's results."""
    import torch

    properties = torch.cuda.get_device_properties(device)
    is_full = blocks * threads >= properties.multi_processor_count * properties.max_threads_per_multi_processor
    out = torch.full((blocks * threads * (_WAVES if is_full else 1),), torch.nan, device=device)
    _seconds(out, threads, _TRIED_ROUNDS)  # the first launch compiles the kernel
    rounds = _TRIED_ROUNDS * _KERNEL_S / _seconds(out, threads, _TRIED_ROUNDS)
    rounds = _ROUNDS_BY * round(min(max(rounds, _TRIED_ROUNDS), _MOST_ROUNDS) / _ROUNDS_BY)
    under_way: deque[torch.cuda.Event] = deque()
    began, num_launches = time.monotonic(), 0
    _tell(running={"blocks": blocks, "threads": threads, "rounds": rounds})
    while not lines.is_there():
        _launch(out, threads, rounds)
        num_launches += 1
        under_way.append(torch.cuda.Event())  # type: ignore[no-untyped-call]
        under_way[-1].record()
        if len(under_way) > _AHEAD:
            under_way.popleft().synchronize()
    torch.cuda.synchronize(device)
    kernel_s = (time.monotonic() - began) / max(1, num_launches)
    index = torch.arange(len(out), device=device)
    num_wrong = int((out != 1 - (index % 1024) / 1024).sum())
    _tell(done={"launches": num_launches, "kernel_s": kernel_s, "num_wrong": num_wrong})


def _launch(out: torch.Tensor, threads: int, rounds: int) -> None:
    import triton.language as tl

    from workloads.rates import kernels

    kernels.multiply_add[(len(out) // threads,)](
        out,
        _FACTOR,
        _SUMMAND,
        rounds,
        dtype=tl.float32,
        packed=False,
        block=threads,
        unrolled=_UNROLLED,
        num_warps=threads // WARP,
    )


def _seconds(out: torch.Tensor, threads: int, rounds: int) -> float:
    import torch

    began = time.perf_counter()
    _launch(out, threads, rounds)
    torch.cuda.synchronize(out.device)
    return time.perf_counter() - began


def _tell(**event: object) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
