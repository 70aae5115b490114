"""Counts and reasons of the impossible lines or records of a job, which were left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from pipeline.base.system.words import format_count

_MOST_NAMED = 3


class ImpossibleLineError(ValueError):
    """Error of an impossible line; its text is one of a fixed set of reasons."""


@dataclass(slots=True)
class Damages:
    """Lines or records that were left out of a file.

    Attributes:
        noun: the unit of the file, such as `line` or `request`.
        reasons: the reasons for leaving lines out, each with its number of lines.
        first: number of the first line that was left out, from 1; 0 if unknown.
    """

    noun: str = "line"
    reasons: Counter[str] = field(default_factory=Counter)
    first: int = 0

    def __len__(self) -> int:
        return self.reasons.total()

    def add(self, reason: str, number: int, times: int = 1) -> None:
        if times:
            self.reasons[reason] += times
            self.first = self.first or number

    def describe(self) -> str:
        """Return `3 lines (number 13 first): a step counts work again (2), not an event (1)`; empty if none."""
        if not self.reasons:
            return ""
        named = self.reasons.most_common(_MOST_NAMED)
        num_other = len(self.reasons) - len(named)
        reasons = ", ".join(f"{reason} ({number})" if len(self) > 1 else reason for reason, number in named)
        first = f" (number {self.first}{' first' if len(self) > 1 else ''})" if self.first else ""
        return f"{format_count(len(self), self.noun)}{first}: {reasons}" + (
            f", and {num_other} more" if num_other else ""
        )
