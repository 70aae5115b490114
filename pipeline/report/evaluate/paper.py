"""The comparison of a study with the findings of publications.

A finding is compared with the cells that were measured at its settings: workload, batch, precision, recipe, data, step
mode, MIG profile (`Publication.differences`). A different GPU or window does not exclude a cell, but is noted.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from pipeline.base.domain.normalisation import MEMORY_PEAK, SLOWDOWN, SPEEDUP
from pipeline.base.domain.records import Result
from pipeline.base.domain.sharing_modes import MIG, PROFILE, SERIAL
from pipeline.base.system.grouping import group_by
from pipeline.report.evaluate import effects, sweeps
from pipeline.report.evaluate.cells import Case, Cell, group_places, ratios
from pipeline.report.evaluate.contrasts import Contrast
from pipeline.report.evaluate.publication import Finding, Publication, publications
from pipeline.report.evaluate.quantities import name_workload_metric
from pipeline.report.evaluate.statistics import Estimate, Scale, interval_in_words
from pipeline.report.evaluate.verdicts import find_slower_pairs, rank_modes
from pipeline.report.evaluate.wording import finding_in_words
from pipeline.report.read import labels

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
        case_label, degree, mode: case, degree and mode of the cell; without a cell, those of the finding.
        figure: figure of the cell; `None` if the cell ran out of memory or was not measured.
        figure_in_words: the figure with its interval; with `*` if it is doubtful.
        difference: distance of the figure from the range, reason for no decision, or settings that differ.
        note: other differences from the publication: the GPU, the length of the work, the images.
    """

    publication: Publication
    finding: Finding
    case_label: str
    degree: int | None
    mode: str
    figure: Estimate | None = None
    figure_in_words: str = ""
    agreement: Agreement = Agreement.NOT_MEASURED
    difference: str = ""
    note: str = ""


Check: TypeAlias = Callable[["_Question", Sequence[Cell]], Iterable[FindingCheck | None]]


def compare(cells: Sequence[Cell], verdicts: Sequence[Contrast]) -> list[FindingCheck]:
    """Check the findings of each publication that has a workload of the study.

    If no cell has the settings of a finding, the cells with the fewest different settings are used. A finding without
    any cell gets one check without a figure.
    """
    checks: list[FindingCheck] = []
    ran = {params.get("workload", ""): params for cell in cells for params in cell.case.params}
    for publication in publications():
        if any(publication.program(params) for params in ran.values()):
            for finding in publication.findings:
                question = _Question(publication, finding, cells, verdicts)
                checks += _at_nearest_settings(question) or [_absent(question)]
    return checks


class _Question(NamedTuple):
    publication: Publication
    finding: Finding
    cells: Sequence[Cell]
    verdicts: Sequence[Contrast]


def _at_nearest_settings(question: _Question) -> list[FindingCheck]:
    concerned = [cell for cell in question.cells if _is_about(question.publication, question.finding, cell)]
    by_difference = group_by(concerned, lambda cell: _differences(question.publication, question.finding, cell))
    for _, alike in itertools.groupby(sorted(by_difference, key=len), key=len):
        checks = [
            dataclasses.replace(check, agreement=Agreement.OTHER_SETTINGS, difference="; ".join(differences))
            if differences
            else check
            for differences in alike
            for check in CHECKS[question.finding.kind](question, by_difference[differences])
            if check is not None
        ]
        if checks:
            return checks
    return []


def _differences(publication: Publication, finding: Finding, cell: Cell) -> tuple[str, ...]:
    differences = [publication.differences(finding, params, is_mix=cell.case.is_mix) for params in cell.case.params]
    if cell.sharing == MIG:
        differences.append(publication.profile_differences(finding, cell.case.params, cell.profiles, cell.degree))
    return tuple(dict.fromkeys(itertools.chain(*differences)))


