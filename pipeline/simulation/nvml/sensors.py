"""The sensors of the library beneath pynvml: power, energy, clocks, temperature, utilisation, what throttles.

They are of a whole GPU; of a MIG device, and where the machine has no source of readings, they are not supported.
"""

from __future__ import annotations

from typing import Any

import pynvml

from pipeline.simulation.machine import codes, readings
from pipeline.simulation.machine.codes import DriverError
from pipeline.simulation.machine.readings import Quantity
from pipeline.simulation.nvml.calls import Calls, answers, fill, number, pointee

_CLOCKS = {pynvml.NVML_CLOCK_SM: Quantity.SM_CLOCK, pynvml.NVML_CLOCK_MEM: Quantity.MEMORY_CLOCK}
_MILLI = 1000  # NVML counts power in mW and energy in mJ


class SensorCalls(Calls):
    """What NVML offers on the sensors of a GPU."""

    @answers("nvmlDeviceGetPowerUsage")
    def _power(self, handle: Any, milliwatts: Any) -> None:
        fill(milliwatts, round(self._read(handle, Quantity.POWER) * _MILLI))

    @answers("nvmlDeviceGetTotalEnergyConsumption")
    def _energy(self, handle: Any, millijoules: Any) -> None:
        fill(millijoules, round(self._read(handle, Quantity.ENERGY) * _MILLI))

    @answers("nvmlDeviceGetClockInfo")
    def _clock(self, handle: Any, clock: Any, mhz: Any) -> None:
        if (quantity := _CLOCKS.get(number(clock))) is None:
            raise DriverError(codes.NOT_SUPPORTED)
        fill(mhz, round(self._read(handle, quantity)))

    @answers("nvmlDeviceGetTemperature")
    def _temperature(self, handle: Any, sensor: Any, celsius: Any) -> None:
        if number(sensor) != pynvml.NVML_TEMPERATURE_GPU:
            raise DriverError(codes.INVALID_ARGUMENT)
        fill(celsius, round(self._read(handle, Quantity.TEMPERATURE)))

    @answers("nvmlDeviceGetUtilizationRates")
    def _utilization(self, handle: Any, rates: Any) -> None:
        # Source: nvml.h: it cannot be asked of a GPU in MIG mode.
        if self.gpu(handle).mig_current:
            raise DriverError(codes.NOT_SUPPORTED)
        target = pointee(rates)
        target.gpu = round(self._read(handle, Quantity.GPU_UTILIZATION))
        target.memory = round(self._read(handle, Quantity.MEMORY_UTILIZATION))

    @answers("nvmlDeviceGetCurrentClocksThrottleReasons")
    def _throttle_reasons(self, handle: Any, bits: Any) -> None:
        fill(bits, int(self._read(handle, Quantity.THROTTLE_REASONS)))

    @answers("nvmlDeviceGetPerformanceState")
    def _performance_state(self, handle: Any, state: Any) -> None:
        fill(state, int(self._read(handle, Quantity.PERFORMANCE_STATE)))

    def _read(self, handle: Any, quantity: Quantity) -> float:
        if self.is_mig_device(handle):
            raise DriverError(codes.NOT_SUPPORTED)
        value = readings.read(self.driver.state(), self.whole_gpu(handle)[0], quantity)
        if value is None:
            raise DriverError(codes.NOT_SUPPORTED)
        return value
