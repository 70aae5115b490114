"""The functions of the library beneath pynvml that tell what an administrator has set: the machine's file says it.

The settings are those of a whole GPU, and only its handle is answered.
"""

from __future__ import annotations

from typing import Any

import pynvml

from pipeline.simulation.machine import codes
from pipeline.simulation.machine.codes import DriverError
from pipeline.simulation.machine.state import Settings
from pipeline.simulation.nvml.calls import Calls, answers, fill, number

_MILLI = 1000  # NVML counts power in mW


class SettingsCalls(Calls):
    """What NVML offers on power limit, ECC and clocks that were set."""

    @answers("nvmlDeviceGetEnforcedPowerLimit")
    def _power_limit(self, handle: Any, milliwatts: Any) -> None:
        fill(milliwatts, _known(self._settings(handle).power_limit_w) * _MILLI)

    @answers("nvmlDeviceGetEccMode")
    def _ecc_mode(self, handle: Any, current: Any, pending: Any) -> None:
        is_on = self._settings(handle).is_ecc_on
        fill(current, int(is_on))
        fill(pending, int(is_on))

    @answers("nvmlDeviceGetApplicationsClock")
    def _applications_clock(self, handle: Any, clock: Any, mhz: Any) -> None:
        settings = self._settings(handle)
        clocks = {
            pynvml.NVML_CLOCK_GRAPHICS: settings.graphics_clock_mhz,
            pynvml.NVML_CLOCK_MEM: settings.memory_clock_mhz,
        }
        fill(mhz, _known(clocks.get(number(clock))))

    def _settings(self, handle: Any) -> Settings:
        return self.whole_gpu(handle)[1].settings


def _known(value: int | None) -> int:
    if value is None:
        raise DriverError(codes.NOT_SUPPORTED)
    return value
