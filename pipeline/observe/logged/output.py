"""Numbers in the lines of a program's output, and when they were written (`Events.written`)."""

from __future__ import annotations

import mmap
import os
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path

from pipeline.base import regular_files

_LINE = re.compile(rb"[^\r\n]+")  # a progress bar writes over its line
_NUMBER = re.compile(
    r"""((?<![\w.,])[+-])?                                         # the 5 of `step-5` is not negative
        ((\d{1,3}(,\d{3})+(?!\d)|\d+)(\.\d*)?|\.\d+)              # commas separate thousands
        ([eE][+-]?\d+)?""",
    re.VERBOSE,
)


def points(path: Path, pattern: str, written: Sequence[tuple[int, int]], end_ns: int) -> Iterator[tuple[int, float]]:
    """`(instant, number)` of every line that matches and has a number in the group of the pattern.

    A group that the pattern does not bound takes in the whole number that it is a part of: of `([0-9.]+) samples/s` and
    `1,050.0 samples/s`, 1050, as of `1.05e3 samples/s`.

    Args:
        path: of the output.
        pattern: a regular expression with one group.
        written: instants, each with the bytes that there were.
        end_ns: when the program ended, for what came after the last of them.
    """
    sizes = [size for _, size in written]
    wanted = re.compile(pattern)
    for line, end in _lines(path):
        found = wanted.search(line)
        number = _number(_whole(found)) if found else None
        if number is not None:
            at = bisect_left(sizes, end)
            yield (written[at][0] if at < len(written) else end_ns), number


def _lines(path: Path) -> Iterator[tuple[str, int]]:
    """Each line, and where it ends. The file is mapped: it may be larger than the memory."""
    try:
        with (
            os.fdopen(regular_files.opened(path), "rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            for line in _LINE.finditer(data):
                yield line[0].decode(errors="replace"), line.end()
    except (OSError, ValueError):  # it cannot be read, or is empty
        return


def _whole(found: re.Match[str]) -> str:
    """What the group has matched, or the number of which that is a part that the pattern itself does not cut out."""
    begin, end = found.span(1)
    lowest = 0 if found.start() == begin else begin
    highest = len(found.string) if found.end() == end else end
    for number in _NUMBER.finditer(found.string):
        if lowest <= number.start() <= begin and end <= number.end() <= highest:
            return number[0]
    return found[1] or ""


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None
