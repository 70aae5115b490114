"""The findings of publications beside ours: whether they agree, and by how much they do not.

A comparison is made with what was measured at the finding's own settings: workload, batch, precision, recipe, data,
step mode, MIG profile (`Publication.differences`). Two things are notes instead. The GPU: whether a finding holds on
another one is what the comparison asks. The window: a steady one and a fixed number of epochs give the same rate of a
job, but the time per epoch includes validation in the second only.
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

from pipeline.base.domain.modes import MIG, PROFILE, SERIAL
from pipeline.base.domain.normalise import SLOWDOWN, SPEEDUP
from pipeline.base.domain.records import Result, WindowKind
from pipeline.base.system.grouping import group_by
from pipeline.report.evaluate import scaling, sweeps
from pipeline.report.evaluate.cells import Case, Cell, by_place, ratios
from pipeline.report.evaluate.metrics import MEMORY, Scale
from pipeline.report.evaluate.publication import Finding, Publication, publications
from pipeline.report.evaluate.quantities import of_workload
from pipeline.report.evaluate.statistics import Estimate, interval_in_words
from pipeline.report.evaluate.verdicts import Verdict, leading, slower_pairs
from pipeline.report.evaluate.wording import finding_in_words
from pipeline.report.read import labels

_THROUGHPUT = "throughput"
_SAY_NOTHING = (Result.SKIPPED, Result.WRONG_RESULTS)


class Agreement(enum.StrEnum):
    """How our figure stands to the publication's range."""

    AGREES = "agrees"
    DIFFERS = "differs"
    UNDECIDED = "undecided"
    OTHER_SETTINGS = "measured at other settings"
    NOT_MEASURED = "not measured here"


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingCheck:
    """A finding beside what one cell of ours shows.

    Attributes:
        case_label, degree, mode: of our cell; of the finding, as far as it says so, if there is none.
        ours: our figure in the finding's metric; `None` for an out-of-memory, and where nothing was measured.
        ours_in_words: the same as text.
        difference: by how much ours lies outside the range; why it is undecided; which settings are others.
        note: what else is not the same as in the publication: the GPU, the length of the work, the images.
    """

    publication: Publication
    finding: Finding
    case_label: str
    degree: int | None
    mode: str
    ours: Estimate | None = None
    ours_in_words: str = ""
    agreement: Agreement = Agreement.NOT_MEASURED
    difference: str = ""
    note: str = ""


Check: TypeAlias = Callable[["_About", Sequence[Cell]], Iterable[FindingCheck | None]]


def compare(cells: Sequence[Cell], verdicts: Sequence[Verdict]) -> list[FindingCheck]:
    """Each finding of each publication that has a workload of the study with every cell at its settings.

    Where there is none, with those whose settings differ least, which says so; else it is one entry without a figure.
    """
    made: list[FindingCheck] = []
    ran = {params.get("workload", ""): params for cell in cells for params in cell.case.params}
    concerned = [each for each in publications() if any(each.program(params) for params in ran.values())]
    for publication in concerned:
        for finding in publication.findings:
            about = _About(publication, finding, cells, verdicts)
            made += _at_nearest_settings(about) or [_absent(about)]
    return made


class _About(NamedTuple):
    publication: Publication
    finding: Finding
    cells: Sequence[Cell]
    verdicts: Sequence[Verdict]


def _at_nearest_settings(about: _About) -> list[FindingCheck]:
    concerned = [cell for cell in about.cells if _speaks_of(about.publication, about.finding, cell)]
    by_difference = group_by(concerned, lambda cell: _differences(about.publication, about.finding, cell))
    for _, alike in itertools.groupby(sorted(by_difference, key=len), key=len):
        found = [
            dataclasses.replace(check, agreement=Agreement.OTHER_SETTINGS, difference="; ".join(differences))
            if differences
            else check
            for differences in alike
            for check in CHECKS[about.finding.kind](about, by_difference[differences])
            if check is not None
        ]
        if found:
            return found
    return []


def _differences(publication: Publication, finding: Finding, cell: Cell) -> tuple[str, ...]:
    of_each = [publication.differences(finding, params, is_mix=cell.case.is_mix) for params in cell.case.params]
    if cell.sharing == MIG:
        of_each.append(publication.profile_differences(finding, cell.case.params, cell.profiles, cell.degree))
    return tuple(dict.fromkeys(itertools.chain(*of_each)))


