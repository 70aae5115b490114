"""The GPU through the text that nvidia-smi prints. One long-running nvidia-smi; columns are found by name."""

from __future__ import annotations

import logging
import math
import re
import shutil
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import suppress

from listeners.base import GPU_UTILISATION, MEMORY_IN_USE, StopSignal, scaled
from listeners.program import Program, ProgramListener
from pipeline.base.errors import ListenerError
from pipeline.base.protocols import Watch
from pipeline.base.samples import Chart, Field, Sample

_log = logging.getLogger(__name__)
_INVALID_FIELD = re.compile(r'Field "([^"]+)" is not a valid field to query')
_UNIT = re.compile(r"\s*\[[^\]]*\]$")
_NOT_AVAILABLE = re.compile(r"\[.*\]|N/A|")


class SmiListener(ProgramListener):
    """Samples one whole GPU with `nvidia-smi --query-gpu`, stamped when each line arrives.

    A column that this nvidia-smi does not know, or prints under another name, is reported as a warning and is absent.

    Args:
        interval_ms: given to nvidia-smi, which prints that often.
        program: nvidia-smi's name or path; a simulated GPU has its own instead.
        options: none more.
    """

    name = "smi"
    rank = 1
    fields = (
        Field(source_id="power.draw", name="power_w", unit="W", chart=Chart()),
        Field(source_id="memory.used", name="memory_used_mib", unit="MiB", chart=MEMORY_IN_USE),
        Field(source_id="utilization.gpu", name="utilization_gpu_pct", unit="%", chart=GPU_UTILISATION),
        Field(source_id="utilization.memory", name="utilization_memory_pct", unit="%"),
        Field(source_id="clocks.current.sm", name="sm_clock_mhz", unit="MHz"),
        Field(source_id="clocks.current.memory", name="memory_clock_mhz", unit="MHz"),
        Field(source_id="temperature.gpu", name="temperature_c", unit="degrees Celsius"),
        Field(source_id="pstate", name="pstate", unit="number of the performance state"),
    )
    # Without persistence mode the first query initialises the GPU, which takes several seconds.
    start_limit_s = 15.0

    def __init__(self, interval_ms: int, program: str = "nvidia-smi", **options: object) -> None:
        super().__init__(interval_ms, **options)
        self._program = program

    def batches(self, watch: Watch, stop: StopSignal) -> Generator[Iterable[Sample], None, None]:
        device = watch.device
        if not device.is_gpu:
            raise ListenerError(f"listener {self.name} cannot observe {device.name}: it is not a GPU")
        # On a simulated GPU, what PATH finds would show real ones.
        wanted = dict(device.programs).get("nvidia-smi", "") if device.is_simulated else self._program
        program = shutil.which(wanted)
        if program is None:
            raise ListenerError(
                f"listener {self.name} needs {self._program}, which is not on PATH: install it or leave smi out"
            )
        columns = [field.source_id for field in self.fields]
        while not stop.is_set():
            if not columns:
                raise ListenerError(f"listener {self.name}: {program} knows none of the requested columns")
            query = f"--query-gpu={','.join(columns)}"
            argv = [program, query, "--format=csv,nounits", "-i", device.uuid, "-lms", str(self.interval_ms)]
            try:
                with self.started(argv) as nvidia_smi:
                    yield from self._samples(nvidia_smi, columns, stop)
            except _InvalidColumnError as error:
                _log.warning("listener smi: %s does not know %s, which is left out", program, error.column)
                columns.remove(error.column)

    def _samples(self, nvidia_smi: Program, columns: list[str], stop: StopSignal) -> Iterator[Iterable[Sample]]:
        silence_s = self.start_limit_s + self.interval_ms / 1e3
        table = _Table(columns)
        last_ns = time.monotonic_ns()
        for t_ns, line in nvidia_smi.lines(stop, silence_s):
            readings = table.read(line)
            if readings is not None:
                last_ns = t_ns
                yield (Sample(source=self.name, t_ns=t_ns, values=scaled(readings, self.fields)),)
            elif t_ns - last_ns > silence_s * 1e9:
                break  # it goes on complaining, as about a GPU that is lost
        if stop.is_set():
            return
        said = " ".join(table.complaints) or "nothing"
        for column in _INVALID_FIELD.findall(said):
            if column in columns:
                raise _InvalidColumnError(column)
        status = nvidia_smi.status()
        outcome = f"gave no row for {silence_s:g} s" if status is None else f"ended with status {status}"
        raise ListenerError(f"listener {self.name}: {' '.join(nvidia_smi.argv)} {outcome}; it said: {said}")


class _InvalidColumnError(Exception):
    def __init__(self, column: str) -> None:
        super().__init__(column)
        self.column = column


class _Table:
    """The CSV of nvidia-smi. The first line that names a column which was asked for is the header."""

    def __init__(self, columns: list[str]) -> None:
        self.complaints: deque[str] = deque(maxlen=5)
        self._columns = columns
        self._header: list[str] = []
        self._unreadable: set[str] = set()

    def read(self, line: str) -> dict[str, float] | None:
        """Column to value for a row, without what nvidia-smi calls not available; `None` for every other line."""
        cells = [cell.strip() for cell in line.split(",")]
        names = [_UNIT.sub("", cell) for cell in cells]
        if not self._header and any(name in self._columns for name in names):
            self._header = names
            for column in self._columns:
                if column not in names:
                    _log.warning("listener smi: nvidia-smi prints no column %s, which is left out: %s", column, line)
        elif self._header and len(cells) == len(self._header):
            values = {column: self._number(column, cell) for column, cell in zip(self._header, cells, strict=True)}
            return {column: value for column, value in values.items() if value is not None}
        elif line.strip():
            self.complaints.append(line.strip())
        return None

    def _number(self, column: str, cell: str) -> float | None:
        if _NOT_AVAILABLE.fullmatch(cell):
            return None
        with suppress(ValueError):
            value = float(cell.removeprefix("P") if column == "pstate" else cell)
            if math.isfinite(value):
                return value
        if column not in self._unreadable:
            self._unreadable.add(column)
            _log.warning("listener smi: %r in column %s is not a number and is left out", cell, column)
        return None
