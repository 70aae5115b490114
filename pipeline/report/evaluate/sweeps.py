"""Cells that differ in one swept parameter: batch size, sequence length, arrival rate, a flag, MIG profile, ..."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.base.domain.group_names import as_flags, own_params
from pipeline.report.evaluate.cells import Case, Cell
from pipeline.report.read import labels

FEWEST = 3
"""Values that make a line; of two, the tables say as much."""

Items = tuple[tuple[str, str], ...]
Program = tuple[str, Mapping[str, str]]
"""A workload's name and its own params."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """Cells that differ in one parameter.

    Attributes:
        axis: what it is called.
        what: runs, without it.
        ticks: its values in words, by their place on the axis, in order.
        cells: by their place on the axis.
        is_numeric: whether the places are values.
    """

    axis: str
    what: str
    ticks: Mapping[float, str]
    cells: Mapping[float, Sequence[Cell]]
    is_numeric: bool = True


def numbers(cells: Sequence[Cell], fewest: int, only: str | None = None) -> Iterator[Swept]:
    """By each param of a workload that is a number, or only by that one, where nothing else differs.

    Of what takes fewer values than `fewest` there is nothing.
    """
    programs = {cell.case: _programs(cell.case) for cell in cells}
    found: dict[tuple[str, str, str, Items], dict[float, list[Cell]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        jobs = programs[cell.case]
        for name, key, value in _numbers(jobs):
            if only not in (None, key):
                continue
            found[name, key, _what(name, jobs), _all_else(cell.case, jobs, name, key)][value].append(cell)
    swept = {place: by_value for place, by_value in found.items() if len(by_value) >= fewest}
    alike: dict[tuple[str, str, str], list[Items]] = defaultdict(list)
    for name, key, what, rest in swept:
        alike[name, key, what].append(rest)
    for (name, key, what), rests in alike.items():
        words = labels.telling_apart([dict(rest) for rest in rests])
        for rest, word in zip(rests, words, strict=True):
            by_value = swept[name, key, what, rest]
            yield Swept(
                axis=key.lstrip("-").replace("_", " "),
                what=f"{what} {word}".strip(),
                ticks={value: f"{value:g}" for value in sorted(by_value)},
                cells=dict(sorted(by_value.items())),
            )


def _programs(case: Case) -> tuple[Program, ...]:
    return tuple((params.get("workload", ""), as_flags(own_params(params))) for params in case.params)


def _numbers(jobs: Sequence[Program]) -> Iterator[tuple[str, str, float]]:
    """The params of each workload that are numbers, the same in all jobs of that workload: name, param, value."""
    for name in dict.fromkeys(name for name, _ in jobs):
        mine = [own for other, own in jobs if other == name]
        for key, text in mine[0].items():
            if all(own.get(key) == text for own in mine) and (value := number_in(text)) is not None:
                yield name, key, value


def number_in(text: str) -> float | None:
    """The number that a param is; `None` if it is none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _all_else(case: Case, jobs: Sequence[Program], name: str, key: str) -> Items:
    """What a case shares with those that differ from it in a param of one workload at most."""
    rest: dict[str, list[str]] = defaultdict(list)
    for own_name, own in jobs:
        for other, text in own.items():
            if (own_name, other) != (name, key):
                rest[f"{own_name} {other}" if case.is_mix else other].append(text)
    said = {other: "+".join(sorted(texts)) for other, texts in rest.items()}
    return tuple(sorted((said | ({"setting": case.setting} if case.setting else {})).items()))


def _what(name: str, jobs: Sequence[Program]) -> str:
    """The workloads of a case, the one first whose param is swept."""
    counts = Counter(own_name for own_name, _ in jobs)
    return " + ".join(
        f"{counts[each]} {each}" if counts[each] > 1 else each
        for each in sorted(counts, key=lambda each: (each != name, each))
    )


def profiles(cells: Sequence[Cell], fewest: int) -> Iterator[Swept]:
    """By the MIG profile, where each job of a case had an instance of the same one.

    There are at least `fewest` profiles on which as many jobs of a case ran.
    """
    found: dict[Case, dict[str, list[Cell]]] = defaultdict(lambda: defaultdict(list))
    for cell in cells:
        if len(set(cell.profiles)) == 1:
            found[cell.case][cell.profiles[0]].append(cell)
    for case, by_profile in found.items():
        degrees = [{cell.degree for cell in here} for here in by_profile.values()]
        if max(sum(degree in each for each in degrees) for degree in set.union(*degrees)) >= fewest:
            in_order = sorted(by_profile, key=labels.size_of_profile)
            yield Swept(
                axis="MIG profile",
                what=case.label,
                ticks={float(place): profile for place, profile in enumerate(in_order)},
                cells={float(place): by_profile[profile] for place, profile in enumerate(in_order)},
                is_numeric=False,
            )
