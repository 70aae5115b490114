"""The GPM functions of the library beneath pynvml: samples can be taken, but no counter of a unit has a value.

Nobody could know what the units of a GPU do that is not there, so each metric is answered as not supported.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml

from pipeline.simulation.machine import codes, queries
from pipeline.simulation.machine.codes import DriverError
from pipeline.simulation.machine.state import Gpu
from pipeline.simulation.nvml.calls import Calls, answers, number, pointee

# Source: nvml.h: plain numbers, unlike the versions of most structures, which have the size in them.
_SUPPORT_VERSION, _METRICS_VERSION = 1, 1
# Source: nvml.h: two samples that make a value must be further apart.
_APART_NS = 100_000_000
# Source: nvml.h: GPM came with Hopper.
_WITHOUT_COUNTERS = frozenset({"Ampere"})


@dataclass(slots=True)
class _Sample:
    """Room for one reading: when it was taken, and of what; `None` as long as nothing was."""

    structure: Any = field(default_factory=pynvml.struct_c_nvmlGpmSample_t)
    taken_ns: int | None = None
    subject: tuple[Any, ...] | None = None


class GpmCalls(Calls):
    """What NVML offers on GPM."""

    def __init__(self, state_file: Path) -> None:
        super().__init__(state_file)
        self._samples: dict[int, _Sample] = {}

    @answers("nvmlGpmQueryDeviceSupport")
    def _has_counters(self, handle: Any, support: Any) -> None:
        target = pointee(support)
        if target.version != _SUPPORT_VERSION:
            raise DriverError(codes.VERSION_MISMATCH)
        target.isSupportedDevice = int(_has_gpm(self.gpu(handle)))

    @answers("nvmlGpmSampleAlloc")
    def _allocate_sample(self, sample: Any) -> None:
        room = _Sample()
        self._samples[ctypes.addressof(room.structure)] = room
        pointee(sample).contents = room.structure

    @answers("nvmlGpmSampleFree")
    def _free_sample(self, sample: Any) -> None:
        del self._samples[ctypes.addressof(self._sample(sample).structure)]

    @answers("nvmlGpmSampleGet")
    def _take_sample(self, handle: Any, sample: Any) -> None:
        self._take(self.gpu(handle), sample, self.meaning(handle, "gpu", "mig"))

    @answers("nvmlGpmMigSampleGet")
    def _take_instance_sample(self, handle: Any, instance_id: Any, sample: Any) -> None:
        index, gpu = self.whole_gpu(handle)
        self._take(gpu, sample, ("gi", index, queries.instance_of(gpu, number(instance_id)).id))

    @answers("nvmlGpmMetricsGet")
    def _metrics(self, request: Any) -> None:
        query = pointee(request)
        if query.version != _METRICS_VERSION:
            raise DriverError(codes.VERSION_MISMATCH)
        first, second = self._sample(query.sample1), self._sample(query.sample2)
        if first.taken_ns is None or second.taken_ns is None or first.subject != second.subject:
            raise DriverError(codes.INVALID_ARGUMENT)
        if second.taken_ns - first.taken_ns <= _APART_NS:
            raise DriverError(codes.INVALID_ARGUMENT)
        for metric in query.metrics[: query.numMetrics]:
            metric.nvmlReturn = codes.NOT_SUPPORTED

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


def _has_gpm(gpu: Gpu) -> bool:
    return queries.model_of(gpu).architecture not in _WITHOUT_COUNTERS
