"""A board: the cases of several studies and GPUs beside each other, and whether their verdicts agree.

A row is one case of equal programs. Figures of different columns are never put together, and what was measured at other
settings than the first of its row says in what they differ.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from pipeline.base.domain.group_names import differing
from pipeline.base.domain.records import BESIDE, NEIGHBOURS
from pipeline.base.system.words import natural
from pipeline.report.evaluate.outcomes import Measured, Outcome, Program
from pipeline.report.evaluate.wording import listed
from pipeline.report.read import labels

NOT_RECORDED = "not recorded"
_OF_THE_ROW = (NEIGHBOURS, BESIDE)
_MOST_SAID = 3


class Agreement(enum.StrEnum):
    """What the verdicts of a row come to, over its columns."""

    SAME = "same"
    OPEN = "open"
    DIFFER = "differ"
    ALONE = "-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A study on one kind of device, and its number on the board, from 1."""

    number: int
    name: str
    source: str
    measured: Measured

    @property
    def mark(self) -> str:
        """What the board calls it: `[1]`."""
        return f"[{self.number}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An outcome in its place; `differs` says how its settings differ from the first one's of its row."""

    outcome: Outcome
    differs: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One case at one degree, with an entry for each column that has it, by the place of the column.

    Attributes:
        consists: of a mix, what its letters are.
        agreement, why: over the entries of real GPUs, or of simulated ones where there are no others.
    """

    label: str
    degree: int
    consists: str
    entries: Mapping[int, Entry]
    agreement: Agreement
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """Columns and lines; `common` is what all jobs and measurements have in common, in words."""

    columns: tuple[Column, ...]
    lines: tuple[Line, ...]
    common: tuple[str, ...]


_Identity = tuple[object, ...]
_Place = tuple[int, Outcome]
"""The place of a column, and an outcome of it."""


def board_of(columns: Sequence[Column]) -> Board:
    """The board of some columns, in their order."""
    places = [(number, each) for number, column in enumerate(columns) for each in column.measured.outcomes]
    programs = [program.params for _, outcome in places for program in outcome.programs]
    said = labels.of_all(programs)
    shared = {key for key, values in said.items() if len(values) == 1 and all(key in params for params in programs)}
    varying = said.keys() - shared
    facts = {id(outcome): _facts(outcome) for _, outcome in places}
    settings = [fact for _, outcome in places for fact in outcome.settings.items()]
    common = [f"{key} {value}" for key, value in dict(settings).items() if settings.count((key, value)) == len(places)]
    stamps = [column.measured.stamp for column in columns]
    lines = []
    for here, apart in _rows(places, facts):
        entries = {number: Entry(outcome=outcome, differs=_differs(here, outcome, facts)) for number, outcome in here}
        first = here[0][1]
        agreement, why = _agreement(entries, [column.mark for column in columns], stamps)
        lines.append(
            Line(
                label=" ".join(filter(None, (_label(first, varying), *_apart(first, apart, facts)))),
                degree=first.degree,
                consists=_consists(first),
                entries=entries,
                agreement=agreement,
                why=why,
            )
        )
    return Board(
        columns=tuple(columns),
        lines=tuple(sorted(lines, key=lambda line: (bool(line.consists), natural(line.label), line.degree))),
        common=(*(next(iter(said[key])) for key in said if key in shared), *common),
    )


def _rows(places: Sequence[_Place], facts: Mapping[int, Mapping[str, str]]) -> list[tuple[list[_Place], list[str]]]:
    """The outcomes of each row, and the facts that tell the row from others whose jobs are called the same.

    These are the facts in which outcomes of one column differ: a study that varies them compares them.
    """
    alike: dict[_Identity, list[_Place]] = defaultdict(list)
    for place in places:
        alike[_identity(place[1])].append(place)
    found = []
    for same in alike.values():
        of_column: dict[int, list[Outcome]] = defaultdict(list)
        for number, outcome in same:
            of_column[number].append(outcome)
        apart = sorted({key for mine in of_column.values() for key in differing([facts[id(each)] for each in mine])})
        rows: dict[_Identity, list[_Place]] = defaultdict(list)
        for number, outcome in same:
            identity: _Identity = tuple(facts[id(outcome)].get(key) for key in apart)
            twins = [each for each in of_column[number] if facts[id(each)] == facts[id(outcome)]]
            # Such as the same jobs in another order: its study has a label for it.
            rows[(*identity, outcome.label) if len(twins) > 1 else identity].append((number, outcome))
        found += [(row, apart) for row in rows.values()]
    return found


def _identity(outcome: Outcome) -> _Identity:
    """What is compared across studies: the jobs by all that a label says, their number, and what ran beside."""
    programs = [(each.workload, _batch(each), tuple(_words(each).items()), each.number) for each in outcome.programs]
    return (tuple(sorted(programs)), *(outcome.settings.get(key, "") for key in _OF_THE_ROW))


def _facts(outcome: Outcome) -> dict[str, str]:
    """All else: the settings of the measurement, and what the programs were given that no label says."""
    found = {key: value for key, value in outcome.settings.items() if key not in _OF_THE_ROW}
    for program in outcome.programs:
        mine = f"{program.workload} " if len(outcome.programs) > 1 else ""
        said = {"batch_size", *_words(program)}
        found |= {f"{mine}{key}": value for key, value in program.params.items() if key not in said}
    return found


def _words(program: Program) -> dict[str, str]:
    return {key: program.params[key] for key in sorted(labels.of_all([program.params])) if key in program.params}


def _batch(program: Program) -> str:
    return program.params.get("batch_size", "")


def _label(outcome: Outcome, varying: Container[str]) -> str:
    programs = outcome.programs
    words = [labels.params_in_words(program.params, varying) for program in programs]
    names = [
        labels.workload_label(each.workload, each.params, word) for each, word in zip(programs, words, strict=True)
    ]
    jobs = [
        labels.Called(name, program.size or None, word)
        for name, program, word in zip(names, programs, words, strict=True)
        for _ in range(program.number)
    ]
    beside = [f"[{key} {outcome.settings[key]}]" for key in _OF_THE_ROW if outcome.settings.get(key)]
    return " ".join([labels.jobs_label(labels.in_one_order(jobs)), *beside])


def _apart(outcome: Outcome, keys: Sequence[str], facts: Mapping[int, Mapping[str, str]]) -> list[str]:
    own = facts[id(outcome)]
    return [f"{key} {own[key]}" if key in outcome.settings else f"{key}={own[key]}" for key in keys if key in own]


def _consists(outcome: Outcome) -> str:
    if len(outcome.programs) < 2:
        return ""
    named = [(each.size, labels.workload_label(each.workload, each.params, "")) for each in outcome.programs]
    return "; ".join(f"{size}: {label}" if size else label for size, label in named)


def _differs(here: Sequence[_Place], outcome: Outcome, facts: Mapping[int, Mapping[str, str]]) -> str:
    """How the settings of an outcome differ from those of the first in its row; empty if in nothing."""
    first, own = facts[id(here[0][1])], facts[id(outcome)]
    keys = differing([first, own])
    said = [f"{key} {own[key]} instead of {first[key]}" for key in keys if key in own and key in first]
    unknown = [f"{key} {own.get(key, NOT_RECORDED)}" for key in keys if (key in own) != (key in first)]
    if len(unknown) > 1:
        unknown = [f"{len(unknown)} settings that only one of the two records"]
    more = [f"{len(said) - _MOST_SAID} more"] if len(said) > _MOST_SAID else []
    return "; ".join([*said[:_MOST_SAID], *more, *unknown])


def _agreement(entries: Mapping[int, Entry], names: Sequence[str], stamps: Sequence[str]) -> tuple[Agreement, str]:
    """Whether the columns name the same kind of sharing as the best, and why not."""
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
        where = "in all" if len(undecided) == len(judged) else f"on {listed(undecided)}"
        decided = sorted(set().union(*(kinds for kinds in best.values() if len(kinds) == 1)))
        where += f", {listed(decided)} elsewhere" if decided else ""
        return Agreement.OPEN, f"undecided {where}{other}{stamp}"
    for number, entry in judged.items():
        absent = set.union(*best.values()) - set(entry.outcome.kinds.values())
        if absent:
            return Agreement.OPEN, f"{listed(sorted(absent))} has no figure on {names[number]}{other}{stamp}"
    each = [f"{' or '.join(sorted(kinds))} on {names[number]}" for number, kinds in best.items()]
    return Agreement.DIFFER, f"{listed(each)}{other}{stamp}"
