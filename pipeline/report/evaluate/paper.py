"""The comparison of a study with the findings of publications: claims, each about a figure, that allow a range.

A finding is compared with the cells that were measured at its settings: workload, batch, precision, recipe, data, step
mode, MIG profile (`Publication.differences`). A different GPU or window does not exclude a cell, but is noted.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.base.domain.normalisation import MEMORY_PEAK, SLOWDOWN, SPEEDUP
from pipeline.base.domain.records import Result
from pipeline.base.domain.sharing_modes import MIG, PROFILE, SERIAL
from pipeline.base.system.words import group_by
from pipeline.report.evaluate import effects, sweeps
from pipeline.report.evaluate.cells import Case, Cell, group_places, ratios
from pipeline.report.evaluate.contrasts import Contrast
from pipeline.report.evaluate.publication import Finding, Publication, publications
from pipeline.report.evaluate.quantities import name_workload_metric
from pipeline.report.evaluate.selector import Selector
from pipeline.report.evaluate.statistics import Estimate, Scale, format_interval
from pipeline.report.evaluate.verdicts import find_slower_pairs, rank_modes
from pipeline.report.evaluate.wording import describe_finding

_THROUGHPUT = "throughput"
_SAY_NOTHING = (Result.SKIPPED, Result.WRONG_RESULTS)


class Agreement(enum.StrEnum):
    """The relation of a measured figure to the published range."""

    AGREES = "agrees"
    DIFFERS = "differs"
    UNDECIDED = "undecided"
    OTHER_SETTINGS = "measured at other settings"
    NOT_MEASURED = "not measured here"


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingCheck:
    """A finding compared with one cell.

    Attributes:
        cell: the cell; `None` if no cell is about the finding.
        figure: figure of the cell; `None` if the cell ran out of memory or was not measured.
        figure_in_words: the figure with its interval; with `*` if it is doubtful.
        difference: distance of the figure from the range, reason for no decision, or settings that differ.
        modes: words for the compared modes, if they are not the mode of the cell.
    """

    publication: Publication
    finding: Finding
    cell: Cell | None = None
    figure: Estimate | None = None
    figure_in_words: str = ""
    agreement: Agreement = Agreement.NOT_MEASURED
    difference: str = ""
    modes: str | None = None

    @property
    def case_label(self) -> str:
        """The case of the cell; without a cell, the mixes or workloads of the finding."""
        finding = self.finding
        return self.cell.case.label if self.cell else ", ".join(finding.mixes or finding.workloads) or "any workload"

    @property
    def degree(self) -> int | None:
        return self.cell.degree if self.cell else self.finding.degree

    @property
    def mode(self) -> str:
        if self.modes is not None:
            return self.modes
        return self.cell.mode if self.cell else ", ".join(self.finding.mode_labels)

    @property
    def note(self) -> str:
        """The differences from the publication that do not exclude the cell: the GPU, the length of the work, ..."""
        if self.cell is None:
            return ""
        differs, gpu = [], self.finding.gpu or self.publication.gpu
        if self.cell.is_simulated:
            differs.append("simulated GPU")
        elif gpu not in self.cell.device:
            differs.append(f"{self.cell.device} instead of an {gpu}")
        if self.cell.window.is_steady and self.publication.epochs:
            differs.append(f"steady window instead of {self.publication.epochs} epochs")
        if any(params.get("source") == "synthetic_files" for params in self.cell.case.params):
            differs.append("synthetic image files")
        return "; ".join([*differs, *self.finding.slips])


def compare(cells: Sequence[Cell], verdicts: Sequence[Contrast]) -> list[FindingCheck]:
    """Check the findings of each publication that has a workload of the study.

    If no cell has the settings of a finding, the cells with the fewest different settings are used. A finding without
    any cell gets one check without a figure.
    """
    checks: list[FindingCheck] = []
    measured = {params.get("workload", ""): params for cell in cells for params in cell.case.params}
    for publication in publications():
        if any(publication.program(params) for params in measured.values()):
            for finding in publication.findings:
                question = _Question(publication, finding, cells, verdicts)
                checks += _check_nearest_settings(question) or [FindingCheck(publication=publication, finding=finding)]
    return checks


class _Question(NamedTuple):
    publication: Publication
    finding: Finding
    cells: Sequence[Cell]
    verdicts: Sequence[Contrast]

    def select_cells(self) -> list[Cell]:
        """Return the cells that the finding concerns, at any settings."""
        finding = self.finding
        programs = [program.name for program in self.publication.workloads]
        selectors = [
            Selector(quantity=finding.quantity, case=case, jobs=None if finding.mixes else finding.degree, mode=mode)
            for case in finding.mixes or finding.workloads or programs
            for mode in finding.among_labels or finding.mode_labels
        ]
        return [
            cell
            for cell in self.cells
            if any(selector.selects(cell, self.publication.name_jobs(cell.case.params)) for selector in selectors)
            and not (cell.co_runners or cell.is_derived)
            and (finding.profile is None or cell.sharing != MIG or finding.profile in map(_cut, cell.profiles))
        ]

    def find_others(self, cell: Cell, degree: int, mode: str) -> list[Cell]:
        """Return the cells of the same case at a degree in a mode: one cell, or one for each MIG layout."""
        place = (cell.case, degree, mode)
        ranked = [other for other in self.cells if other.is_ranked]
        return [other for other in ranked if (other.case, other.degree, other.sharing.name) == place]

    def name_quantity(self, cell: Cell) -> str:
        """Return the quantity of the finding; the throughput has the unit of the cell."""
        return cell.throughput if self.finding.quantity == _THROUGHPUT else self.finding.quantity

    def answer(
        self, cell: Cell, words: str, agreement: Agreement, difference: str = "", modes: str | None = None
    ) -> FindingCheck:
        """Return the check of the finding with a cell."""
        return FindingCheck(
            publication=self.publication,
            finding=self.finding,
            cell=cell,
            figure_in_words=words,
            agreement=agreement,
            difference=difference,
            modes=modes,
        )


class _Figure(NamedTuple):
    """A quantity of a cell, or its ratio to that of another cell.

    Attributes:
        modes: words for the modes of a ratio, if they are not the mode of the cell.
        places: words for the places on an axis of a ratio: `, 512 over 32`.
    """

    cell: Cell
    by_block: Mapping[int, float]
    is_drifting: bool = False
    modes: str | None = None
    places: str = ""
    scale: Scale = Scale.POSITIVE


def _check_nearest_settings(question: _Question) -> list[FindingCheck]:
    by_difference = group_by(question.select_cells(), lambda cell: _list_differences(question, cell))
    for _, alike in itertools.groupby(sorted(by_difference, key=len), key=len):
        checks = [
            dataclasses.replace(check, agreement=Agreement.OTHER_SETTINGS, difference="; ".join(differences))
            if differences
            else check
            for differences in alike
            for check in _check_cells(question, by_difference[differences])
            if check is not None
        ]
        if checks:
            return checks
    return []


def _list_differences(question: _Question, cell: Cell) -> tuple[str, ...]:
    publication, finding = question.publication, question.finding
    differences = [publication.differences(finding, params, is_mix=cell.case.is_mix) for params in cell.case.params]
    if cell.sharing == MIG:
        differences.append(publication.profile_differences(finding, cell.case.params, cell.profiles, cell.degree))
    return tuple(dict.fromkeys(itertools.chain(*differences)))


def _cut(profile: str) -> str:
    return profile.split(".")[0]


def _check_cells(question: _Question, cells: Sequence[Cell]) -> Iterator[FindingCheck | None]:
    """Yield a check for each figure, and `None` for a cell that the finding does not concern."""
    kind = question.finding.kind
    if kind == _FASTEST:
        for members in group_places([cell for cell in cells if cell.is_ranked]).values():
            yield _check_fastest(question, members)
    elif kind == _OUT_OF_MEMORY:
        yield from (_check_memory(question, cell) for cell in cells)
    else:
        yield from (_check_range(question, figure) for figure in _FIGURES[kind](question, cells))


def _list_quantities(question: _Question, cells: Sequence[Cell]) -> Iterator[_Figure]:
    for cell in cells:
        name = question.name_quantity(cell)
        yield _Figure(cell, cell.values.get(name, {}), cell.has_drifting_baseline(name))


def _list_slowdowns(question: _Question, cells: Sequence[Cell]) -> Iterator[_Figure]:
    for cell in cells:
        jobs = zip(cell.case.workloads, cell.case.params, strict=True)
        programs = [(label, question.publication.program(params)) for label, params in jobs]
        of_workload = (label for label, program in programs if program and program.name == question.finding.of)
        name = name_workload_metric(SLOWDOWN, next(of_workload, ""))
        yield _Figure(cell, cell.values.get(name, {}), cell.has_drifting_baseline(name))


def _list_ratios_to_mode(question: _Question, cells: Sequence[Cell]) -> Iterator[_Figure]:
    for cell in cells:
        references = question.find_others(cell, cell.degree, question.finding.against)
        if not references:
            yield _Figure(cell, {})  # the cell may have run out of memory
        for other in references:
            modes = f"{cell.mode} over {other.mode}" if other.sharing == MIG else None
            yield _divide(cell, other, question.name_quantity(cell) or SPEEDUP)._replace(modes=modes)


def _list_ratios_along(question: _Question, cells: Sequence[Cell]) -> Iterator[_Figure]:
    """Divide the figure at the highest value of a parameter by the figure at its lowest, for each mode and degree."""
    param = question.finding.along
    swept = sweeps.profiles(cells, 2) if param == PROFILE else sweeps.numbers(cells, 2, only=param)
    for sweep in swept:
        lines: dict[tuple[str, int], list[tuple[str, Cell]]] = defaultdict(list)
        for place, members in sweep.cells.items():
            for cell in members:
                if cell.is_ranked and question.name_quantity(cell) in cell.values:
                    mode = cell.sharing.label if param == PROFILE else cell.mode
                    lines[mode, cell.degree].append((sweep.ticks[place], cell))
        for (lowest, low), *_, (highest, high) in (line for line in lines.values() if len(line) > 1):
            yield _divide(high, low, question.name_quantity(high))._replace(places=f", {highest} over {lowest}")


def _list_ratios_of_profiles(question: _Question, cells: Sequence[Cell]) -> Iterator[_Figure]:
    by_case: dict[Case, dict[str, Cell]] = defaultdict(dict)
    for cell in cells:
        if cell.is_ranked and (place := effects.find_place(cell)) is not None:
            by_case[cell.case][_cut(place)] = cell
    for places in by_case.values():
        larger, smaller = places.get(question.finding.larger), places.get(question.finding.smaller)
        if larger is not None and smaller is not None:
            ratio = _divide(larger, smaller, question.name_quantity(smaller))
            yield ratio._replace(cell=smaller, modes=f"{larger.mode} over {smaller.mode}")


def _list_memory_growth(question: _Question, cells: Sequence[Cell]) -> Iterator[_Figure]:
    """Compare the memory per job at the highest degree of each case and mode with the memory of one job alone."""
    highest = {(cell.case, cell.sharing): cell for cell in cells if cell.values}  # cells are ordered by degree
    for cell in highest.values():
        growth = [ratios(cell, alone, MEMORY_PEAK) for alone in question.find_others(cell, 1, SERIAL.name)]
        by_job = {block: ratio / cell.degree for by_block in growth for block, ratio in by_block.items()}
        yield _Figure(cell, by_job, scale=Scale.PEAK)


def _divide(cell: Cell, other: Cell, name: str) -> _Figure:
    """Divide a quantity of two cells; the ratios of their speed show whether one of them drifts with its host."""
    by_block = ratios(cell, other, name)
    speeds = by_block if name == SPEEDUP else ratios(cell, other, cell.throughput)
    return _Figure(cell, by_block, cell.is_drifting(speeds, is_symmetric=True))


_FIGURES: dict[str, Callable[[_Question, Sequence[Cell]], Iterator[_Figure]]] = {
    "quantity": _list_quantities,
    "against": _list_ratios_to_mode,
    "along": _list_ratios_along,
    "profiles": _list_ratios_of_profiles,
    "memory_growth": _list_memory_growth,
    "slowdown": _list_slowdowns,
}
_FASTEST, _OUT_OF_MEMORY = "fastest", "out_of_memory"
KINDS = (*_FIGURES, _FASTEST, _OUT_OF_MEMORY)
"""Kinds of findings: figures with a range, and two that have none."""


def _check_memory(question: _Question, cell: Cell) -> FindingCheck | None:
    if cell.finding in _SAY_NOTHING:
        return None
    if cell.results[Result.OOM]:
        return question.answer(cell, Result.OOM.value, Agreement.AGREES)
    return (
        question.answer(cell, Result.OK.value, Agreement.DIFFERS, "the jobs fit into memory") if cell.values else None
    )


def _check_range(question: _Question, figure: _Figure) -> FindingCheck | None:
    cell = figure.cell
    if cell.finding in _SAY_NOTHING:
        return None
    if cell.results[Result.OOM]:
        if question.finding.degree is None:
            return None  # the finding covers only degrees that fit into memory
        return question.answer(cell, Result.OOM.value, Agreement.DIFFERS, describe_finding(cell))
    if not figure.by_block:
        return None
    estimate = cell.estimate(figure.by_block, figure.scale, is_drifting=figure.is_drifting)
    # CUDA graphs do not follow the host; the wider interval accounts for any other drift.
    is_led_by_host = figure.is_drifting and not cell.uses_cuda_graphs
    mark = "*" if is_led_by_host or cell.marks else ""
    words = f"{estimate.median:.2f}{mark}{format_interval(estimate, '.2f')}{figure.places}"
    agreement, difference = _compare_with_range(question.finding, estimate, is_drifting=is_led_by_host)
    check = question.answer(cell, words, agreement, difference, figure.modes)
    return dataclasses.replace(check, figure=estimate)


def _compare_with_range(finding: Finding, estimate: Estimate, *, is_drifting: bool) -> tuple[Agreement, str]:
    low = -math.inf if finding.low is None else finding.low
    high = math.inf if finding.high is None else finding.high
    distance = ""
    if estimate.median < low:
        distance = f"{100 * (1 - estimate.median / low):.0f} % lower, "
    elif estimate.median > high:
        distance = f"{100 * (estimate.median / high - 1):.0f} % higher, "
    if estimate.low is None or estimate.high is None:
        return Agreement.UNDECIDED, f"{distance}too few blocks for an interval"
    if is_drifting:
        return Agreement.UNDECIDED, f"{distance}{'but ' if distance else ''}a speed drifts with its host"
    if low <= estimate.low and estimate.high <= high:
        return Agreement.AGREES, ""
    if estimate.high < low or high < estimate.low:
        return Agreement.DIFFERS, distance.removesuffix(", ")
    if distance:
        return Agreement.UNDECIDED, f"{distance}but the interval reaches into the range"
    return Agreement.UNDECIDED, "the interval is wider than the range"


def _check_fastest(question: _Question, members: Sequence[Cell]) -> FindingCheck | None:
    """Check that each unexpected mode is slower than an expected mode; `None` unless every mode was measured."""
    if {cell.sharing.name for cell in members} != set(question.finding.among):
        return None
    place = members[0].case, members[0].degree
    slower = find_slower_pairs([verdict for verdict in question.verdicts if (verdict.case, verdict.degree) == place])
    expected = [cell.mode for cell in members if cell.sharing.name in question.finding.modes]
    other_modes = [cell.mode for cell in members if cell.mode not in expected]
    if all(any((other, mode) in slower for mode in expected) for other in other_modes):
        agreement, reason = Agreement.AGREES, ""
    elif any(all((mode, other) in slower for mode in expected) for other in other_modes):
        agreement, reason = Agreement.DIFFERS, ""
    else:
        agreement, reason = Agreement.UNDECIDED, "no verdict"
    by_mode = {cell.mode: -cell.estimates[SPEEDUP].median if SPEEDUP in cell.estimates else 0.0 for cell in members}
    tied, _ = rank_modes(by_mode, slower)
    marked = {cell.mode for cell in members if cell.marks}
    modes = " or ".join(f"{mode}*" if mode in marked else mode for mode in tied)
    return question.answer(members[0], modes, agreement, reason, modes="")
