"""The GPU, read from the output of one long-running nvidia-smi, whose columns are found by name."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Generator, Iterable

from listeners.base import GPU_UTILISATION, MEMORY_IN_USE, StopSignal, scale_readings
from listeners.program_listener import ProgramListener, TextTable
from pipeline.base.domain.protocols import RunningGroup
from pipeline.base.domain.records import Device
from pipeline.base.domain.samples import Chart, Field, Sample
from pipeline.base.system.errors import ListenerError

_log = logging.getLogger(__name__)
_INVALID_FIELD = re.compile(r'Field "([^"]+)" is not a valid field to query')
_UNIT = re.compile(r"\s*\[[^\]]*\]$")
_NOT_AVAILABLE = re.compile(r"\[.*\]|N/A|")


class SmiListener(ProgramListener):
    """Samples of one whole GPU by `nvidia-smi --query-gpu`; the time of a sample is when its line arrives.

    A column that this nvidia-smi does not support, or prints under another name, is missing, and a warning is logged. A
    simulated GPU uses its own nvidia-smi instead of `program`.
    """

    name = "smi"
    rank = 1
    fields = (
        Field("power.draw", "power_w", "W", chart=Chart()),
        Field("memory.used", "memory_used_mib", "MiB", chart=MEMORY_IN_USE),
        Field("utilization.gpu", "utilization_gpu_pct", "%", chart=GPU_UTILISATION),
        Field("utilization.memory", "utilization_memory_pct", "%"),
        Field("clocks.current.sm", "sm_clock_mhz", "MHz"),
        Field("clocks.current.memory", "memory_clock_mhz", "MHz"),
        Field("temperature.gpu", "temperature_c", "degrees Celsius"),
        Field("pstate", "pstate", "number of the performance state"),
    )
    # Without persistence mode, the first query initialises the GPU, which takes seconds.
    start_limit_s = 15.0

    def __init__(self, interval_ms: int, program: str = "nvidia-smi", **options: object) -> None:
        super().__init__(interval_ms, **options)
        self._program = program

    def batches(self, group: RunningGroup, stop: StopSignal) -> Generator[Iterable[Sample], None, None]:
        device = self.gpu(group)
        program = self._find_program(device)
        columns = [field.source_id for field in self.fields]
        while not stop.is_set():
            if not columns:
                raise ListenerError(f"listener {self.name}: {program} supports none of its columns; leave smi out")
            query = f"--query-gpu={','.join(columns)}"
            interval = ["-lms", str(self.interval_ms)]
            argv = [program, query, "--format=csv,nounits", "-i", device.gpu_uuid, *interval]
            table = _Table(columns)
            with self.run_program(argv) as nvidia_smi:
                for t_ns, readings in self.rows(nvidia_smi, table.read, stop):
                    yield (Sample(source=self.name, t_ns=t_ns, values=scale_readings(readings, self.fields)),)
                if stop.is_set():
                    return
                unknown = next(
                    (name for name in _INVALID_FIELD.findall(table.last_complaints) if name in columns), None
                )
                if unknown is None:
                    raise self.failure(argv, nvidia_smi.status(), table.last_complaints)
            _log.warning("listener smi: %s does not support %s, which is left out", program, unknown)
            columns.remove(unknown)

    def _find_program(self, device: Device) -> str:
        # For a simulated GPU, an nvidia-smi on PATH would read real GPUs.
        name = dict(device.programs).get("nvidia-smi", "") if device.is_simulated else self._program
        program = shutil.which(name)
        if program is None:
            raise ListenerError(
                f"listener {self.name} needs {self._program}, which is not on PATH; install it or leave smi out"
            )
        return program


class _Table(TextTable):
    """A parser of nvidia-smi's CSV; the first line that contains a requested column is the header."""

    def __init__(self, columns: Iterable[str]) -> None:
        super().__init__(SmiListener.name)
        self._columns = tuple(columns)
        self._header: list[str] = []

    def read(self, line: str) -> dict[str, float] | None:
        """Return the available values of a row by column; `None` for every other line."""
        cells = [cell.strip() for cell in line.split(",")]
        names = [_UNIT.sub("", cell) for cell in cells]
        if not self._header and any(name in self._columns for name in names):
            self._header = names
            for column in self._columns:
                if column not in names:
                    self.warn(column, f"nvidia-smi prints no column {column}, which is left out: {line}")
        elif self._header and len(cells) == len(self._header):
            values = {column: self._value(column, cell) for column, cell in zip(self._header, cells, strict=True)}
            return {column: value for column, value in values.items() if value is not None}
        elif line.strip():
            self.complaints.append(line.strip())
        return None

    def _value(self, column: str, cell: str) -> float | None:
        if _NOT_AVAILABLE.fullmatch(cell):
            return None
        return self.number(column, cell.removeprefix("P") if column == "pstate" else cell)