def _is_about(publication: Publication, finding: Finding, cell: Cell) -> bool:
    programs = [program for params in cell.case.params if (program := publication.program(params)) is not None]
    if len(programs) < len(cell.case.params):
        return False
    if cell.case.is_mix or finding.mixes:
        mix = labels.label_mix([labels.JobLabel(program.name, program.size) for program in programs])
        is_meant = cell.case.is_mix and mix in finding.mixes
    else:
        is_meant = not finding.workloads or programs[0].name in finding.workloads
        is_meant = is_meant and (cell.degree > 1 if finding.degree is None else cell.degree == finding.degree)
    is_of_mode = cell.sharing.name in (finding.among or finding.modes)
    if cell.co_runners or cell.is_derived or not is_meant or not is_of_mode:
        return False
    if cell.sharing == MIG:
        return finding.profile is None or finding.profile in [profile.split(".")[0] for profile in cell.profiles]
    return not cell.detail  # no finding concerns MPS with limits


def _quantity(question: _Question, cell: Cell) -> FindingCheck | None:
    name = _name(question, cell)
    return _check_range(question, cell, cell.values.get(name, {}), is_drifting=cell.has_drifting_baseline(name))


def _name(question: _Question, cell: Cell) -> str:
    return cell.throughput if question.finding.quantity == _THROUGHPUT else question.finding.quantity


def _check_along(question: _Question, cells: Sequence[Cell]) -> Iterator[FindingCheck | None]:
    """Divide the figure at the highest value of a parameter by the figure at its lowest, for each mode and degree."""
    param = question.finding.along
    swept = sweeps.profiles(cells, 2) if param == PROFILE else sweeps.numbers(cells, 2, only=param)
    for sweep in swept:
        lines: dict[tuple[str, int], list[tuple[str, Cell]]] = defaultdict(list)
        for place, members in sweep.cells.items():
            for cell in members:
                if cell.is_ranked and _name(question, cell) in cell.values:
                    mode = cell.sharing.label if param == PROFILE else cell.mode
                    lines[mode, cell.degree].append((sweep.ticks[place], cell))
        for (lowest, low), *_, (highest, high) in (line for line in lines.values() if len(line) > 1):
            name = _name(question, high)
            by_block = ratios(high, low, name)
            is_drifting = _is_drifting_against(high, low, by_block, name)
            if (check := _check_range(question, high, by_block, is_drifting=is_drifting)) is not None:
                words = f"{check.figure_in_words}, {highest} over {lowest}"
                yield dataclasses.replace(check, figure_in_words=words)


def _profiles(question: _Question, cells: Sequence[Cell]) -> Iterator[FindingCheck | None]:
    by_case: dict[Case, dict[str, Cell]] = defaultdict(dict)
    for cell in cells:
        if cell.is_ranked and (place := effects.find_place(cell)) is not None:
            by_case[cell.case][effects.cut_to_slices(place)] = cell
    for places in by_case.values():
        larger, smaller = places.get(question.finding.larger), places.get(question.finding.smaller)
        if larger is not None and smaller is not None:
            name = _name(question, smaller)
            by_block = ratios(larger, smaller, name)
            is_drifting = _is_drifting_against(larger, smaller, by_block, name)
            check = _check_range(question, smaller, by_block, is_drifting=is_drifting)
            yield check and dataclasses.replace(check, mode=f"{larger.mode} over {smaller.mode}")


def _slowdown(question: _Question, cell: Cell) -> FindingCheck | None:
    jobs = zip(cell.case.workloads, cell.case.params, strict=True)
    programs = [(label, question.publication.program(params)) for label, params in jobs]
    meant = (label for label, program in programs if program is not None and program.name == question.finding.of)
    name = name_workload_metric(SLOWDOWN, next(meant, ""))
    by_block = cell.values.get(name, {})
    return _check_range(question, cell, by_block, is_drifting=cell.has_drifting_baseline(name))


