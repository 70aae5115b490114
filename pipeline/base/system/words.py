"""Text for users: counts, durations, aligned tables, a progress line on stderr."""

from __future__ import annotations

import re
import shlex
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

_CONTROLS = re.compile("[\0-\b\v-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
_CONTROLS_IN_JSON = re.compile(r"(?<!\\)(?=\\u(?:00[0189][0-9a-f]|007f|202[89a-e]|206[6-9]))", re.IGNORECASE)

_PATIENCE_S = 2.0
_last_line_s = time.monotonic()
"""Time of the last line of progress; at first, of the program's start."""


def format_count(number: int, noun: str) -> str:
    """Count something: `1 group`, `2 groups`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def format_list(values: Iterable[object]) -> str:
    """Format a list as on the command line: `[S,M]`."""
    return f"[{','.join(map(str, values))}]"


def list_first(names: Sequence[str], most: int) -> str:
    """List the first names: `a, b and 3 more`."""
    num_unlisted = len(names) - most
    return ", ".join(names[:most]) + (f" and {num_unlisted} more" if num_unlisted > 0 else "")


def format_duration(seconds: float) -> str:
    """Format a duration for users: `42 s`, `6.7 min`, `42 min`, `3 h 05 min`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 600:
        return f"{seconds / 60:.2g} min"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def align_table(lines: Sequence[Sequence[str]], left_columns: Collection[int] = (0,)) -> list[str]:
    """Align a text table: the columns in `left_columns` to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if number in left_columns else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


def say(text: str) -> None:
    """Print one line of progress."""
    global _last_line_s
    _last_line_s = time.monotonic()
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


@contextmanager
def announce(activity: str) -> Iterator[None]:
    """Name the activity of the body on a terminal after two seconds without a line; also a decorator."""
    silent_s = time.monotonic() - _last_line_s
    timer = threading.Timer(max(0.0, _PATIENCE_S - silent_s), say, [f"{activity} ..."])
    timer.daemon = True
    if sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def wrap_command(command: str, indent: str = "    ", width: int = 100) -> str:
    """Indent a command line and break it between words, as a shell reads it."""
    lines = [indent]
    for word in map(shlex.quote, shlex.split(command)):
        if lines[-1].strip() and len(f"{lines[-1]} {word}") > width - 2:
            lines.append(f"{indent}   ")
        lines[-1] += f" {word}" if lines[-1].strip() or len(lines) > 1 else word
    return " \\\n".join(lines)


def escape_to_utf8(text: str) -> str:
    """Return a text that can be stored: bytes of a name that are not UTF-8 are escaped."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def escape_controls(text: str) -> str:
    """Replace the characters that a terminal obeys, or that reorder a line, by their escapes; lines and tabs stay."""
    text = _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
    return _CONTROLS_IN_JSON.sub(r"\\", text) if "\\u" in text else text


def natural_key(text: str) -> tuple[str | int, ...]:
    """Return a sort key that orders the numbers in texts: `bs8` before `bs16`."""
    return tuple(int(part) if number % 2 else part for number, part in enumerate(re.split(r"(\d+)", text)))


_Key = TypeVar("_Key", bound=Hashable)
_Member = TypeVar("_Member")


def group_by(members: Iterable[_Member], key_of: Callable[[_Member], _Key]) -> dict[_Key, list[_Member]]:
    """Return the members per key; keys and members keep their order of appearance."""
    groups: dict[_Key, list[_Member]] = defaultdict(list)
    for member in members:
        groups[key_of(member)].append(member)
    return dict(groups)
