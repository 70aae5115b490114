"""The readings of a simulated GPU's sensors and counters, for the simulated NVML, nvidia-smi and dcgmi.

A simulated GPU has no sensor. Its machine may have *sources* (`State.sources`): objects that provide readings, in order
of precedence. Without a source, the driver returns "not supported".

A source is an object of a class with keyword options and the method `Readings.read`. The state file names the class in
a `Spec`, from which every process that shows the machine builds the source once. A source may cache values, but a
reading must depend only on the options and arguments, so that it is the same in every process.
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
