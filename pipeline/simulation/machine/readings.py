"""The readings of the sensors and counters of a simulated GPU, for its NVML, its nvidia-smi and its dcgmi.

A simulated GPU has no sensor. Its machine may have *sources* (`State.sources`): objects that provide readings, in order
of precedence. Without one, the driver returns "not supported".

A source is a class with keyword options and the method `Readings.read`. A `Spec` in the state file names it, so that
every process that shows the machine builds the same one. It is built once per process and may cache, but a reading must
depend only on its options and arguments, so that it is the same in every process.
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
    """A quantity that can be read, with the unit that the listeners record.

    Ratios apply to the whole GPU and to GPU instances: between 0 and 1, means since the previous reading, relative to
    the instance for an instance. Everything else is for the whole GPU. Energy is a counter that never decreases.
    `throttle_reasons_bits` is the bit mask of nvml.h (nvmlClocksEventReason*).
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
        """Return the reading of a GPU, or of an instance of it, at a given time; `None` if unknown."""


def read(
    state: State, index: int, quantity: Quantity, instance_id: int | None = None, t_ns: int | None = None
) -> float | None:
    """Return the reading of a GPU, or of an instance of it, now or at a given time; `None` if no source knows it."""
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
