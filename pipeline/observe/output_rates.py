"""The rates in a program's output, with the times at which they were written (`Events.written`).

The size of the output is recorded at intervals. The values that were written in one interval share one instant, and
their mean is one point. To limit the time for a large output, at most `MOST_VALUES` values of an interval are read.

A pattern whose group is named `count` reads a counter, such as the number of a step: its rise over the time is the
rate. If the counter starts again, as in the next epoch, the work since the line before is unknown.

Numbers are read as people and programs write them. `1,050.5` and `1.050,5` are clear. `1,050` is ambiguous, because the
comma may be either mark, and `5130,4` is ambiguous because it may be one number or two. An ambiguous number is an
error; the user extends the pattern or sets `workload.decimal_mark`.
"""

from __future__ import annotations

import itertools
import math
import os
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

from pipeline.base.domain import rate_units, work_units
from pipeline.base.domain.rate_units import UnreadableError
from pipeline.base.domain.workload import RateSource
from pipeline.base.system import regular_files

MOST_VALUES = 200
"""Largest number of values that are read for one instant."""
_COUNT = "count"
"""Name of the group of a pattern that reads a counter."""

_MOST_DIGITS = 18
_SHOWN = 50
_MOST_UNITS = 9
_BLOCK_BYTES = 1 << 20
_LINE_BYTES = 1 << 16
_LINE = re.compile(rb"[^\r\n]+")  # a progress bar overwrites its line after a carriage return
_BREAK = re.compile(rb"[\r\n]")
_ESCAPE = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
"""Colours and movements of the cursor. Source: ECMA-48, section 5.4."""


def is_counter(pattern: str | None) -> bool:
    """Return whether a pattern reads a counter instead of a rate."""
    return pattern is not None and f"(?P<{_COUNT}>" in pattern


def divide_rise(before: tuple[int, int], after: tuple[int, int]) -> float:
    """Return the rise of a counter between two instants (ns) over the time, per second; NaN if it fell."""
    (since_ns, low), (t_ns, high) = before, after
    return 1e9 * (high - low) / (t_ns - since_ns) if high >= low and t_ns > since_ns else math.nan


@dataclass(slots=True)
class Rates:
    """Rates in the output of a program.

    Attributes:
        sums: sum and number of the rates at each instant.
        counts: the counter at each instant, if the pattern reads one.
        num_times: number of values that are times, such as `2.00s/it`.
        work_unit: work unit of the values: that of the workload, or else that of the first value.
        units: texts of the units of the values, such as `it/s`.
        unreadable: first line with an unclear number, and the reason; empty if there is none.
        without_number: last line that matches the pattern and contains no number.
        passed_over: number of unmatched lines with a unit, by its text, such as `s/it`.
    """

    sums: dict[int, tuple[float, int]] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)
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
        """Instants in order of time, each with the mean of its rates, or with the rate since the one before, or NaN."""
        if not self.counts:
            return [(t_ns, total / num) for t_ns, (total, num) in sorted(self.sums.items())]
        counts = sorted(self.counts.items())
        rates = [(after[0], divide_rise(before, after)) for before, after in itertools.pairwise(counts)]
        return [(counts[0][0], math.nan), *rates]

    def add_count(self, t_ns: int, count: int) -> int:
        """Add the counter of a line, and return 1."""
        self.counts[t_ns] = max(count, self.counts.get(t_ns, 0))
        self.num_values += 1
        return 1

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
        self._original, self._widened = re.compile(source.pattern), rate_units.widen_pattern(source.pattern)
        self.is_counter = is_counter(source.pattern)
        self.rates = Rates(work_unit=unit or (work_units.STEPS if self.is_counter else ""))

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

    def read_value(self, line: str) -> float | None:
        """Return the rate, or the counter, in a line of the output; `None` if it has no clear one."""
        num_before = self.rates.num_values
        self._add(line, 0)
        self.rates.unreadable = ""
        if self.rates.num_values == num_before:
            return None
        return self.rates.counts.pop(0) if self.is_counter else self.rates.sums.pop(0)[0]

    def _add(self, line: str, t_ns: int) -> int:
        """Add the rate of a line, if it contains one, and return the number of rates at its instant."""
        rates = self.rates
        if self.is_counter:
            match = self._original.search(line)
            digits = (match[_COUNT] or "") if match is not None else ""
            return rates.add_count(t_ns, int(digits)) if digits.isdecimal() and len(digits) <= _MOST_DIGITS else 0
        if (match := self._original.search(line) or self._widened.search(line)) is None:
            unit = rate_units.find_unit(line)
            if unit and (unit in rates.passed_over or len(rates.passed_over) < _MOST_UNITS):
                rates.passed_over[unit] += 1
            return 0
        mark, setting = self._source.decimal_mark, self._source.metric_unit
        try:
            if (number := read_number(line, match.span(1), _find_bounds(match), mark)) is None:
                rates.without_number = line.strip()[:_SHOWN]
                return 0
            sides = line[: number.begin], line[number.end :]
            text = rate_units.read_unit(*sides, rates.work_unit, is_unit_given=setting is not None)
            metric_unit = rate_units.to_unit(text, setting).count_in(rates.work_unit)
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
            block = self._file.read(_BLOCK_BYTES)
            data, begin, at = data[at:] + block, begin + at, 0
            if is_cut and (match := _BREAK.search(data)) is not None:
                is_cut, at = False, match.end()
            elif is_cut:
                at = len(data)
            while (match := _LINE.search(data, at)) is not None and (match.end() < len(data) or not block):
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
            elif not block:
                return


