"""The rate of a running job, from the lines that it prints while it runs."""

from __future__ import annotations

import os
import re
import statistics
from contextlib import suppress

from pipeline.base.domain import layout
from pipeline.base.domain.workload import RateSource
from pipeline.base.system import regular_files
from pipeline.launch.job_state import JobState
from pipeline.observe.output_rates import OutputReader

_USUAL_PATTERNS = ("([0-9.]+) ?it/s", r"([0-9][0-9.,]*)[kKMG]? ?[A-Za-z]+(?:/| per )s(?:ec|econd)?\b")
"""Patterns of rates if the user names none: those of progress bars, then any `5130.4 samples/s`."""
_MOST_BYTES = 1 << 16
_BREAK = re.compile(rb"[\r\n]+")


_LEAST_RATES = 3
"""Rates of one unit that an output must have for a pattern to be suggested."""


def suggest_pattern(output: str) -> str | None:
    """Return a `workload.metric_pattern` for the rates in an output, such as `([0-9.]+)it/s`, if it has several."""
    for pattern in _USUAL_PATTERNS:
        units = [match[0][len(match[1]) :] for match in re.finditer(pattern, output)]
        if units and units.count(units[-1]) >= _LEAST_RATES:
            return f"([0-9.]+){units[-1]}"
    return None


class LiveRate:
    """A reader of a job's output, which reads each line once; lines beyond 64 KiB of one reading are left out."""

    def __init__(self, state: JobState) -> None:
        rate = state.job.workload.rate
        sources = [rate] if rate.pattern is not None else [RateSource(pattern=pattern) for pattern in _USUAL_PATTERNS]
        self._readers = [OutputReader(source, state.job.workload.work_unit) for source in sources]
        self._ends = {state.folder / name: 0 for name in (layout.STDOUT, layout.STDERR)}
        self._cut = dict.fromkeys(self._ends, b"")

    def read(self) -> float | None:
        """Return the mean of the rates that were printed since the last reading; `None` without one."""
        rates = [rate for line in self._read_lines() if (rate := self._find_rate(line)) is not None]
        return statistics.fmean(rates) if rates else None

    def _find_rate(self, line: str) -> float | None:
        for reader in self._readers:
            if (rate := reader.read_rate(line)) is not None:
                self._readers = [reader]  # a program that prints several rates is read by the first
                return rate
        return None

    def _read_lines(self) -> list[str]:
        lines: list[bytes] = []
        for path, end in self._ends.items():
            with suppress(OSError), os.fdopen(regular_files.open_regular_file(path), "rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(max(end, size - _MOST_BYTES))
                *new, self._cut[path] = _BREAK.split(self._cut[path] + file.read(_MOST_BYTES))
                lines += new
                self._ends[path] = file.tell()
        return [line.decode(errors="replace") for line in lines]