def _speaks_of(publication: Publication, finding: Finding, cell: Cell) -> bool:
    programs = [program for params in cell.case.params if (program := publication.program(params)) is not None]
    if len(programs) < len(cell.case.params):
        return False
    if cell.case.is_mix or finding.mixes:
        mix = labels.mix_of([labels.Called(program.name, program.size) for program in programs])
        is_meant = cell.case.is_mix and mix in finding.mixes
        has_degree = True
    else:
        is_meant = not finding.workloads or programs[0].name in finding.workloads
        has_degree = cell.degree > 1 if finding.degree is None else cell.degree == finding.degree
    if (
        cell.neighbours
        or cell.is_derived
        or not is_meant
        or not has_degree
        or cell.sharing.name not in (finding.among or finding.modes)
    ):
        return False
    if cell.sharing == MIG:
        return finding.profile is None or finding.profile in [profile.split(".")[0] for profile in cell.profiles]
    return not cell.detail  # MPS with limits, say, of which no finding speaks


def _quantity(about: _About, cell: Cell) -> FindingCheck | None:
    return _in_range(about, cell, cell.values.get(_name(about, cell), {}))


def _name(about: _About, cell: Cell) -> str:
    return cell.throughput if about.finding.quantity == _THROUGHPUT else about.finding.quantity


def _along(about: _About, cells: Sequence[Cell]) -> Iterator[FindingCheck | None]:
    """Of each mode and number of jobs, from the lowest to the highest value of the parameter that has a figure."""
    param = about.finding.along
    swept = sweeps.profiles(cells, 2) if param == PROFILE else sweeps.numbers(cells, 2, only=param)
    for each in swept:
        lines: dict[tuple[str, int], list[tuple[str, Cell]]] = defaultdict(list)
        for place, here in each.cells.items():
            for cell in here:
                if cell.is_ranked and _name(about, cell) in cell.values:
                    mode = cell.sharing.label if param == PROFILE else cell.mode
                    lines[mode, cell.degree].append((each.ticks[place], cell))
        for (lowest, low), *_, (highest, high) in (line for line in lines.values() if len(line) > 1):
            if (check := _in_range(about, high, ratios(high, low, _name(about, high)))) is not None:
                ours = f"{check.ours_in_words}, {highest} over {lowest}"
                yield dataclasses.replace(check, ours_in_words=ours)


def _profiles(about: _About, cells: Sequence[Cell]) -> Iterator[FindingCheck | None]:
    by_case: dict[Case, dict[str, Cell]] = defaultdict(dict)
    for cell in cells:
        if cell.is_ranked and (place := scaling.place_of(cell)) is not None:
            by_case[cell.case][scaling.slices_of(place)] = cell
    for here in by_case.values():
        larger, smaller = here.get(about.finding.larger), here.get(about.finding.smaller)
        if larger is not None and smaller is not None:
            check = _in_range(about, smaller, ratios(larger, smaller, _name(about, smaller)))
            yield check and dataclasses.replace(check, mode=f"{larger.mode} over {smaller.mode}")


def _slowdown(about: _About, cell: Cell) -> FindingCheck | None:
    programs = [(params["workload"], about.publication.program(params)) for params in cell.case.params]
    meant = (name for name, program in programs if program is not None and program.name == about.finding.of)
    return _in_range(about, cell, cell.values.get(of_workload(SLOWDOWN, next(meant, "")), {}))


def _against(about: _About, cells: Sequence[Cell]) -> Iterator[FindingCheck | None]:
    for cell in cells:
        others = _others(about, cell, cell.degree, about.finding.against)
        if not others:
            yield _in_range(about, cell, {})  # it may have run out of memory
        for other in others:
            check = _in_range(about, cell, ratios(cell, other, _name(about, cell) or SPEEDUP))
            if check is not None and other.sharing == MIG:
                check = dataclasses.replace(check, mode=f"{cell.mode} over {other.mode}")
            yield check


def _memory_growth(about: _About, cells: Sequence[Cell]) -> Iterator[FindingCheck | None]:
    """Of what grows with the degree, the highest degree of each case and mode."""
    highest = {(cell.case, cell.sharing): cell for cell in cells if cell.values}  # ordered by degree
    for cell in highest.values():
        growth = [ratios(cell, alone, MEMORY) for alone in _others(about, cell, 1, SERIAL.name)]
        by_job = {block: ratio / cell.degree for each in growth for block, ratio in each.items()}
        yield _in_range(about, cell, by_job, Scale.PEAK)


def _out_of_memory(about: _About, cell: Cell) -> FindingCheck | None:
    if cell.finding in _SAY_NOTHING:
        return None
    if cell.results[Result.OOM]:
        return _check(about, cell, None, Result.OOM.value, Agreement.AGREES)
    if not cell.values:
        return None  # it failed otherwise, which says nothing
    return _check(about, cell, None, Result.OK.value, Agreement.DIFFERS, "it fits here")


def _in_range(
    about: _About, cell: Cell, by_block: Mapping[int, float], scale: Scale = Scale.POSITIVE
) -> FindingCheck | None:
    if cell.finding in _SAY_NOTHING:
        return None
    if cell.results[Result.OOM]:
        if about.finding.degree is None:
            return None  # nothing is said of degrees that do not fit
        return _check(about, cell, None, Result.OOM.value, Agreement.DIFFERS, finding_in_words(cell))
    if not by_block:
        return None
    ours = cell.estimate(by_block, scale)
    in_words = f"{ours.median:.2f}{interval_in_words(ours, '.2f')}"
    return _check(about, cell, ours, in_words, *_against_range(about.finding, ours))


