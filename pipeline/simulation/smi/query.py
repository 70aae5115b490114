"""The comma-separated answers of nvidia-smi: `--query-gpu` and `--query-compute-apps`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from pipeline.simulation.machine import queries
from pipeline.simulation.machine.state import DRIVER_VERSION, Gpu, Process
from pipeline.simulation.smi.output import Numbered

_NOT_AVAILABLE = "[N/A]"
_COMPUTE_MODES = {0: "Default", 2: "Prohibited", 3: "Exclusive_Process"}
_SWITCH = {False: "Disabled", True: "Enabled"}


class UnknownFieldError(Exception):
    """nvidia-smi knows no column `field`."""

    def __init__(self, field: str) -> None:
        super().__init__(field)
        self.field = field


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """What a line is about."""

    now: datetime
    index: int
    gpu: Gpu
    process: Process | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """A column: its name in the header, its unit, and its value without the unit; `None` if only hardware knows."""

    name: str
    unit: str | None = None
    value: Callable[[_Row], object] | None = None


def _process(row: _Row) -> Process:
    assert row.process is not None, "a column of processes was asked of a GPU"
    return row.process


def _timestamp(row: _Row) -> str:
    return f"{row.now:%Y/%m/%d %H:%M:%S}.{row.now.microsecond // 1000:03d}"


_GPU_COLUMNS = (
    _Column(name="timestamp", value=_timestamp),
    _Column(name="index", value=lambda row: row.index),
    _Column(name="name", value=lambda row: queries.model_of(row.gpu).product),
    _Column(name="uuid", value=lambda row: row.gpu.uuid),
    _Column(name="pci.bus_id", value=lambda row: row.gpu.bus_id),
    _Column(name="driver_version", value=lambda _: DRIVER_VERSION),
    _Column(name="memory.total", unit="MiB", value=lambda row: queries.model_of(row.gpu).capacity_mib),
    _Column(name="memory.reserved", unit="MiB", value=lambda _: queries.RESERVED_MIB),
    _Column(name="memory.used", unit="MiB", value=lambda row: queries.used_memory_mib(row.gpu)),
    _Column(name="mig.mode.current", value=lambda row: _SWITCH[row.gpu.mig_current]),
    _Column(name="mig.mode.pending", value=lambda row: _SWITCH[row.gpu.mig_pending]),
    _Column(name="compute_mode", value=lambda row: _COMPUTE_MODES[row.gpu.compute_mode]),
    _Column(name="power.draw", unit="W"),
    _Column(name="power.draw.average", unit="W"),
    _Column(name="power.draw.instant", unit="W"),
    _Column(name="utilization.gpu", unit="%"),
    _Column(name="utilization.memory", unit="%"),
    _Column(name="pstate"),
    _Column(name="clocks.current.sm", unit="MHz"),
    _Column(name="clocks.current.memory", unit="MHz"),
    _Column(name="temperature.gpu"),
    _Column(name="temperature.memory"),
    _Column(name="clocks_event_reasons.active"),
    _Column(name="ecc.errors.uncorrected.volatile.total"),
)
_APP_COLUMNS = (
    _Column(name="pid", value=lambda row: _process(row).pid),
    _Column(name="process_name", value=lambda row: _process(row).name),
    _Column(name="used_gpu_memory", unit="MiB", value=lambda row: _process(row).memory_mib),
    _Column(name="gpu_uuid", value=lambda row: row.gpu.uuid),
)
# Other names under which a column can be asked for.
_ALIASES = {"clocks.sm": "clocks.current.sm", "clocks.mem": "clocks.current.memory"}
_APP_ALIASES = {"name": "process_name", "used_memory": "used_gpu_memory"}


class Query:
    """Columns that were asked for, by their names with commas between; of computing processes or of GPUs.

    Raises:
        UnknownFieldError: there is no such column.
    """

    def __init__(self, fields: str, *, of_processes: bool, has_units: bool) -> None:
        self._of_processes, self._has_units = of_processes, has_units
        columns = {column.name: column for column in (_APP_COLUMNS if of_processes else _GPU_COLUMNS)}
        aliases = _APP_ALIASES if of_processes else _ALIASES
        self._columns = []
        for field in (part.strip() for part in fields.split(",")):
            name = field if field in columns else aliases.get(field, field)
            if name not in columns:
                raise UnknownFieldError(field)
            self._columns.append(columns[name])

    def header(self) -> str:
        """The line of names. It has the units even where the values do without them."""
        return ", ".join(f"{column.name} [{column.unit}]" if column.unit else column.name for column in self._columns)

    def lines(self, gpus: Iterable[Numbered], now: datetime) -> list[str]:
        """The lines of values: one a GPU, or one a computing process with the latest first."""
        rows = [_Row(now=now, index=index, gpu=gpu) for index, gpu in gpus]
        if self._of_processes:
            rows = [
                replace(row, process=process)
                for row in rows
                for process in reversed(row.gpu.processes)
                if process.kind != "G"
            ]
        return [", ".join(self._cell(column, row) for column in self._columns) for row in rows]

    def _cell(self, column: _Column, row: _Row) -> str:
        if column.value is None:
            return _NOT_AVAILABLE
        unit = f" {column.unit}" if column.unit and self._has_units else ""
        return f"{column.value(row)}{unit}"
