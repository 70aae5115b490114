"""A board: the cases of several studies and GPUs in one table, and whether their verdicts agree.

A row is one case with equal programs. No figure combines columns. An entry lists the settings in which it differs from
the first entry of its row.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from pipeline.base.domain.group_names import find_differing_keys
from pipeline.base.domain.records import CO_RUNNERS, OTHER_GPUS
from pipeline.base.system.grouping import group_by
from pipeline.base.system.words import natural_key
from pipeline.report.evaluate.outcomes import DeviceSummary, Outcome, Program
from pipeline.report.evaluate.wording import join_words
from pipeline.report.read import labels

NOT_RECORDED = "not recorded"
_ROW_SETTINGS = (CO_RUNNERS, OTHER_GPUS)
_MOST_SAID = 3


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


_Identity = tuple[object, ...]
_Place = tuple[int, Outcome]
"""The number of a column, and one of its outcomes."""


def make_board(columns: Sequence[Column]) -> Board:
    """Make a board with the columns in the given order."""
    places = [(number, outcome) for number, column in enumerate(columns) for outcome in column.measured.outcomes]
    programs = [program.params for _, outcome in places for program in outcome.programs]
    words = labels.collect_words(programs)
    shared = {key for key, values in words.items() if len(values) == 1 and all(key in params for params in programs)}
    varying = words.keys() - shared
    facts = {id(outcome): _facts(outcome) for _, outcome in places}
    settings = [fact for _, outcome in places for fact in outcome.settings.items()]
    common = [f"{key} {value}" for key, value in dict(settings).items() if settings.count((key, value)) == len(places)]
    stamps = [column.measured.stamp for column in columns]
    lines = []
    for row, apart in _rows(places, facts):
        entries = {
            number: Entry(outcome=outcome, differs=_describe_difference(row, outcome, facts)) for number, outcome in row
        }
        first = row[0][1]
        agreement, why = _agreement(entries, [column.mark for column in columns], stamps)
        lines.append(
            Line(
                label=" ".join(filter(None, (_label(first, varying), *_list_facts(first, apart, facts)))),
                degree=first.degree,
                consists=_describe_mix(first),
                entries=entries,
                agreement=agreement,
                why=why,
            )
        )
    return Board(
        columns=tuple(columns),
        lines=tuple(sorted(lines, key=lambda line: (bool(line.consists), natural_key(line.label), line.degree))),
        common=(*(next(iter(words[key])) for key in words if key in shared), *common),
    )


def _rows(places: Sequence[_Place], facts: Mapping[int, Mapping[str, str]]) -> list[tuple[list[_Place], list[str]]]:
    """Return the outcomes of each row, and the facts that distinguish the row from others of the same study."""
    separated = []
    for same in group_by(places, lambda place: _identity(place[1])).values():
        by_column = group_by(same, lambda place: place[0])
        apart = sorted(
            {
                key
                for column in by_column.values()
                for key in find_differing_keys([facts[id(other)] for _, other in column])
            }
        )
        rows: dict[_Identity, list[_Place]] = defaultdict(list)
        for number, outcome in same:
            identity: _Identity = tuple(facts[id(outcome)].get(key) for key in apart)
            twins = [other for _, other in by_column[number] if facts[id(other)] == facts[id(outcome)]]
            # Some outcomes differ only in the label, for example if the order of the jobs differs.
            rows[(*identity, outcome.label) if len(twins) > 1 else identity].append((number, outcome))
        separated += [(row, apart) for row in rows.values()]
    return separated


def _identity(outcome: Outcome) -> _Identity:
    """Return the identity of a row: the labelled params and the number of its jobs, co-runners and other GPUs."""
    programs = [
        (program.workload, program.params.get("batch_size", ""), tuple(_select_params(program).items()), program.number)
        for program in outcome.programs
    ]
    return (tuple(sorted(programs)), *(outcome.settings.get(key, "") for key in _ROW_SETTINGS))


def _facts(outcome: Outcome) -> dict[str, str]:
    """Return the settings of the measurement, and the params of programs that labels do not show."""
    facts = {key: value for key, value in outcome.settings.items() if key not in _ROW_SETTINGS}
    for program in outcome.programs:
        prefix = f"{program.workload} " if len(outcome.programs) > 1 else ""
        labelled = {"batch_size", *_select_params(program)}
        facts |= {f"{prefix}{key}": value for key, value in program.params.items() if key not in labelled}
    return facts


def _select_params(program: Program) -> dict[str, str]:
    return {key: program.params[key] for key in sorted(labels.collect_words([program.params])) if key in program.params}


def _label(outcome: Outcome, varying: Container[str]) -> str:
    programs = outcome.programs
    words = [labels.params_in_words(program.params, varying) for program in programs]
    names = [
        labels.label_workload(program.workload, program.params, word)
        for program, word in zip(programs, words, strict=True)
    ]
    jobs = [
        labels.JobLabel(name, program.size or None, word)
        for name, program, word in zip(names, programs, words, strict=True)
        for _ in range(program.number)
    ]
    beside = [f"[{key} {outcome.settings[key]}]" for key in _ROW_SETTINGS if outcome.settings.get(key)]
    return " ".join([labels.label_jobs(labels.sort_jobs(jobs)), *beside])


def _list_facts(outcome: Outcome, keys: Sequence[str], facts: Mapping[int, Mapping[str, str]]) -> list[str]:
    known = facts[id(outcome)]
    return [f"{key} {known[key]}" if key in outcome.settings else f"{key}={known[key]}" for key in keys if key in known]


def _describe_mix(outcome: Outcome) -> str:
    if len(outcome.programs) < 2:
        return ""
    named = [
        (program.size, labels.label_workload(program.workload, program.params, "")) for program in outcome.programs
    ]
    return "; ".join(f"{size}: {label}" if size else label for size, label in named)


def _describe_difference(row: Sequence[_Place], outcome: Outcome, facts: Mapping[int, Mapping[str, str]]) -> str:
    first, second = facts[id(row[0][1])], facts[id(outcome)]
    keys = find_differing_keys([first, second])
    differences = [f"{key} {second[key]} instead of {first[key]}" for key in keys if key in second and key in first]
    unknown = [f"{key} {second.get(key, NOT_RECORDED)}" for key in keys if (key in second) != (key in first)]
    if len(unknown) > 1:
        unknown = [f"{len(unknown)} settings recorded by only one of the two"]
    more = [f"{len(differences) - _MOST_SAID} more"] if len(differences) > _MOST_SAID else []
    return "; ".join([*differences[:_MOST_SAID], *more, *unknown])


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
