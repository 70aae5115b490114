"""A process that hosts jobs, each on a CUDA stream of its own: `python workloads/host_streams.py FILE` (`tenants.py`).

A tenant's stream is the current stream of its thread, also for its backward passes, and the stream on which it captures
graphs. So tenants share no block of torch's memory, no workspace of cuBLAS, and no random numbers of graphs:

- torch's allocator reuses a block only on the stream for which it was allocated.
- A workspace of cuBLAS belongs to a handle and a stream. By default, torch captures all graphs of a process on one
  stream, so graphs that are replayed at the same time would write to one workspace.
- A graph draws random numbers from the state that torch's generator had at its capture, so each tenant gets a state.

Without a GPU, tenants are threads only.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # reason: see workloads/__init__.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from workloads import tenants

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import torch


class Streams(tenants.Place):
    """A stream of torch for each tenant."""

    def __init__(self, streams: Sequence[torch.cuda.Stream]) -> None:
        self._streams = streams
        self._known: set[int] = set()
        self._owned: dict[int, set[int]] = {}

    @contextlib.contextmanager
    def enter(self, position: int) -> Iterator[None]:
        import torch

        stream = self._streams[position]
        self._known |= _sum_memory().keys()
        torch.cuda.default_generators[0].graphsafe_set_state(torch.Generator("cuda"))
        torch.cuda.graph.default_capture_stream = stream
        with torch.cuda.stream(stream):
            yield

    def note_built(self, position: int) -> None:
        """Record the streams on which the tenant allocated memory, such as a stream of its warm-up.

        Memory that only its warm-up and its canary needed is freed, so that it is not counted as the tenant's.
        """
        import torch

        torch.cuda.empty_cache()
        self._owned[position] = {self._streams[position].cuda_stream, *(_sum_memory().keys() - self._known)}

    def measure(self, position: int) -> dict[str, float]:
        memory = _sum_memory()
        return {"memory_pool_mib": sum(memory.get(stream, 0) for stream in self._owned[position]) / 2**20}

    def works(self) -> bool:
        import torch

        try:
            for stream in self._streams:
                stream.synchronize()
            torch.cuda.synchronize()
        except RuntimeError:
            return False
        return True


def _sum_memory() -> dict[int, int]:
    """Return the bytes that torch's allocator holds for each stream, including the memory of graphs."""
    import torch

    held: dict[int, int] = {}
    for segment in torch.cuda.memory_snapshot():  # type: ignore[no-untyped-call]
        held[segment["stream"]] = held.get(segment["stream"], 0) + segment["total_size"]
    return held


def has_gpu() -> bool:
    """Return whether the orchestrator gave this process a GPU; jobs on CPUs and simulated GPUs have none."""
    return bool(os.environ.get("CUDA_VISIBLE_DEVICES"))


def make_place(options: dict[str, Any], num_tenants: int) -> tenants.Place:
    """Return streams, or threads only if there is no GPU."""
    if not has_gpu():
        return tenants.Place()
    import torch

    torch.cuda.init()  # type: ignore[no-untyped-call]
    return Streams([torch.cuda.Stream() for _ in range(num_tenants)])  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    tenants.run_tenants(make_place)
