"""A source of readings: modelled counters of a GPU during the kernels of a self-test.

No kernel runs. In the model, each block has a separate multiprocessor while there are enough multiprocessors; all
blocks run all the time, and nothing else runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.simulation.machine import queries
from pipeline.simulation.machine.readings import Quantity
from pipeline.simulation.machine.state_file import Gpu, GpuInstance

WHOLE = -1
"""Value in place of a GPU instance's id if the whole GPU is loaded."""

_SWAPPED = {Quantity.GRACT: Quantity.SMACT, Quantity.SMACT: Quantity.GRACT}
_ACTIVITY = (Quantity.GRACT, Quantity.SMACT, Quantity.SM_OCCUPANCY)
# Source: CUDA C++ Programming Guide, compute capabilities: maximum threads per multiprocessor.
_FEWER_THREADS = frozenset({(8, 6), (8, 9), (12, 0)})


def threads_each(gpu: Gpu) -> int:
    """Return the maximum threads per multiprocessor of the GPU."""
    return 1536 if queries.model_of(gpu).compute_capability in _FEWER_THREADS else 2048


@dataclass(frozen=True, slots=True)
class Occupied:
    """The source of readings.

    Attributes:
        loads: for each load, the id of its GPU instance (or `WHOLE`), the number of blocks, the threads per block, and
            the number of multiprocessors that the blocks use.
    """

    loads: tuple[tuple[int, int, int, int], ...]

    def read(self, quantity: Quantity, gpu: Gpu, instance: GpuInstance | None, t_ns: int) -> float | None:
        if quantity is Quantity.MEMORY_UTILIZATION:
            return 0.0
        if quantity is Quantity.GPU_UTILIZATION:
            is_loaded = any(blocks for _, blocks, _, _ in self.loads)
            return 100.0 if is_loaded and gpu.health.counter_fault != "stuck" else 0.0
        if quantity not in _ACTIVITY:
            return None
        if gpu.health.counter_fault == "swapped":
            quantity = _SWAPPED.get(quantity, quantity)
        if instance is not None or not gpu.mig_current:
            return self._read_instance(quantity, gpu, instance)
        # A GPU's value is the mean over its instances, weighted by their shares of the GPU's multiprocessors. Source:
        # DCGM user guide.
        total, shares = queries.model_of(gpu).num_multiprocessors, 0.0
        for gpu_instance in gpu.instances:
            share, count = self._read_instance(quantity, gpu, gpu_instance), _multiprocessors(gpu, gpu_instance)
            if total is None or share is None or count is None:
                return None
            shares += share * count / total
        return shares

    def _read_instance(self, quantity: Quantity, gpu: Gpu, instance: GpuInstance | None) -> float | None:
        counted = _multiprocessors(gpu, instance)
        if counted is None:
            return None
        if gpu.health.counter_fault == "stuck":
            return 0.0
        value = 0.0
        for gi_id, blocks, threads, reached in self.loads:
            if gi_id == (WHOLE if instance is None else instance.id) and blocks:
                resident = min(blocks, reached * (threads_each(gpu) // threads))
                value = {
                    Quantity.GRACT: 1.0,
                    Quantity.SMACT: min(blocks, reached) / counted,
                    Quantity.SM_OCCUPANCY: resident * threads / (counted * threads_each(gpu)),
                }[quantity]
        if gpu.health.counter_fault == "capped" and instance is not None:
            counts = [number for other in gpu.instances if (number := _multiprocessors(gpu, other)) is not None]
            return min(value, min(counts) / counted)
        return value


def _multiprocessors(gpu: Gpu, instance: GpuInstance | None) -> int | None:
    if instance is None:
        return queries.model_of(gpu).num_multiprocessors
    return queries.profile_of(gpu, instance).num_multiprocessors
