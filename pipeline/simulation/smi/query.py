"""The comma-separated answers of `nvidia-smi --query-gpu`."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from pipeline.simulation.machine import codes, queries
from pipeline.simulation.machine.state import DRIVER_VERSION, Gpu
from pipeline.simulation.program import RefusedError
from pipeline.simulation.smi.output import Numbered

_COMPUTE_MODES = {0: "Default", 2: "Prohibited", 3: "Exclusive_Process"}
_SWITCH = {False: "Disabled", True: "Enabled"}
# Every column, with its unit.
_UNITS = {
    **dict.fromkeys(("timestamp", "index", "name", "uuid", "pci.bus_id", "driver_version"), ""),
    **dict.fromkeys(("memory.total", "memory.reserved", "memory.used"), "MiB"),
    **dict.fromkeys(("mig.mode.current", "mig.mode.pending", "compute_mode", "pstate"), ""),
    **dict.fromkeys(("power.draw", "power.draw.average", "power.draw.instant"), "W"),
    **dict.fromkeys(("utilization.gpu", "utilization.memory"), "%"),
    **dict.fromkeys(("clocks.current.sm", "clocks.current.memory"), "MHz"),
    **dict.fromkeys(("temperature.gpu", "temperature.memory", "clocks_event_reasons.active"), ""),
    "ecc.errors.uncorrected.volatile.total": "",
}
# Other names under which a column can be asked for.
_ALIASES = {"clocks.sm": "clocks.current.sm", "clocks.mem": "clocks.current.memory"}


class Query:
    """Columns that were asked for, by their names with commas between; one that there is not is refused."""

    def __init__(self, fields: str, *, has_units: bool) -> None:
        self._has_units = has_units
        self._columns = []
        for field in (part.strip() for part in fields.split(",")):
            name = _ALIASES.get(field, field)
            if name not in _UNITS:
                raise RefusedError(f'Field "{field}" is not a valid field to query.\n', codes.INVALID_ARGUMENT)
            self._columns.append(name)

    def header(self) -> str:
        """The line of names. It has the units even where the values do without them."""
        return ", ".join(f"{name} [{_UNITS[name]}]" if _UNITS[name] else name for name in self._columns)

    def lines(self, gpus: Iterable[Numbered], now: datetime) -> list[str]:
        """The lines of values, one a GPU."""
        known = (_known(now, index, gpu) for index, gpu in gpus)
        return [", ".join(self._cell(name, values.get(name)) for name in self._columns) for values in known]

    def _cell(self, name: str, value: object) -> str:
        if value is None:
            return "[N/A]"
        return f"{value} {_UNITS[name]}" if _UNITS[name] and self._has_units else str(value)


def _known(now: datetime, index: int, gpu: Gpu) -> dict[str, object]:
    """The values, without those that only hardware knows."""
    model = queries.model_of(gpu)
    return {
        "timestamp": f"{now:%Y/%m/%d %H:%M:%S}.{now.microsecond // 1000:03d}",
        "index": index,
        "name": model.product,
        "uuid": gpu.uuid,
        "pci.bus_id": gpu.bus_id,
        "driver_version": DRIVER_VERSION,
        "memory.total": model.capacity_mib,
        "memory.reserved": queries.RESERVED_MIB,
        "memory.used": queries.used_memory_mib(gpu),
        "mig.mode.current": _SWITCH[gpu.mig_current],
        "mig.mode.pending": _SWITCH[gpu.mig_pending],
        "compute_mode": _COMPUTE_MODES[gpu.compute_mode],
    }
