"""The rates in a program's output, with the times at which they were written (`Events.written`).

The size of the output is recorded at intervals. The values that were written in one interval share one instant, and
their mean is one point. To limit the time for a large output, at most `MOST_VALUES` values of an interval are read.
"""

from __future__ import annotations

import math
import os
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from pipeline.base.domain import rate_text
from pipeline.base.domain.metric_unit import UnreadableError
from pipeline.base.domain.workload import RateSource
from pipeline.base.system import regular_files
from pipeline.observe.program_rates import numbers

MOST_VALUES = 200
"""Largest number of values that are read for one instant."""

_SHOWN = 50
_MOST_UNITS = 9
_BLOCK_BYTES = 1 << 20
_LINE_BYTES = 1 << 16
_LINE = re.compile(rb"[^\r\n]+")  # a progress bar overwrites its line after a carriage return
_BREAK = re.compile(rb"[\r\n]")
_ESCAPE = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
"""Colours and movements of the cursor. Source: ECMA-48, section 5.4."""


@dataclass(slots=True)
class Rates:
    """Rates in the output of a program.

    Attributes:
        sums: sum and number of the rates at each instant.
        num_times: number of values that are times, such as `2.00s/it`.
        work_unit: work unit of the values: that of the workload, or else that of the first value.
        units: texts of the units of the values, such as `it/s`.
        unreadable: first line with an unclear number, and the reason; empty if there is none.
        without_number: last line that matches the pattern and contains no number.
        passed_over: number of unmatched lines with a unit, by its text, such as `s/it`.
    """

    sums: dict[int, tuple[float, int]] = field(default_factory=dict)
    least: float = math.inf
    most: float = -math.inf
    num_values: int = 0
    num_times: int = 0
    num_not_finite: int = 0
    work_unit: str = ""
    units: Counter[str] = field(default_factory=Counter)
    unreadable: str = ""
    without_number: str = ""
    passed_over: Counter[str] = field(default_factory=Counter)

    @property
    def points(self) -> list[tuple[int, float]]:
        """Instants in order of time, each with the mean of its rates."""
        return [(t_ns, total / num) for t_ns, (total, num) in sorted(self.sums.items())]

    def add(self, t_ns: int, rate: float, *, is_time: bool) -> int:
        """Add the rate of a line, and return the number of rates at its instant."""
        if not math.isfinite(rate):
            self.num_not_finite += 1
            return 0
        total, num = self.sums.get(t_ns, (0.0, 0))
        self.sums[t_ns] = total + rate, num + 1
        self.least, self.most = min(self.least, rate), max(self.most, rate)
        self.num_values += 1
        self.num_times += is_time
        return num + 1


class OutputReader:
    """A reader of a program's outputs, which collects the matches of the user's pattern in `rates`.

    If the user's group matches only a part of a number, the entire number is read: `([0-9.]+) samples/s` reads 1050
    from `1,050.0 samples/s` and from `1.05e3 samples/s`. A pattern with `it/s` also matches lines with `s/it`, `kit/s`
    or `it/min`, if it does not match them with `it/s`. `unit` is the work unit of the workload; if it is empty, the
    first value sets it.
    """

    def __init__(self, source: RateSource, unit: str) -> None:
        assert source.pattern is not None
        self._source = source
        self._original, self._widened = re.compile(source.pattern), rate_text.widen(source.pattern)
        self.rates = Rates(work_unit=unit)

    def read(self, path: Path, t_ns: Sequence[int], sizes: Sequence[int], end_ns: int) -> None:
        """Read an output up to the first unclear number; `sizes` are the sizes of the output at the instants `t_ns`."""
        try:
            with os.fdopen(regular_files.open_regular_file(path), "rb") as file:
                lines = OutputLines(file)
                for line, end in lines:
                    look = bisect_left(sizes, end)
                    num_values = self._add(line, t_ns[look] if look < len(t_ns) else end_ns)
                    if self.rates.unreadable:
                        return
                    if num_values >= MOST_VALUES:
                        if look == len(sizes):
                            return
                        lines.skip_to(sizes[look])
        except OSError:
            return

    def _add(self, line: str, t_ns: int) -> int:
        """Add the rate of a line, if it contains one, and return the number of rates at its instant."""
        rates = self.rates
        if (match := self._original.search(line) or self._widened.search(line)) is None:
            unit = rate_text.find_unit(line)
            if unit and (unit in rates.passed_over or len(rates.passed_over) < _MOST_UNITS):
                rates.passed_over[unit] += 1
            return 0
        mark, setting = self._source.decimal_mark, self._source.metric_unit
        try:
            if (number := numbers.read(line, match.span(1), _find_bounds(match), mark)) is None:
                rates.without_number = line.strip()[:_SHOWN]
                return 0
            sides = line[: number.begin], line[number.end :]
            text = rate_text.read(*sides, rates.work_unit, is_unit_given=setting is not None)
            metric_unit = rate_text.to_unit(text, setting).count_in(rates.work_unit)
        except UnreadableError as error:
            rates.unreadable = f"`{_quote(line, *match.span(1))}`: {error}"
            return 0
        rates.work_unit = metric_unit.work
        if text.unit is not None and len(rates.units) < _MOST_UNITS:
            rates.units[text.words.strip(" [(").replace(" /", "/").replace("/ ", "/")] += 1
        return rates.add(t_ns, metric_unit.rate(number.value), is_time=metric_unit.is_time)


def _find_bounds(match: re.Match[str]) -> tuple[int, int]:
    """Return the limits of the number: those of the user's group if the pattern continues there, else of the line."""
    begin, end = match.span(1)
    return 0 if match.start() == begin else begin, len(match.string) if match.end() == end else end


def _quote(line: str, begin: int, end: int) -> str:
    first = max(0, min(begin - _SHOWN // 2, len(line) - _SHOWN))
    return line[first : max(end, first + _SHOWN)].strip()[:_SHOWN]


class OutputLines:
    """Lines of a file without escape sequences, each with the offset of its end.

    A line longer than 64 KiB is cut after the last complete word within 64 KiB.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._target = 0

    def skip_to(self, offset: int) -> None:
        """Continue with the first line that begins after an offset."""
        self._target = offset

    def __iter__(self) -> Iterator[tuple[str, int]]:
        begin, data, at, is_cut = 0, b"", 0, False
        while True:
            more = self._file.read(_BLOCK_BYTES)
            data, begin, at = data[at:] + more, begin + at, 0
            if is_cut and (match := _BREAK.search(data)) is not None:
                is_cut, at = False, match.end()
            elif is_cut:
                at = len(data)
            while (match := _LINE.search(data, at)) is not None and (match.end() < len(data) or not more):
                at = match.end()
                yield _decode(match[0]), begin + at
                if self._target > begin + at:
                    break
            if self._target > begin + at:
                self._file.seek(self._target)
                begin, data, at, is_cut = self._target, b"", 0, True
            elif len(data) - at > _LINE_BYTES:
                line = data[at : at + _LINE_BYTES].lstrip(b"\r\n")
                yield _decode(line.rpartition(b" ")[0]), begin + at + _LINE_BYTES
                at, is_cut = len(data), True
            elif not more:
                return


def _decode(line: bytes) -> str:
    if b"\x1b" in line:
        line = _ESCAPE.sub(b"", line)
    return line[:_LINE_BYTES].decode(errors="replace")
