"""The marks of a row: the reason why it is invalid, and notes on its figures."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pipeline.base.domain.tags import Tag
from pipeline.base.system.words import format_count

_SEPARATOR = "; "
_VARIABLE = re.compile(
    r"(?<![\w.+-])(?:(?P<job>\d+-[A-Za-z](?:[\w.-]*\w)?)"
    r"|(?P<low>\d+(?:\.\d+)?)(?: to (?P<high>\d+(?:\.\d+)?))?)(?![\w-])"
)
"""Pattern of the name of a job, a number or a range of numbers. Marks that differ only in these have one reason."""


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
    """Read the marks of a row from its tags."""
    invalid = tags.get(Tag.INVALID, "")
    repeated = invalid.split(_SEPARATOR)
    return Marks(invalid, join(part for part in tags.get(Tag.FLAG, "").split(_SEPARATOR) if part not in repeated))


def join(parts: Iterable[str]) -> str:
    """Join the non-empty parts of a mark."""
    return _SEPARATOR.join(filter(None, parts))


def merge(texts: Iterable[str]) -> dict[str, int]:
    """Merge texts that differ only in numbers and names of jobs, and count them: `made 11 to 15 steps`."""
    alike: dict[str, list[str]] = defaultdict(list)
    for text in texts:
        alike[find_reason(text)].append(text)
    return {_spell_variables(texts): len(texts) for texts in alike.values()}


def merge_notes(notes: Iterable[str], noun: str) -> list[str]:
    """Merge the notes of several rows to one part for each reason; where their numbers differ, count the rows.

    Args:
        notes: note of each row.
        noun: what a row is, such as `block`.
    """
    alike: dict[tuple[str, int], list[str]] = defaultdict(list)
    for note in notes:
        repeated: Counter[str] = Counter()  # one remedy may follow several reasons
        for part in filter(None, note.split(_SEPARATOR)):
            reason = find_reason(part)
            alike[reason, repeated[reason]].append(part)
            repeated[reason] += 1
    return [
        _spell_variables(parts) + (f" ({format_count(len(parts), noun)})" if len(set(parts)) > 1 else "")
        for parts in alike.values()
    ]


def find_reason(text: str) -> str:
    """Return a text without its numbers and names of jobs, by which alike texts are merged."""
    return _VARIABLE.sub(lambda match: "JOB" if match["job"] else "NUMBER", text)


def _spell_variables(texts: Sequence[str]) -> str:
    """Return the first of texts that are alike, with the range of each number and the names of each job of all."""
    columns = zip(*(list(_VARIABLE.finditer(text)) for text in texts), strict=True)
    spelled = iter([_spell_variable(column) for column in columns])
    return _VARIABLE.sub(lambda _: next(spelled), texts[0])


def _spell_variable(matches: Sequence[re.Match[str]]) -> str:
    words = list(dict.fromkeys(match[0] for match in matches))
    if len(words) == 1:
        return words[0]
    if matches[0]["job"]:
        return " or ".join(words if len(words) == 2 else [words[0], "others"])
    numbers = sorted((match[name] for match in matches for name in ("low", "high") if match[name]), key=float)
    return f"{numbers[0]} to {numbers[-1]}"
