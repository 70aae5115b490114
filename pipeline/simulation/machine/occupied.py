"""What the counters of a GPU read while the kernels of a self-test run there: a model, named as a source of readings.

Nothing runs. A block takes a multiprocessor of its own as long as there is one, all blocks run all of the time, and
nothing else does.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.simulation.machine import queries
from pipeline.simulation.machine.readings import Quantity
from pipeline.simulation.machine.state import Gpu, GpuInstance

WHOLE = -1
"""What stands for the id of a GPU instance where the whole GPU is loaded."""

_SWAPPED = {Quantity.GRACT: Quantity.SMACT, Quantity.SMACT: Quantity.GRACT}
_ACTIVITY = (Quantity.GRACT, Quantity.SMACT, Quantity.SM_OCCUPANCY)
# Source: CUDA C++ Programming Guide, compute capabilities: threads that one multiprocessor holds.
_FEWER_THREADS = frozenset({(8, 6), (8, 9), (12, 0)})


def threads_each(gpu: Gpu) -> int:
    """How many threads a multiprocessor of the GPU holds."""
    return 1536 if queries.model_of(gpu).compute_capability in _FEWER_THREADS else 2048


@dataclass(frozen=True, slots=True)
class Occupied:
    """The source.

    Attributes:
        loads: for each place, GPU instance (or `WHOLE`), blocks, threads of a block, and how many multiprocessors these
            reach.
    """

    loads: tuple[tuple[int, int, int, int], ...]

    def read(self, quantity: Quantity, gpu: Gpu, instance: GpuInstance | None, t_ns: int) -> float | None:
        """Activity, and utilisation; whatever the instant, the load is the same until the next source."""
        if quantity is Quantity.MEMORY_UTILIZATION:
            return 0.0
        if quantity is Quantity.GPU_UTILIZATION:
            return (
                100.0 if gpu.health.counter_fault != "stuck" and any(blocks for _, blocks, _, _ in self.loads) else 0.0
            )
        if quantity not in _ACTIVITY:
            return None
        if gpu.health.counter_fault == "swapped":
            quantity = _SWAPPED.get(quantity, quantity)
        if instance is not None or not gpu.mig_current:
            return self._of_place(quantity, gpu, instance)
        # Source: DCGM user guide: the GPU has the values of its instances, weighted by their share of its SMs.
        total, shares = queries.model_of(gpu).num_multiprocessors, 0.0
        for each in gpu.instances:
            value, number = self._of_place(quantity, gpu, each), queries.profile_of(gpu, each).num_multiprocessors
            if total is None or value is None or number is None:
                return None
            shares += value * number / total
        return shares

    def _of_place(self, quantity: Quantity, gpu: Gpu, instance: GpuInstance | None) -> float | None:
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
            others = [number for each in gpu.instances if (number := _multiprocessors(gpu, each)) is not None]
            return min(value, min(others) / counted)
        return value


def _multiprocessors(gpu: Gpu, instance: GpuInstance | None) -> int | None:
    if instance is None:
        return queries.model_of(gpu).num_multiprocessors
    return queries.profile_of(gpu, instance).num_multiprocessors