def _decode(line: bytes) -> str:
    if b"\x1b" in line:
        line = _ESCAPE.sub(b"", line)
    return line[:_LINE_BYTES].decode(errors="replace")


_GROUPERS = "_'\u2019\u00a0\u202f\u2009"  # characters that only separate thousands
_SIGNS = "-+\u2212"
_BESIDE = 100
"""Number of characters before and after a number that are examined."""

_TOKEN = re.compile(rf"(?:\d+|(?<!\d)\.\d+)(?:[.,{_GROUPERS}]\d+)*\.?(?:[eE][+-]?\d+(?![\w.]))?")
_ENGLISH = re.compile(r"[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?")
_EUROPEAN = re.compile(r"[1-9]\d{0,2}(?:\.\d{3})+(?:,\d+)?")
_COMMA = re.compile(rf"\d+(?:,\d*)?|{_EUROPEAN.pattern}")
_PLAIN = re.compile(r"\d+\.?\d*|\.\d+")
_GROUPED = re.compile(rf"[1-9]\d{{0,2}}([ {_GROUPERS}])\d{{3}}(?:\1\d{{3}})*(?:[.,]\d*)?")
_NOT_FINITE = re.compile(rf"[{_SIGNS}]?(?:nan|inf(?:inity)?)", re.IGNORECASE)
# A number whose point can only be a decimal mark: commas in other numbers of its line separate thousands.
_DECIMAL_POINT = re.compile(r"(?<![\w.,:])(?:\d+\.(?:\d{1,2}|\d{4,})|(?:0|\d{4,})\.\d+)(?![\d.,:]*\d)")
_SIGN = re.compile(rf"(?:^|[^\w.,)\]])[{_SIGNS}]$")
_PART_OF_MORE = (
    (
        re.compile(r"(?<![\w.,:/-])[1-9]\d{0,2}(?: \d{3})* $"),
        re.compile(r"\d{3}(?!\d)"),
        "the space may separate thousands",
    ),
    (re.compile(r"\d:$"), re.compile(r"\d\d(?!\d)"), "it may be a time"),
    (re.compile(r"\d/$"), re.compile(""), "it may be a fraction"),
    (re.compile(rf"\d[{_SIGNS}]$"), re.compile(""), "it may be a range"),
    (re.compile(r"(?:\u00b1|\+/?-) ?$"), re.compile(""), "it is the uncertainty of another number"),
)
"""Pattern of the text before an ambiguous number, pattern of the number's beginning, and reason."""

_GOES_ON = (
    (re.compile(r"[1-9]\d{0,2}"), re.compile(r" \d{3}(?!\d)"), "the space may separate thousands"),
    (re.compile(r"\d+"), re.compile(r":\d\d(?!\d)"), "it may be a time"),
    (re.compile(""), re.compile(r"/\d"), "it may be a fraction"),
)
"""Pattern of an ambiguous number, pattern of the text after the number, and reason."""

_SAY_MARK = "set workload.decimal_mark=comma or point"
_SAY_PATTERN = "add the text before or after the number to the pattern"


