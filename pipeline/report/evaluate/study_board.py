"""A board: the cases of several studies and GPUs in one table, and whether their verdicts agree.

A row is one case with equal programs. No figure combines columns. An entry lists the settings in which it differs from
the first entry of its row.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.report.evaluate.case_matching import find_varying_params, match_cases
from pipeline.report.evaluate.outcomes import DeviceSummary, Outcome
from pipeline.report.evaluate.wording import join_words


class Agreement(enum.StrEnum):
    """The agreement of the verdicts of a row over its columns."""

    SAME = "same"
    OPEN = "open"
    DIFFER = "differ"
    ALONE = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A study on one kind of device, and the number of its column, from 1."""

    number: int
    name: str
    source: str
    measured: DeviceSummary

    @property
    def mark(self) -> str:
        """The name of the column on the board: `[1]`."""
        return f"[{self.number}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An outcome; `differs` lists the settings in which it differs from the first outcome of its row."""

    outcome: Outcome
    differs: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One case at one degree, with its entries by column.

    Attributes:
        consists: the workloads of a mix.
        agreement, why: agreement of the entries, with its reason; only of real GPUs if there are any.
    """

    label: str
    degree: int
    consists: str
    entries: Mapping[int, Entry]
    agreement: Agreement
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """A table of several studies; `common` lists the settings that are equal in all entries, in words."""

    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    common: tuple[str, ...]


def make_board(columns: Sequence[Column]) -> Board:
    """Make a board with the columns in the given order."""
    places = [(number, outcome) for number, column in enumerate(columns) for outcome in column.measured.outcomes]
    _, shared = find_varying_params([outcome for _, outcome in places])
    settings = [fact for _, outcome in places for fact in outcome.settings.items()]
    common = [f"{key} {value}" for key, value in dict(settings).items() if settings.count((key, value)) == len(places)]
    stamps = [column.measured.stamp for column in columns]
    lines = []
    for case in match_cases(places):
        entries = {n: Entry(outcome=outcome, differs=case.differs[n]) for n, outcome in case.members.items()}
        agreement, why = _agreement(entries, [column.mark for column in columns], stamps)
        lines.append(
            Line(
                label=case.label,
                degree=case.degree,
                consists=case.consists,
                entries=entries,
                agreement=agreement,
                why=why,
            )
        )
    return Board(columns=tuple(columns), lines=tuple(lines), common=(*shared, *common))


def _agreement(entries: Mapping[int, Entry], names: Sequence[str], stamps: Sequence[str]) -> tuple[Agreement, str]:
    judged = {number: entry for number, entry in entries.items() if len(entry.outcome.kinds) > 1}
    real = {number: entry for number, entry in judged.items() if not stamps[number]}
    judged = real or judged
    if len(judged) < 2:
        return Agreement.ALONE, ""
    stamp = "" if real else f" ({' and '.join(sorted({stamps[number] for number in judged}))})"
    other = " (settings differ)" if any(entry.differs for entry in judged.values()) else ""
    best = {n: {e.outcome.kinds[mode] for mode in e.outcome.tied} for n, e in judged.items()}
    common = set.intersection(*best.values())
    undecided = [names[number] for number, kinds in best.items() if len(kinds) > 1]
    if common and not undecided:
        return Agreement.SAME, f"{common.pop()}{other}{stamp}"
    if common:
        where = "in all" if len(undecided) == len(judged) else f"on {join_words(undecided)}"
        decided = sorted(set().union(*(kinds for kinds in best.values() if len(kinds) == 1)))
        where += f", {join_words(decided)} elsewhere" if decided else ""
        return Agreement.OPEN, f"undecided {where}{other}{stamp}"
    for number, entry in judged.items():
        absent = set.union(*best.values()) - set(entry.outcome.kinds.values())
        if absent:
            return Agreement.OPEN, f"{join_words(sorted(absent))} has no figure on {names[number]}{other}{stamp}"
    parts = [f"{' or '.join(sorted(kinds))} on {names[number]}" for number, kinds in best.items()]
    return Agreement.DIFFER, f"{join_words(parts)}{other}{stamp}"
