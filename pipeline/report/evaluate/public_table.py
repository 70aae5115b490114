"""The rows of the public table: figures of entries, pooled over the machines that measured the same case."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from pipeline.base.system.words import format_count, group_by, natural_key
from pipeline.report.evaluate.case_matching import find_varying_params, match_cases
from pipeline.report.evaluate.entry import EntryFigure, Evaluation
from pipeline.report.evaluate.statistics import MARGIN, Estimate, compute_half, format_interval

AGREEMENT = 1.1
"""Machines agree if the largest of their figures is at most this factor above the smallest."""
_MIN_FOR_PREDICTION = 3

Find = Callable[[EntryFigure], Estimate | None]
OVER_GRAPH: Find = attrgetter("over_graph")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicRow:
    """One case in one sharing mode on one model of device.

    Attributes:
        members: the figures of each entry, by the number of the entry.
        machines: numbers of the entries of each machine; a machine is a set of GPUs.
    """

    device: str
    label: str
    mode: str
    degree: int
    members: Mapping[int, EntryFigure]
    machines: tuple[tuple[int, ...], ...]

    def list_medians(self, find: Find, without: int | None = None) -> list[float]:
        """Return the median of each machine that has the figure, but not of the machine of the entry `without`."""
        figures = {number: find(member) for number, member in self.members.items()}
        medians = {number: estimate.median for number, estimate in figures.items() if estimate is not None}
        machines = [numbers for numbers in self.machines if without not in numbers]
        values = [[medians[number] for number in numbers if number in medians] for numbers in machines]
        return [statistics.median(of_machine) for of_machine in values if of_machine]

    def describe(self, find: Find) -> str:
        """Return `1.54 (1.53 to 1.55)`, or `1.03 to 1.53` where machines differ; empty without a figure."""
        medians = self.list_medians(find)
        if not medians:
            return ""
        if len(medians) == 1:
            estimate = next(filter(None, map(find, self.members.values())))
        else:
            low, high = min(medians), max(medians)
            if high > AGREEMENT * low:
                return f"{low:.2f} to {high:.2f}"
            estimate = Estimate(median=statistics.median(medians), low=low, high=high, n=len(medians))
        return f"{estimate.median:.2f}{format_interval(estimate, '.2f')}"


def make_rows(evaluations: Sequence[Evaluation]) -> list[PublicRow]:
    """Return the rows of all entries, without mixes, by device, case, mode and number of jobs."""
    rows = list[PublicRow]()
    for device, entries in group_by(enumerate(evaluations), lambda entry: entry[1].device).items():
        figures = [(number, figure) for number, evaluation in entries for figure in evaluation.figures]
        places = [(number, figure) for number, figure in figures if len(figure.programs) == 1]
        varying, _ = find_varying_params([figure for _, figure in places])
        by_machine = group_by(entries, lambda entry: entry[1].gpus).values()
        for mode, members in group_by(places, lambda place: place[1].mode).items():
            rows += [
                PublicRow(
                    device=device,
                    label=line.label,
                    mode=mode,
                    degree=line.degree,
                    members=line.members,
                    machines=tuple(_select_machines(by_machine, line.members)),
                )
                for line in match_cases(members, varying)
            ]
    return sorted(rows, key=lambda row: (row.device, natural_key(row.label), natural_key(row.mode), row.degree))


def _select_machines(
    by_machine: Iterable[Sequence[tuple[int, Evaluation]]], members: Mapping[int, EntryFigure]
) -> Iterator[tuple[int, ...]]:
    """Yield the numbers of the entries of each machine that are members of a row."""
    for entries in by_machine:
        if numbers := tuple(number for number, _ in entries if number in members):
            yield numbers


def find_surprises(rows: Sequence[PublicRow], number: int) -> Iterator[str]:
    """Yield the figures of an entry that lie outside the 95 % prediction interval of the other machines."""
    for row in rows:
        figure = OVER_GRAPH(row.members[number]) if number in row.members else None
        logs = [math.log(median) for median in row.list_medians(OVER_GRAPH, without=number)]
        if figure is None or len(logs) < _MIN_FOR_PREDICTION:
            continue
        half = compute_half(statistics.stdev(logs) * math.sqrt(1 + 1 / len(logs)), len(logs) - 1)
        low, high = (math.exp(statistics.fmean(logs) + sign * half) for sign in (-1, 1))
        if not (1 - MARGIN) * low <= figure.median <= (1 + MARGIN) * high:
            yield (
                f"{row.label}, {format_count(row.degree, 'job')}, {row.mode}: {figure.median:.2f}; "
                f"{len(logs)} other machines predict {low:.2f} to {high:.2f}"
            )
