"""The marks of a row: the reason why it is invalid, and notes on its figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pipeline.base.domain.tags import Tag

_SEPARATOR = "; "
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


class Marks(NamedTuple):
    """The marks of one row, as text; empty if there are none.

    Attributes:
        invalid: reason why the figures are not comparable, such as a stalled job. An invalid row is never shown as
            fastest, used as a baseline or included in a verdict.
        note: information that a reader needs to interpret the figures, such as a power cap. A note excludes no row,
            because exclusion by outcome would bias the remaining rows.
    """

    invalid: str = ""
    note: str = ""

    @property
    def text(self) -> str:
        """Both marks as one text."""
        return f"invalid: {self.invalid}" + (f"; note: {self.note}" if self.note else "") if self.invalid else self.note


NO_MARKS = Marks()


def read_marks(tags: Mapping[str, str]) -> Marks:
    """Read the marks of a row from its tags.

    Rows of earlier versions have an extra tag for stalled jobs, whose text is also in the notes.
    """
    invalid = tags.get(Tag.INVALID) or tags.get(Tag.STALLED, "")
    repeated = invalid.split(_SEPARATOR)
    return Marks(invalid, join(part for part in tags.get(Tag.FLAG, "").split(_SEPARATOR) if part not in repeated))


def join(parts: Iterable[str]) -> str:
    """Join the non-empty parts of a mark."""
    return _SEPARATOR.join(filter(None, parts))


def merge_notes(notes: Iterable[str]) -> tuple[str, ...]:
    """Return one note for all notes that differ in their numbers only: the one with the highest last number."""
    by_kind: dict[str, tuple[float, str]] = {}
    for note in notes:
        kind, numbers = _NUMBER.sub("", note), _NUMBER.findall(note)
        last = float(numbers[-1]) if numbers else 0.0
        if kind not in by_kind or last > by_kind[kind][0]:
            by_kind[kind] = last, note
    return tuple(note for _, note in by_kind.values())