def _check_against(question: _Question, cells: Sequence[Cell]) -> Iterator[FindingCheck | None]:
    for cell in cells:
        references = _find_others(question, cell, cell.degree, question.finding.against)
        if not references:
            yield _check_range(question, cell, {})  # the cell may have run out of memory
        for other in references:
            name = _name(question, cell) or SPEEDUP
            by_block = ratios(cell, other, name)
            is_drifting = _is_drifting_against(cell, other, by_block, name)
            check = _check_range(question, cell, by_block, is_drifting=is_drifting)
            if check is not None and other.sharing == MIG:
                check = dataclasses.replace(check, mode=f"{cell.mode} over {other.mode}")
            yield check


def _is_drifting_against(cell: Cell, other: Cell, by_block: Mapping[int, float], name: str) -> bool:
    """Return whether one of two cells drifts with its host, by the ratios of their speed."""
    speeds = by_block if name == SPEEDUP else ratios(cell, other, cell.throughput)
    return cell.is_drifting(speeds, is_symmetric=True)


def _memory_growth(question: _Question, cells: Sequence[Cell]) -> Iterator[FindingCheck | None]:
    """Compare the memory per job at the highest degree of each case and mode with the memory of one job alone."""
    highest = {(cell.case, cell.sharing): cell for cell in cells if cell.values}  # cells are ordered by degree
    for cell in highest.values():
        growth = [ratios(cell, alone, MEMORY_PEAK) for alone in _find_others(question, cell, 1, SERIAL.name)]
        by_job = {block: ratio / cell.degree for by_block in growth for block, ratio in by_block.items()}
        yield _check_range(question, cell, by_job, Scale.PEAK)


def _out_of_memory(question: _Question, cell: Cell) -> FindingCheck | None:
    if cell.finding in _SAY_NOTHING:
        return None
    if cell.results[Result.OOM]:
        return _check(question, cell, None, Result.OOM.value, Agreement.AGREES)
    if not cell.values:
        return None
    return _check(question, cell, None, Result.OK.value, Agreement.DIFFERS, "the jobs fit into memory")


def _check_range(
    question: _Question,
    cell: Cell,
    by_block: Mapping[int, float],
    scale: Scale = Scale.POSITIVE,
    *,
    is_drifting: bool = False,
) -> FindingCheck | None:
    if cell.finding in _SAY_NOTHING:
        return None
    if cell.results[Result.OOM]:
        if question.finding.degree is None:
            return None  # the finding covers only degrees that fit into memory
        return _check(question, cell, None, Result.OOM.value, Agreement.DIFFERS, finding_in_words(cell))
    if not by_block:
        return None
    estimate = cell.estimate(by_block, scale, is_drifting=is_drifting)
    # CUDA graphs do not follow the host; the wider interval accounts for any other drift.
    is_led_by_host = is_drifting and not cell.uses_cuda_graphs
    mark = "*" if is_led_by_host or cell.marks else ""
    in_words = f"{estimate.median:.2f}{mark}{interval_in_words(estimate, '.2f')}"
    outcome = _compare_with_range(question.finding, estimate, is_drifting=is_led_by_host)
    return _check(question, cell, estimate, in_words, *outcome)


def _find_others(question: _Question, cell: Cell, degree: int, mode: str) -> list[Cell]:
    """Return the cells of the same case at a degree in a mode: one cell, or one for each MIG layout."""
    place = (cell.case, degree, mode)
    return [
        other for other in question.cells if (other.case, other.degree, other.sharing.name) == place and other.is_ranked
    ]


def _compare_with_range(finding: Finding, estimate: Estimate, *, is_drifting: bool) -> tuple[Agreement, str]:
    low = -math.inf if finding.low is None else finding.low
    high = math.inf if finding.high is None else finding.high
    away = ""
    if estimate.median < low:
        away = f"{100 * (1 - estimate.median / low):.0f} % lower, "
    elif estimate.median > high:
        away = f"{100 * (estimate.median / high - 1):.0f} % higher, "
    if estimate.low is None or estimate.high is None:
        return Agreement.UNDECIDED, f"{away}too few blocks for an interval"
    if is_drifting:
        return (
            Agreement.UNDECIDED,
            f"{away}but a speed drifts with its host" if away else "a speed drifts with its host",
        )
    if low <= estimate.low and estimate.high <= high:
        return Agreement.AGREES, ""
    if estimate.high < low or high < estimate.low:
        return Agreement.DIFFERS, away.removesuffix(", ")
    return (
        Agreement.UNDECIDED,
        f"{away}but the interval reaches into the range" if away else "the interval is wider than the range",
    )


