"""Sensors, counters (GPM), health and settings of a GPU in the library that pynvml calls.

Sensors (power, energy, clocks, temperature, utilisation, throttling) and settings exist only for whole GPUs; for MIG
devices, they are "not supported". Sensors and counters without a source of readings are "not supported" too. Health and
settings are stored in the machine's file.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from pipeline.simulation.machine import codes, queries, readings
from pipeline.simulation.machine.codes import DriverError
from pipeline.simulation.machine.readings import Quantity
from pipeline.simulation.machine.state_file import Gpu, Process, Settings, State
from pipeline.simulation.nvml.calls import Calls, fill, number, pointee

_CLOCKS = {pynvml.NVML_CLOCK_SM: Quantity.SM_CLOCK, pynvml.NVML_CLOCK_MEM: Quantity.MEMORY_CLOCK}
MILLI = 1000  # NVML counts power in mW and energy in mJ
_VOLATILE, _UNCORRECTED = 0, 1  # Source: nvml.h, nvmlEccCounterType_t and nvmlMemoryErrorType_t
_RECOVERY_ACTION = 230  # Source: nvml.h, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION

_SAMPLE_US = 166_667  # Source: nvml.h, sampling period of utilisation: 1/6 s to 1 s

_Number = TypeVar("_Number", int, float)


class SensorCalls(Calls):
    """The functions of sensors, health and settings."""

    def _nvmlDeviceGetClockInfo(self, handle: Any, clock: Any, mhz: Any) -> None:
        if (quantity := _CLOCKS.get(number(clock))) is None:
            raise DriverError(codes.NOT_SUPPORTED)
        fill(mhz, round(self.read(handle, quantity)))

    def _nvmlDeviceGetTemperature(self, handle: Any, sensor: Any, celsius: Any) -> None:
        if number(sensor) != pynvml.NVML_TEMPERATURE_GPU:
            raise DriverError(codes.INVALID_ARGUMENT)
        fill(celsius, round(self.read(handle, Quantity.TEMPERATURE)))

    def _nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> None:
        # Utilisation is not supported for a GPU in MIG mode. Source: nvml.h.
        if self.gpu(handle).mig_current:
            raise DriverError(codes.NOT_SUPPORTED)
        target = pointee(rates)
        target.gpu = round(self.read(handle, Quantity.GPU_UTILIZATION))
        target.memory = round(self.read(handle, Quantity.MEMORY_UTILIZATION))

    def _nvmlDeviceGetProcessUtilization(self, handle: Any, array: Any, count: Any, since_us: Any) -> None:
        processes, share, t_us = self._sample_processes(handle, number(since_us))
        room = pointee(count).value
        fill(count, len(processes))
        if array is None or room < len(processes):
            raise DriverError(codes.INSUFFICIENT_SIZE)
        _fill_utilization(array, processes, share, t_us)

    def _nvmlDeviceGetProcessesUtilizationInfo(self, handle: Any, info: Any) -> None:
        target = pointee(info)
        if target.version != pynvml.ProcessesUtilizationInfo_v1:
            raise DriverError(codes.VERSION_MISMATCH)
        processes, share, t_us = self._sample_processes(handle, target.lastSeenTimeStamp)
        room, target.processSamplesCount = target.processSamplesCount, len(processes)
        if room < len(processes):
            raise DriverError(codes.INSUFFICIENT_SIZE)
        _fill_utilization(target.procUtilArray, processes, share, t_us)

    def _sample_processes(self, handle: Any, since_us: int) -> tuple[list[Process], tuple[int, int], int]:
        """Return processes, their utilisation in per cent (multiprocessors, memory), and the time of the sample.

        Processes have equal shares. Of MPS, only the server is listed. Source: H100, driver 580.159.04.
        """
        gpu = self.gpu(handle)
        if gpu.mig_current:
            raise DriverError(codes.NOT_SUPPORTED)
        quantities = (Quantity.GPU_UTILIZATION, Quantity.MEMORY_UTILIZATION)
        busy = [self.read(handle, quantity) for quantity in quantities]
        processes = [process for process in gpu.processes if process.kind == "C"]
        t_us = time.time_ns() // 1000 // _SAMPLE_US * _SAMPLE_US
        if not processes or t_us <= since_us:
            raise DriverError(codes.NOT_FOUND)
        sm, memory = (round(percent / len(processes)) for percent in busy)
        return processes, (sm, memory), t_us

    def _nvmlDeviceGetTotalEccErrors(self, handle: Any, kind: Any, counter: Any, count: Any) -> int:
        health = self.gpu(handle).health
        if number(kind) != _UNCORRECTED:
            return codes.NOT_SUPPORTED
        is_now = number(counter) == _VOLATILE
        fill(count, health.ecc_uncorrected_now if is_now else health.ecc_uncorrected_ever)
        return 0

    def _nvmlDeviceGetFieldValues(self, handle: Any, count: Any, values: Any) -> None:
        action = self.gpu(handle).health.recovery_action
        for value in pointee(values)[: number(count)]:
            is_known = value.fieldId == _RECOVERY_ACTION
            value.nvmlReturn = 0 if is_known else codes.NOT_SUPPORTED
            if is_known:
                value.valueType, value.value.uiVal = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, action

    def _nvmlDeviceGetApplicationsClock(self, handle: Any, clock: Any, mhz: Any) -> None:
        settings = self.settings(handle)
        clocks = {
            pynvml.NVML_CLOCK_GRAPHICS: settings.graphics_clock_mhz,
            pynvml.NVML_CLOCK_MEM: settings.memory_clock_mhz,
        }
        fill(mhz, require(clocks.get(number(clock))))

    def settings(self, handle: Any) -> Settings:
        """Return the administrator's settings of a whole GPU."""
        return self.whole_gpu(handle)[1].settings

    def read(self, handle: Any, quantity: Quantity) -> float:
        """Return a reading of a whole GPU."""
        if self.is_mig_device(handle):
            raise DriverError(codes.NOT_SUPPORTED)
        return require(readings.read(self.driver.state(), self.whole_gpu(handle)[0], quantity))


def _fill_utilization(array: Any, processes: Sequence[Process], share: tuple[int, int], t_us: int) -> None:
    for position, process in enumerate(processes):
        entry = array[position]
        entry.pid, entry.timeStamp = process.pid, t_us
        entry.smUtil, entry.memUtil = share


def require(reading: _Number | None) -> _Number:
    """Return a reading that exists; without one, the function is not supported."""
    if reading is None:
        raise DriverError(codes.NOT_SUPPORTED)
    return reading


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
