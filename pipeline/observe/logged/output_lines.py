"""The lines of an output of any size, with the offset of each end, a few at a time in memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

_BLOCK_BYTES = 1 << 20
_LINE_BYTES = 1 << 16
_LINE = re.compile(rb"[^\r\n]+")  # a progress bar writes over its line
_BREAK = re.compile(rb"[\r\n]")
_ESCAPE = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]")
"""Colours and movements of the cursor. Source: ECMA-48, section 5.4."""


class OutputLines:
    """Iterator over `(line, offset of its end)`, without escape sequences.

    A line longer than 64 KiB is cut there, after a whole word.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._target = 0

    def skip_to(self, offset: int) -> None:
        """Continue with the first line that begins behind an offset."""
        self._target = offset

    def __iter__(self) -> Iterator[tuple[str, int]]:
        begin, data, at, is_cut = 0, b"", 0, False
        while True:
            more = self._file.read(_BLOCK_BYTES)
            data, begin, at = data[at:] + more, begin + at, 0
            if is_cut and (found := _BREAK.search(data)) is not None:
                is_cut, at = False, found.end()
            elif is_cut:
                at = len(data)
            while (found := _LINE.search(data, at)) is not None and (found.end() < len(data) or not more):
                at = found.end()
                yield _text(found[0]), begin + at
                if self._target > begin + at:
                    break
            if self._target > begin + at:
                self._file.seek(self._target)
                begin, data, at, is_cut = self._target, b"", 0, True
            elif len(data) - at > _LINE_BYTES:
                line = data[at : at + _LINE_BYTES].lstrip(b"\r\n")
                yield _text(line.rpartition(b" ")[0]), begin + at + _LINE_BYTES
                at, is_cut = len(data), True
            elif not more:
                return


def _text(line: bytes) -> str:
    if b"\x1b" in line:
        line = _ESCAPE.sub(b"", line)
    return line[:_LINE_BYTES].decode(errors="replace")
