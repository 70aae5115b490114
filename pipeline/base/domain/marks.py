"""The marks of a row: why it is invalid, and what is noted beside its figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from pipeline.base.domain.tags import Tag

_SEPARATOR = "; "


class Marks(NamedTuple):
    """The marks of one row, in words; empty if there is none.

    Attributes:
        invalid: why its figures measure something else, as when a job stood still: it leads nothing, is no baseline and
            is in no verdict.
        note: what a reader must know of its figures, such as a power cap: it stands beside them and excludes nothing,
            because to exclude on the outcome biases what is left.
    """

    invalid: str = ""
    note: str = ""

    @property
    def text(self) -> str:
        """Both, as one text, which tells where the note begins."""
        return f"invalid: {self.invalid}" + (f"; note: {self.note}" if self.note else "") if self.invalid else self.note


NO_MARKS = Marks()


def read_marks(tags: Mapping[str, str]) -> Marks:
    """Read the marks of a row from its tags.

    Rows of earlier versions have a tag of their own for jobs that stood still, which is repeated in the notes.
    """
    invalid = tags.get(Tag.INVALID) or tags.get(Tag.STALLED, "")
    repeated = invalid.split(_SEPARATOR)
    return Marks(invalid, join(part for part in tags.get(Tag.FLAG, "").split(_SEPARATOR) if part not in repeated))


def join(parts: Iterable[str]) -> str:
    """Join the parts of a mark that say something."""
    return _SEPARATOR.join(filter(None, parts))
