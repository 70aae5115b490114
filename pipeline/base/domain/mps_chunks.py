"""Chunks of multiprocessors, of which static partitions of MPS consist.

The number of chunks depends on the positions of the multiprocessors on the chip. Sources: NVIDIA's MPS documentation,
release 615 (Static SM Partitioning), with a GPU of 92 multiprocessors as example; public programs for H100s
(sgl-project/sglang-omni, `mps/control.py`); the reported chunk of an L40S (8.9) has four multiprocessors.
"""

from __future__ import annotations

_SIZE = (((9, 0), 8), ((8, 0), 4))  # by lowest compute capability
_REPORTED = {(8, 132): 15, (8, 92): 10}  # number of chunks by size and number of multiprocessors


def find_size(compute_capability: tuple[int, ...]) -> int | None:
    """Return the number of multiprocessors in a chunk; `None` before Ampere, which has no static partitions."""
    return next((size for since, size in _SIZE if compute_capability >= since), None)


def count_chunks(size: int, multiprocessors: int) -> int:
    """Return the reported number of chunks on a GPU; if none was reported, the upper limit."""
    return _REPORTED.get((size, multiprocessors), multiprocessors // size)
