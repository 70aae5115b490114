"""Sensors, health and settings of a GPU in the library that pynvml calls.

Sensors (power, energy, clocks, temperature, utilisation, throttling) and settings exist only for whole GPUs; for MIG
devices, they are "not supported". Sensors without a source of readings are "not supported" too. Health and settings are
stored in the machine's file.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, TypeVar

import pynvml

from pipeline.simulation.machine import codes, readings
from pipeline.simulation.machine.codes import DriverError
from pipeline.simulation.machine.readings import Quantity
from pipeline.simulation.machine.state_file import Process, Settings
from pipeline.simulation.nvml.calls import Calls, fill, number, pointee

_CLOCKS = {pynvml.NVML_CLOCK_SM: Quantity.SM_CLOCK, pynvml.NVML_CLOCK_MEM: Quantity.MEMORY_CLOCK}
_MILLI = 1000  # NVML counts power in mW and energy in mJ
_VOLATILE, _UNCORRECTED = 0, 1  # Source: nvml.h, nvmlEccCounterType_t and nvmlMemoryErrorType_t
_RECOVERY_ACTION = 230  # Source: nvml.h, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION

_SAMPLE_US = 166_667  # Source: nvml.h, sampling period of utilisation: 1/6 s to 1 s

_Number = TypeVar("_Number", int, float)


class SensorCalls(Calls):
    """The functions of sensors, health and settings."""

    def _nvmlDeviceGetPowerUsage(self, handle: Any, milliwatts: Any) -> None:
        fill(milliwatts, round(self._read(handle, Quantity.POWER) * _MILLI))

    def _nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, millijoules: Any) -> None:
        fill(millijoules, round(self._read(handle, Quantity.ENERGY) * _MILLI))

    def _nvmlDeviceGetClockInfo(self, handle: Any, clock: Any, mhz: Any) -> None:
        if (quantity := _CLOCKS.get(number(clock))) is None:
            raise DriverError(codes.NOT_SUPPORTED)
        fill(mhz, round(self._read(handle, quantity)))

    def _nvmlDeviceGetTemperature(self, handle: Any, sensor: Any, celsius: Any) -> None:
        if number(sensor) != pynvml.NVML_TEMPERATURE_GPU:
            raise DriverError(codes.INVALID_ARGUMENT)
        fill(celsius, round(self._read(handle, Quantity.TEMPERATURE)))

    def _nvmlDeviceGetUtilizationRates(self, handle: Any, rates: Any) -> None:
        # Utilisation is not supported for a GPU in MIG mode. Source: nvml.h.
        if self.gpu(handle).mig_current:
            raise DriverError(codes.NOT_SUPPORTED)
        target = pointee(rates)
        target.gpu = round(self._read(handle, Quantity.GPU_UTILIZATION))
        target.memory = round(self._read(handle, Quantity.MEMORY_UTILIZATION))

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
        busy = [self._read(handle, quantity) for quantity in quantities]
        processes = [process for process in gpu.processes if process.kind == "C"]
        t_us = time.time_ns() // 1000 // _SAMPLE_US * _SAMPLE_US
        if not processes or t_us <= since_us:
            raise DriverError(codes.NOT_FOUND)
        sm, memory = (round(percent / len(processes)) for percent in busy)
        return processes, (sm, memory), t_us

    def _nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any, bits: Any) -> None:
        fill(bits, int(self._read(handle, Quantity.THROTTLE_REASONS)))

    def _nvmlDeviceGetPerformanceState(self, handle: Any, state: Any) -> None:
        fill(state, int(self._read(handle, Quantity.PERFORMANCE_STATE)))

    def _nvmlDeviceGetTotalEccErrors(self, handle: Any, kind: Any, counter: Any, count: Any) -> int:
        health = self.gpu(handle).health
        if number(kind) != _UNCORRECTED:
            return codes.NOT_SUPPORTED
        is_now = number(counter) == _VOLATILE
        fill(count, health.ecc_uncorrected_now if is_now else health.ecc_uncorrected_ever)
        return 0

    def _nvmlDeviceGetRemappedRows(
        self, handle: Any, correctable: Any, uncorrectable: Any, pending: Any, failed: Any
    ) -> None:
        health = self.gpu(handle).health
        fill(correctable, health.rows_remapped_correctable)
        fill(uncorrectable, health.rows_remapped_uncorrectable)
        fill(pending, int(health.is_remap_pending))
        fill(failed, int(health.has_remap_failed))

    def _nvmlDeviceGetFieldValues(self, handle: Any, count: Any, values: Any) -> None:
        action = self.gpu(handle).health.recovery_action
        for value in pointee(values)[: number(count)]:
            is_known = value.fieldId == _RECOVERY_ACTION
            value.nvmlReturn = 0 if is_known else codes.NOT_SUPPORTED
            if is_known:
                value.valueType, value.value.uiVal = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, action

    def _nvmlDeviceGetEnforcedPowerLimit(self, handle: Any, milliwatts: Any) -> None:
        fill(milliwatts, _require(self._settings(handle).power_limit_w) * _MILLI)

    def _nvmlDeviceGetEccMode(self, handle: Any, current: Any, pending: Any) -> None:
        is_on = self._settings(handle).is_ecc_on
        fill(current, int(is_on))
        fill(pending, int(is_on))

    def _nvmlDeviceGetApplicationsClock(self, handle: Any, clock: Any, mhz: Any) -> None:
        settings = self._settings(handle)
        clocks = {
            pynvml.NVML_CLOCK_GRAPHICS: settings.graphics_clock_mhz,
            pynvml.NVML_CLOCK_MEM: settings.memory_clock_mhz,
        }
        fill(mhz, _require(clocks.get(number(clock))))

    def _settings(self, handle: Any) -> Settings:
        return self.whole_gpu(handle)[1].settings

    def _read(self, handle: Any, quantity: Quantity) -> float:
        if self.is_mig_device(handle):
            raise DriverError(codes.NOT_SUPPORTED)
        return _require(readings.read(self.driver.state(), self.whole_gpu(handle)[0], quantity))


def _fill_utilization(array: Any, processes: Sequence[Process], share: tuple[int, int], t_us: int) -> None:
    for position, process in enumerate(processes):
        entry = array[position]
        entry.pid, entry.timeStamp = process.pid, t_us
        entry.smUtil, entry.memUtil = share


def _require(reading: _Number | None) -> _Number:
    if reading is None:
        raise DriverError(codes.NOT_SUPPORTED)
    return reading
