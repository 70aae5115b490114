"""Load a GPU with a known number of computing thread blocks. For `python -m pipeline.gpu selftest`.

Reads standard input: a line `BLOCKS THREADS` begins a load, and the next line, `stop` or the end of input ends it. By
hand: start it, type `132 1024`, then `stop`. Writes one JSON object per line: the device, then for each load `running`
as soon as it runs, and `done` with the number of wrong results.
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

if __name__ == "__main__":  # when run by its path: workloads/__init__.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from workloads import program

if TYPE_CHECKING:
    import torch

WARP = 32
"""Threads that a GPU runs together: the minimum that Triton launches, and the unit that counters count."""

_THREADS = tuple(WARP << doubled for doubled in range(6))

_KERNEL_S = 0.05
"""Duration of a kernel, long enough to neglect the microseconds between two kernels."""

_ROUNDS_BY, _TRIED_ROUNDS, _MOST_ROUNDS = 16, 2000, 1 << 30
"""Rounds per kernel: Triton compiles one kernel for all multiples of 16, and others for other numbers."""

_AHEAD = 3
"""Maximum number of kernels issued ahead, so that the device never waits for the host."""

_WAVES = 64
"""Blocks per slot of a full device. Blocks compete for an SM's arithmetic, and the oldest ends first: with one block
per slot, slots became empty, and an H200 showed an occupancy of 0.63."""

_UNROLLED, _FACTOR, _SUMMAND = 32, -1.0, 1.0
"""As in `rates.operations`: x becomes exactly 1 - x after an odd number of steps."""


def main() -> None:
    """Execute the commands from standard input."""
    import torch

    parser = program.Parser(description="Carry out loads from standard input: BLOCKS THREADS begins one, stop ends it.")
    parser.add_argument("--device", default="cuda", choices=["auto", "cuda"])
    parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("torch finds no GPU")
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
            parser.error(f"{line!r} is not BLOCKS THREADS, with one of {_THREADS} as threads")
        occupy(device, numbers[0], numbers[1], lines)
        lines.next()


class Lines:
    """The lines of a descriptor, with a check whether a line has come."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._pending, self._has_ended = descriptor, b"", False

    def next(self) -> str | None:
        """Return the next line, without its end; `None` at the end."""
        while b"\n" not in self._pending and not self._has_ended:
            self._read()
        line, newline, self._pending = self._pending.partition(b"\n")
        return line.decode(errors="replace").strip() if newline else None

    def is_there(self) -> bool:
        """Return whether a line, or the end of input, has come."""
        while b"\n" not in self._pending and not self._has_ended and select.select([self._descriptor], [], [], 0)[0]:
            self._read()
        return self._has_ended or b"\n" in self._pending

    def _read(self) -> None:
        chunk = os.read(self._descriptor, 4096)
        self._pending += chunk
        self._has_ended = not chunk


def occupy(device: torch.device, blocks: int, threads: int, lines: Lines) -> None:
    """Keep the device busy with consecutive kernels of these blocks until a line comes.

    Then check the results of the last kernel.
    """
    import torch

    properties = torch.cuda.get_device_properties(device)
    is_full = blocks * threads >= properties.multi_processor_count * properties.max_threads_per_multi_processor
    out = torch.full((blocks * threads * (_WAVES if is_full else 1),), torch.nan, device=device)
    _seconds(out, threads, _TRIED_ROUNDS)  # compiles the kernel
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