def _others(about: _About, cell: Cell, degree: int, mode: str) -> list[Cell]:
    """The same case at a degree in a mode: one, but of MIG each layout that was measured."""
    there = (cell.case, degree, mode)
    return [each for each in about.cells if (each.case, each.degree, each.sharing.name) == there and each.is_ranked]


def _against_range(finding: Finding, ours: Estimate) -> tuple[Agreement, str]:
    low = -math.inf if finding.low is None else finding.low
    high = math.inf if finding.high is None else finding.high
    away = ""
    if ours.median < low:
        away = f"{100 * (1 - ours.median / low):.0f} % lower, "
    elif ours.median > high:
        away = f"{100 * (ours.median / high - 1):.0f} % higher, "
    if ours.low is None or ours.high is None:
        return Agreement.UNDECIDED, f"{away}too few values for an interval"
    if low <= ours.low and ours.high <= high:
        return Agreement.AGREES, ""
    if ours.high < low or high < ours.low:
        return Agreement.DIFFERS, away.removesuffix(", ")
    return Agreement.UNDECIDED, f"{away}but the interval reaches into the range" if away else "the interval is wider"


def _is_fastest(about: _About, here: Sequence[Cell]) -> FindingCheck | None:
    """Whether each other mode is slower than one that should be fastest; `None` unless every mode was measured."""
    if {cell.sharing.name for cell in here} != set(about.finding.among):
        return None
    place = here[0].case, here[0].degree
    slower = slower_pairs([verdict for verdict in about.verdicts if (verdict.case, verdict.degree) == place])
    expected = [cell.mode for cell in here if cell.sharing.name in about.finding.modes]
    others = [cell.mode for cell in here if cell.mode not in expected]
    if all(any((other, mode) in slower for mode in expected) for other in others):
        found = Agreement.AGREES
    elif any(all((mode, other) in slower for mode in expected) for other in others):
        found = Agreement.DIFFERS
    else:
        found = Agreement.UNDECIDED
    by_mode = {cell.mode: -cell.estimates[SPEEDUP].median if SPEEDUP in cell.estimates else 0.0 for cell in here}
    tied, _ = leading(by_mode, slower)
    why = "not told apart" if found is Agreement.UNDECIDED else ""
    return dataclasses.replace(_check(about, here[0], None, " or ".join(tied), found, why), mode="")


def _check(
    about: _About, cell: Cell, ours: Estimate | None, in_words: str, agreement: Agreement, difference: str = ""
) -> FindingCheck:
    return FindingCheck(
        publication=about.publication,
        finding=about.finding,
        case_label=cell.case.label,
        degree=cell.degree,
        mode=cell.mode,
        ours=ours,
        ours_in_words=in_words,
        agreement=agreement,
        difference=difference,
        note=_note(about, cell),
    )


def _absent(about: _About) -> FindingCheck:
    finding = about.finding
    return FindingCheck(
        publication=about.publication,
        finding=finding,
        case_label=", ".join(finding.mixes or finding.workloads) or "any workload",
        degree=finding.degree,
        mode=", ".join(finding.mode_labels),
    )


def _note(about: _About, cell: Cell) -> str:
    differs, publication = [], about.publication
    gpu = about.finding.gpu or publication.gpu
    if cell.is_simulated:
        differs.append("simulated, so it says nothing about a GPU")
    elif gpu not in cell.device:
        differs.append(f"{cell.device} instead of an {gpu}")
    if cell.window is WindowKind.STEADY and publication.epochs:
        differs.append(f"steady window instead of {publication.epochs} epochs")
    if any(params.get("source") == "synthetic_files" for params in cell.case.params):
        differs.append("files of made-up images")
    differs += about.finding.slips
    return "; ".join(differs)


def _of_each(check: Callable[[_About, Cell], FindingCheck | None]) -> Check:
    return lambda about, cells: [check(about, cell) for cell in cells]


def _of_each_place(check: Callable[[_About, Sequence[Cell]], FindingCheck | None]) -> Check:
    return lambda about, cells: [check(about, here) for here in by_place([c for c in cells if c.is_ranked]).values()]


CHECKS: dict[str, Check] = {
    "quantity": _of_each(_quantity),
    "against": _against,
    "along": _along,
    "profiles": _profiles,
    "memory_growth": _memory_growth,
    "out_of_memory": _of_each(_out_of_memory),
    "slowdown": _of_each(_slowdown),
    "fastest": _of_each_place(_is_fastest),
}
"""By the kind of a finding: what some cells say, `None` for nothing."""
