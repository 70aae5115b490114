"""The readings of a simulated GPU's sensors and counters, for the simulated NVML, nvidia-smi and dcgmi.

A simulated GPU has no sensor. Its machine may have *sources* (`State.sources`): objects that provide readings, in order
of precedence. Without a source, the driver returns "not supported".

A source is an object of a class with keyword options and the method `Readings.read`. The state file names the class in
a `Spec`, from which every process that shows the machine builds the source once. A source may cache values, but a
reading must depend only on the options and arguments, so that it is the same in every process.

`Occupied` models the counters of a GPU during the kernels of a self-test, of which none runs. In the model, each block
has a separate multiprocessor while there are enough multiprocessors; all blocks run all the time, and nothing else
runs.
"""

from __future__ import annotations

import enum
import functools
import time
from dataclasses import dataclass
from typing import Protocol

from pipeline.base.system import factory
from pipeline.base.system.factory import Spec
from pipeline.simulation.machine import queries
from pipeline.simulation.machine.state_file import Gpu, GpuInstance, State


class Quantity(enum.StrEnum):
    """A quantity that can be read; its value is the field's name in a listener, with the unit.

    Ratios exist for the whole GPU and for each GPU instance. They are means since the previous reading, between 0 and
    1, where 1 is the maximum of the GPU or of the instance. All other quantities exist only for the whole GPU. Energy
    is a counter that never decreases. `throttle_reasons_bits` is the bit mask of nvml.h (nvmlClocksEventReason*).
    """

    POWER = "power_w"
    ENERGY = "energy_j"
    SM_CLOCK = "sm_clock_mhz"
    MEMORY_CLOCK = "memory_clock_mhz"
    TEMPERATURE = "temperature_c"
    GPU_UTILIZATION = "utilization_gpu_pct"
    MEMORY_UTILIZATION = "utilization_memory_pct"
    THROTTLE_REASONS = "throttle_reasons_bits"
    PERFORMANCE_STATE = "pstate"
    GRACT = "gract_ratio"
    SMACT = "smact_ratio"
    SM_OCCUPANCY = "smocc_ratio"
    TENSOR = "tensor_active_ratio"
    DRAM = "dram_active_ratio"
    FP64 = "fp64_active_ratio"
    FP32 = "fp32_active_ratio"
    FP16 = "fp16_active_ratio"
    PCIE_OUT = "pcie_tx_mib_per_s"
    PCIE_IN = "pcie_rx_mib_per_s"
    NVLINK_OUT = "nvlink_tx_mib_per_s"
    NVLINK_IN = "nvlink_rx_mib_per_s"


class Readings(Protocol):
    """A source of readings."""

    def read(self, quantity: Quantity, gpu: Gpu, instance: GpuInstance | None, t_ns: int) -> float | None:
        """Return the reading of a GPU or GPU instance at a given time; `None` if the source does not have it."""


def read(
    state: State, index: int, quantity: Quantity, instance_id: int | None = None, t_ns: int | None = None
) -> float | None:
    """Return the reading of a GPU or GPU instance, by default now; `None` if no source has it."""
    gpu = state.gpus[index]
    instance = None if instance_id is None else queries.instance_of(gpu, instance_id)
    at_ns = time.monotonic_ns() if t_ns is None else t_ns
    for spec in state.sources:
        value = _source(spec).read(quantity, gpu, instance, at_ns)
        if value is not None:
            return value
    return None


@functools.lru_cache(maxsize=8)
def _source(spec: Spec) -> Readings:
    source: Readings = factory.build_object(spec)
    return source


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
