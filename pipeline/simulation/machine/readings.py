"""The readings of the sensors and counters of a simulated GPU, for its NVML, its nvidia-smi and its dcgmi.

A simulated GPU has no sensor. Its machine may name *sources* (`State.sources`), objects that answer instead, by
precedence. Without one, the driver answers "not supported".

A source is a class that takes its options as keyword arguments, offers `Readings.read`, and is named by a `Spec` in
the state file, so that every process that shows the machine builds the same one. It is built once a process and may
cache, but a reading must depend on its options and its arguments alone: it is the same in every process.
"""

from __future__ import annotations

import enum
import functools
import time
from typing import Protocol

from pipeline.base.system import factory
from pipeline.base.system.factory import Spec
from pipeline.simulation.machine import queries
from pipeline.simulation.machine.state_file import Gpu, GpuInstance, State


class Quantity(enum.StrEnum):
    """A quantity that can be read, named with its unit as the listeners record it.

    Of a whole GPU and of its GPU instances are the ratios: between 0 and 1, means over the time since the reading
    before, relative to the instance if it is of one. Everything else is of the whole GPU. Energy is a counter that
    never goes back. `throttle_reasons_bits` is the bit mask of nvml.h (nvmlClocksEventReason*).
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
        """Return the reading of a GPU, or of an instance of it, at an instant; `None` if unknown."""


def read(
    state: State, index: int, quantity: Quantity, instance_id: int | None = None, t_ns: int | None = None
) -> float | None:
    """Return the reading of a GPU, or of an instance of it, now or at an instant; `None` if no source knows it."""
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
