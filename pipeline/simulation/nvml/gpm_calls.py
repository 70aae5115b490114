"""The GPM functions of the library that pynvml calls.

Counters come from the machine's sources of readings; without a source, no metric is supported.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml

from pipeline.simulation.machine import codes, queries, readings
from pipeline.simulation.machine.codes import DriverError
from pipeline.simulation.machine.readings import Quantity
from pipeline.simulation.machine.state_file import Gpu, State
from pipeline.simulation.nvml.calls import Calls, number, pointee

# These versions are plain numbers, whereas the versions of most structures also encode the size. Source: nvml.h.
_SUPPORT_VERSION, _METRICS_VERSION = 1, 1
# The two samples of a value must be at least this far apart. Source: nvml.h.
_APART_NS = 100_000_000
# GPM exists from Hopper on. Source: nvml.h.
_WITHOUT_COUNTERS = frozenset({"Ampere"})
# Each metric's quantity, and the factor from this project's unit to NVML's: ratios are in per cent, traffic is in
# MiB/s. Source: nvml.h.
_PERCENT = 100
_METRICS = {
    pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL: (Quantity.GRACT, _PERCENT),
    pynvml.NVML_GPM_METRIC_SM_UTIL: (Quantity.SMACT, _PERCENT),
    pynvml.NVML_GPM_METRIC_SM_OCCUPANCY: (Quantity.SM_OCCUPANCY, _PERCENT),
    pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: (Quantity.TENSOR, _PERCENT),
    pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: (Quantity.DRAM, _PERCENT),
    pynvml.NVML_GPM_METRIC_FP64_UTIL: (Quantity.FP64, _PERCENT),
    pynvml.NVML_GPM_METRIC_FP32_UTIL: (Quantity.FP32, _PERCENT),
    pynvml.NVML_GPM_METRIC_FP16_UTIL: (Quantity.FP16, _PERCENT),
    pynvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC: (Quantity.PCIE_OUT, 1),
    pynvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: (Quantity.PCIE_IN, 1),
    pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC: (Quantity.NVLINK_OUT, 1),
    pynvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC: (Quantity.NVLINK_IN, 1),
}


@dataclass(slots=True)
class _Sample:
    """A buffer for one sample; its time and subject are `None` until a sample is taken."""

    structure: Any = field(default_factory=pynvml.struct_c_nvmlGpmSample_t)
    taken_ns: int | None = None
    subject: tuple[Any, ...] | None = None


class GpmCalls(Calls):
    """The functions of GPM."""

    def __init__(self, state_file: Path) -> None:
        super().__init__(state_file)
        self._samples: dict[int, _Sample] = {}

    def _nvmlGpmQueryDeviceSupport(self, handle: Any, support: Any) -> None:
        target = pointee(support)
        if target.version != _SUPPORT_VERSION:
            raise DriverError(codes.VERSION_MISMATCH)
        target.isSupportedDevice = int(_has_gpm(self.gpu(handle)))

    def _nvmlGpmSampleAlloc(self, sample: Any) -> None:
        room = _Sample()
        self._samples[ctypes.addressof(room.structure)] = room
        pointee(sample).contents = room.structure

    def _nvmlGpmSampleFree(self, sample: Any) -> None:
        del self._samples[ctypes.addressof(self._sample(sample).structure)]

    def _nvmlGpmSampleGet(self, handle: Any, sample: Any) -> None:
        self._take(self.gpu(handle), sample, self.meaning(handle, "gpu", "mig"))

    def _nvmlGpmMigSampleGet(self, handle: Any, instance_id: Any, sample: Any) -> None:
        index, gpu = self.whole_gpu(handle)
        self._take(gpu, sample, ("gi", index, queries.instance_of(gpu, number(instance_id)).id))

    def _nvmlGpmMetricsGet(self, request: Any) -> None:
        query = pointee(request)
        if query.version != _METRICS_VERSION:
            raise DriverError(codes.VERSION_MISMATCH)
        first, second = self._sample(query.sample1), self._sample(query.sample2)
        if first.taken_ns is None or second.taken_ns is None or first.subject != second.subject:
            raise DriverError(codes.INVALID_ARGUMENT)
        if second.taken_ns - first.taken_ns <= _APART_NS:
            raise DriverError(codes.INVALID_ARGUMENT)
        state = self.driver.state()
        for metric in query.metrics[: query.numMetrics]:
            value = _value(state, metric.metricId, second)
            metric.nvmlReturn = codes.NOT_SUPPORTED if value is None else codes.SUCCESS
            if value is not None:
                metric.value = value

    def _take(self, gpu: Gpu, sample: Any, subject: tuple[Any, ...]) -> None:
        if not _has_gpm(gpu):
            raise DriverError(codes.NOT_SUPPORTED)
        room = self._sample(sample)
        room.taken_ns, room.subject = time.monotonic_ns(), subject

    def _sample(self, sample: Any) -> _Sample:
        room = self._samples.get(ctypes.addressof(sample.contents)) if sample else None
        if room is None:
            raise DriverError(codes.INVALID_ARGUMENT)
        return room


def _value(state: State, metric_id: int, sample: _Sample) -> float | None:
    """Return a counter, in NVML's units, for the subject and time of a sample; `None` if no source has it."""
    if metric_id not in _METRICS or sample.subject is None:
        return None
    quantity, scale = _METRICS[metric_id]
    kind, index, *ids = sample.subject
    if kind == "mig" and not _has_whole_instance(state.gpus[index], *ids):
        return None
    value = readings.read(state, index, quantity, ids[0] if ids else None, sample.taken_ns)
    return None if value is None else value * scale


def _has_whole_instance(gpu: Gpu, instance_id: int, ci_id: int) -> bool:
    instance = queries.instance_of(gpu, instance_id)
    slices = queries.profile_of(gpu, instance).compute_slices
    return any(ci.id == ci_id and ci.size == slices for ci in instance.compute_instances)


def _has_gpm(gpu: Gpu) -> bool:
    return queries.model_of(gpu).architecture not in _WITHOUT_COUNTERS
