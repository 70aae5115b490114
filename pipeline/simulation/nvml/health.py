"""The functions of the library beneath pynvml that tell the health of a GPU, which is what the machine's file says."""

from __future__ import annotations

from typing import Any

import pynvml

from pipeline.simulation.machine import codes
from pipeline.simulation.nvml.calls import Calls, answers, fill, number, pointee

_VOLATILE, _UNCORRECTED = 0, 1  # Source: nvml.h, nvmlEccCounterType_t and nvmlMemoryErrorType_t
_RECOVERY_ACTION = 230  # Source: nvml.h, NVML_FI_DEV_GET_GPU_RECOVERY_ACTION


class HealthCalls(Calls):
    """What NVML offers on memory errors and what the driver wants done about them."""

    @answers("nvmlDeviceGetTotalEccErrors")
    def _ecc_errors(self, handle: Any, kind: Any, counter: Any, count: Any) -> int:
        health = self.gpu(handle).health
        if number(kind) != _UNCORRECTED:
            return codes.NOT_SUPPORTED
        is_now = number(counter) == _VOLATILE
        fill(count, health.ecc_uncorrected_now if is_now else health.ecc_uncorrected_ever)
        return 0

    @answers("nvmlDeviceGetRemappedRows")
    def _remapped_rows(self, handle: Any, correctable: Any, uncorrectable: Any, pending: Any, failed: Any) -> None:
        health = self.gpu(handle).health
        fill(correctable, health.rows_remapped_correctable)
        fill(uncorrectable, health.rows_remapped_uncorrectable)
        fill(pending, int(health.is_remap_pending))
        fill(failed, int(health.has_remap_failed))

    @answers("nvmlDeviceGetFieldValues")
    def _field_values(self, handle: Any, count: Any, values: Any) -> None:
        action = self.gpu(handle).health.recovery_action
        for value in pointee(values)[: number(count)]:
            is_known = value.fieldId == _RECOVERY_ACTION
            value.nvmlReturn = 0 if is_known else codes.NOT_SUPPORTED
            if is_known:
                value.valueType, value.value.uiVal = pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, action