class Number(NamedTuple):
    """A number in a text, with the positions of its beginning, including the sign, and of its end."""

    value: float
    begin: int
    end: int


def read_number(
    text: str, span: tuple[int, int], bounds: tuple[int, int], decimal_mark: str | None = None
) -> Number | None:
    """Return the number that contains a span of a text; `None` if there is no number in the span.

    `span` is the match of the user's group, and `bounds` are the limits that the user's pattern sets for the number.

    Raises:
        UnreadableError: the number is unclear.
    """
    number_text = text[slice(*span)].strip()
    if _NOT_FINITE.fullmatch(number_text):
        return Number(float(number_text.replace("\u2212", "-")), *span)
    tokens = [token for token in _TOKEN.finditer(text, *bounds) if token.start() < span[1] and token.end() > span[0]]
    if not tokens:
        return None
    begin, end = tokens[0].start(), tokens[-1].end()
    if len(tokens) > 1 and not _GROUPED.fullmatch(text[begin:end]):
        raise UnreadableError("the group matches several numbers", "limit the group to one number")
    before, after = text[max(bounds[0], begin - _BESIDE) : begin], text[end : min(bounds[1], end + _BESIDE)]
    if (reason := _explain_ambiguity(before, text[begin:end], after)) is not None:
        raise UnreadableError(reason, _SAY_PATTERN)
    matched = max(begin, span[0]), min(end, span[1])
    begin, end = _pick_from_list(text, (begin, end), matched)
    plain = _normalise(
        text[begin:end], is_all_chosen=(begin, end) == matched, mark=decimal_mark or _find_mark(text, begin, end)
    )
    sign = _SIGN.search(before) if begin == tokens[0].start() else None
    value = -float(plain) if sign is not None and sign[0][-1] != "+" else float(plain)
    return Number(value, begin - (sign is not None), end)


def _explain_ambiguity(before: str, number: str, after: str) -> str | None:
    for text_before, begins, reason in _PART_OF_MORE:
        if text_before.search(before) and begins.match(number):
            return reason
    for digits, follows, reason in _GOES_ON:
        if digits.fullmatch(number) and follows.match(after):
            return reason
    return None


def _pick_from_list(text: str, token: tuple[int, int], matched: tuple[int, int]) -> tuple[int, int]:
    """Return the chosen number of a list without spaces, such as `12,5130.4`."""
    begin, end = token
    listed = text[begin:end]
    if "," not in listed or "." not in listed or _ENGLISH.fullmatch(listed) or _EUROPEAN.fullmatch(listed):
        return token
    comma_before, comma_after = text.rfind(",", begin, matched[0]), text.find(",", matched[1], end)
    return comma_before + 1 or begin, end if comma_after < 0 else comma_after


def _find_mark(text: str, begin: int, end: int) -> str | None:
    """Return the decimal mark of a line from its other numbers, because a program uses one mark."""
    if "," not in text[begin:end]:
        return None
    other_numbers = (match for match in _DECIMAL_POINT.finditer(text) if match.end() <= begin or match.start() >= end)
    return "." if next(other_numbers, None) is not None else None


def _normalise(number: str, *, is_all_chosen: bool, mark: str | None) -> str:
    """Return a number in Python's notation; `is_all_chosen` is true if the user's group contains the entire number."""
    digits, *exponents = re.split("(?=[eE])", number, maxsplit=1)
    if (grouped := _GROUPED.fullmatch(digits)) is not None:
        digits = digits.replace(grouped[1], "")
    points, commas = digits.count("."), digits.count(",")
    if mark is None and (commas or points > 1):
        if _EUROPEAN.fullmatch(digits):
            mark = ","
        elif _ENGLISH.fullmatch(digits):
            mark = "." if points or commas > 1 else None
        elif is_all_chosen and not points and commas == 1:
            mark = ","
    form = _PLAIN if not commas and (points < 2 and mark != ",") else {",": _COMMA, ".": _ENGLISH}.get(mark or "")
    if form is None or not form.fullmatch(digits):
        if commas:
            raise UnreadableError("its comma may separate decimals or thousands", _SAY_MARK)
        raise UnreadableError("it is not a number", _SAY_PATTERN)
    separator = "." if mark == "," else ","
    return "".join((digits.replace(separator, "").replace(",", "."), *exponents))
