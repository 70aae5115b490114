"""The comma-separated output of `nvidia-smi --query-gpu`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import datetime

from pipeline.simulation.machine import codes, queries, readings
from pipeline.simulation.machine.readings import Quantity
from pipeline.simulation.machine.state_file import Gpu, State
from pipeline.simulation.simulated_program import RefusedError
from pipeline.simulation.smi.smi_tables import Numbered

_COMPUTE_MODES = {0: "Default", 2: "Prohibited", 3: "Exclusive_Process"}
_SWITCH = {False: "Disabled", True: "Enabled"}
# All supported columns, with their units.
_UNITS = {
    **dict.fromkeys(("timestamp", "count", "index", "name", "uuid", "pci.bus_id", "driver_version"), ""),
    **dict.fromkeys(("memory.total", "memory.reserved", "memory.used", "memory.free"), "MiB"),
    **dict.fromkeys(("mig.mode.current", "mig.mode.pending", "compute_mode", "pstate"), ""),
    **dict.fromkeys(("power.draw", "power.draw.average", "power.draw.instant"), "W"),
    **dict.fromkeys(("utilization.gpu", "utilization.memory"), "%"),
    **dict.fromkeys(("clocks.current.sm", "clocks.current.memory"), "MHz"),
    **dict.fromkeys(("temperature.gpu", "temperature.memory", "clocks_event_reasons.active"), ""),
    "ecc.errors.uncorrected.volatile.total": "",
}
# Aliases of columns.
_ALIASES = {
    "clocks.sm": "clocks.current.sm",
    "clocks.mem": "clocks.current.memory",
    "gpu_name": "name",
    "gpu_uuid": "uuid",
    "gpu_bus_id": "pci.bus_id",
}
# Prefixes of columns that only the real program supports. Source: nvidia-smi --help-query-gpu.
_FAMILIES = re.compile(
    "accounting|addressing_mode|c2c|clocks(_(event|throttle)_reasons(_counters)?)?|compute_cap"
    "|display_(active|attached|mode)|dramEncryption|driver_model|ecc|encoder|enforced|fabric|fan|gom"
    "|gpu_(operation_mode|recovery_action|serial)|gsp|hostname|inforom|kmd_version|memory|mig|module|pcie?"
    "|persistence_mode|platform|power|protected_memory|remapped_rows|reset_status|retired_pages|serial|temperature"
    "|utilization|vbios_version"
)

# The quantities of sensor columns and their formats. All three power columns are means over a second, despite their
# names.
_SENSORS: dict[str, tuple[Quantity, Callable[[float], str]]] = {
    **dict.fromkeys(("power.draw", "power.draw.average", "power.draw.instant"), (Quantity.POWER, "{:.2f}".format)),
    "utilization.gpu": (Quantity.GPU_UTILIZATION, "{:.0f}".format),
    "utilization.memory": (Quantity.MEMORY_UTILIZATION, "{:.0f}".format),
    "clocks.current.sm": (Quantity.SM_CLOCK, "{:.0f}".format),
    "clocks.current.memory": (Quantity.MEMORY_CLOCK, "{:.0f}".format),
    "temperature.gpu": (Quantity.TEMPERATURE, "{:.0f}".format),
    "pstate": (Quantity.PERFORMANCE_STATE, "P{:.0f}".format),
    "clocks_event_reasons.active": (Quantity.THROTTLE_REASONS, lambda bits: f"0x{int(bits):016x}"),
}
# These columns are not supported for a GPU in MIG mode. Source: nvml.h, nvmlDeviceGetUtilizationRates.
_NOT_UNDER_MIG = frozenset({"utilization.gpu", "utilization.memory"})


class Query:
    """Columns, given by comma-separated names; an unknown name is refused."""

    def __init__(self, fields: str, *, has_units: bool) -> None:
        self._has_units = has_units
        self._columns = []
        for field in (part.strip() for part in fields.split(",")):
            name = _ALIASES.get(field, field)
            if name not in _UNITS:
                is_real = _FAMILIES.fullmatch(name.partition(".")[0])
                end = ": the simulated nvidia-smi does not support it." if is_real else ".\n"
                raise RefusedError(f'Field "{field}" is not a valid field to query{end}', codes.INVALID_ARGUMENT)
            self._columns.append(name)

    def header(self) -> str:
        """Return the header, which has units even if the values are printed without units."""
        return ", ".join(f"{name} [{_UNITS[name]}]" if _UNITS[name] else name for name in self._columns)

    def lines(self, gpus: Iterable[Numbered], now: datetime, state: State) -> list[str]:
        known = (_collect_known(now, index, gpu, state) | self._readings(index, gpu, state) for index, gpu in gpus)
        return [", ".join(self._cell(name, values.get(name)) for name in self._columns) for values in known]

    def _readings(self, index: int, gpu: Gpu, state: State) -> dict[str, object]:
        texts: dict[str, object] = {}
        for name in self._columns:
            if name not in _SENSORS or (gpu.mig_current and name in _NOT_UNDER_MIG):
                continue
            quantity, layout = _SENSORS[name]
            if (value := readings.read(state, index, quantity)) is not None:
                texts[name] = layout(value)
        return texts

    def _cell(self, name: str, value: object) -> str:
        if value is None:
            return "[N/A]"
        return f"{value} {_UNITS[name]}" if _UNITS[name] and self._has_units else str(value)


def _collect_known(now: datetime, index: int, gpu: Gpu, state: State) -> dict[str, object]:
    model, used_mib = queries.model_of(gpu), queries.used_memory_mib(gpu)
    return {
        "timestamp": f"{now:%Y/%m/%d %H:%M:%S}.{now.microsecond // 1000:03d}",
        "count": len(state.gpus),
        "index": index,
        "name": model.product,
        "uuid": gpu.uuid,
        "pci.bus_id": gpu.bus_id,
        "driver_version": state.release.driver_version,
        "memory.total": model.capacity_mib,
        "memory.reserved": queries.RESERVED_MIB,
        "memory.used": used_mib,
        "memory.free": model.capacity_mib - queries.RESERVED_MIB - used_mib,
        "mig.mode.current": _SWITCH[gpu.mig_current],
        "mig.mode.pending": _SWITCH[gpu.mig_pending],
        "compute_mode": _COMPUTE_MODES[gpu.compute_mode],
        "ecc.errors.uncorrected.volatile.total": gpu.health.ecc_uncorrected_now,
    }