def _is_fastest(question: _Question, members: Sequence[Cell]) -> FindingCheck | None:
    """Check that each unexpected mode is slower than an expected mode; `None` unless every mode was measured."""
    if {cell.sharing.name for cell in members} != set(question.finding.among):
        return None
    place = members[0].case, members[0].degree
    slower = find_slower_pairs([verdict for verdict in question.verdicts if (verdict.case, verdict.degree) == place])
    expected = [cell.mode for cell in members if cell.sharing.name in question.finding.modes]
    other_modes = [cell.mode for cell in members if cell.mode not in expected]
    if all(any((other, mode) in slower for mode in expected) for other in other_modes):
        agreement = Agreement.AGREES
    elif any(all((mode, other) in slower for mode in expected) for other in other_modes):
        agreement = Agreement.DIFFERS
    else:
        agreement = Agreement.UNDECIDED
    by_mode = {cell.mode: -cell.estimates[SPEEDUP].median if SPEEDUP in cell.estimates else 0.0 for cell in members}
    tied, _ = rank_modes(by_mode, slower)
    why = "no verdict" if agreement is Agreement.UNDECIDED else ""
    marked = {cell.mode for cell in members if cell.marks}
    modes = " or ".join(f"{mode}*" if mode in marked else mode for mode in tied)
    return dataclasses.replace(_check(question, members[0], None, modes, agreement, why), mode="")


def _check(
    question: _Question,
    cell: Cell,
    estimate: Estimate | None,
    in_words: str,
    agreement: Agreement,
    difference: str = "",
) -> FindingCheck:
    return FindingCheck(
        publication=question.publication,
        finding=question.finding,
        case_label=cell.case.label,
        degree=cell.degree,
        mode=cell.mode,
        figure=estimate,
        figure_in_words=in_words,
        agreement=agreement,
        difference=difference,
        note=_note(question, cell),
    )


def _absent(question: _Question) -> FindingCheck:
    finding = question.finding
    return FindingCheck(
        publication=question.publication,
        finding=finding,
        case_label=", ".join(finding.mixes or finding.workloads) or "any workload",
        degree=finding.degree,
        mode=", ".join(finding.mode_labels),
    )


def _note(question: _Question, cell: Cell) -> str:
    differs, publication = [], question.publication
    gpu = question.finding.gpu or publication.gpu
    if cell.is_simulated:
        differs.append("simulated GPU")
    elif gpu not in cell.device:
        differs.append(f"{cell.device} instead of an {gpu}")
    if cell.window.is_steady and publication.epochs:
        differs.append(f"steady window instead of {publication.epochs} epochs")
    if any(params.get("source") == "synthetic_files" for params in cell.case.params):
        differs.append("synthetic image files")
    differs += question.finding.slips
    return "; ".join(differs)


def _check_cells(check: Callable[[_Question, Cell], FindingCheck | None]) -> Check:
    return lambda question, cells: [check(question, cell) for cell in cells]


def _check_places(check: Callable[[_Question, Sequence[Cell]], FindingCheck | None]) -> Check:
    return lambda question, cells: [
        check(question, members) for members in group_places([c for c in cells if c.is_ranked]).values()
    ]


CHECKS: dict[str, Check] = {
    "quantity": _check_cells(_quantity),
    "against": _check_against,
    "along": _check_along,
    "profiles": _profiles,
    "memory_growth": _memory_growth,
    "out_of_memory": _check_cells(_out_of_memory),
    "slowdown": _check_cells(_slowdown),
    "fastest": _check_places(_is_fastest),
}
"""Checks by the kind of a finding; a check is `None` for a cell that the finding does not concern."""
