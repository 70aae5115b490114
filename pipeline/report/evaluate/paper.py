"""The findings of publications beside ours: whether they agree, and by how much they do not."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pipeline.base.modes import MIG, SERIAL
from pipeline.base.records import Result, WindowKind
from pipeline.report.evaluate.cells import Cell
from pipeline.report.evaluate.metrics import MEMORY, SPEEDUP, Scale
from pipeline.report.evaluate.publication import Finding, Publication, publications
from pipeline.report.evaluate.statistics import Estimate, estimate
from pipeline.report.evaluate.verdicts import Winner
from pipeline.report.evaluate.wording import finding_in_words, interval_in_words

_SYNTHETIC = ("synthetic_host", "synthetic_device")
_SAY_NOTHING = (Result.SKIPPED, Result.WRONG_RESULTS)


class Agreement(enum.StrEnum):
    """How our figure stands to the publication's range."""

    AGREES = "agrees"
    DIFFERS = "differs"
    UNDECIDED = "undecided"
    NOT_MEASURED = "not measured here"


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingCheck:
    """A finding beside what one cell of ours shows.

    Attributes:
        case_label, degree, mode: of our cell; of the finding, as far as it says so, if there is none.
        ours: our figure in the finding's metric; `None` for an out-of-memory, and where nothing was measured.
        ours_in_words: the same as text.
        difference: by how much ours lies outside the range; why it is undecided.
        note: what is not the same as in the publication: the GPU, the length of the work, the data.
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


def compare(cells: Sequence[Cell], winners: Sequence[Winner] = ()) -> list[FindingCheck]:
    """Each finding of each publication with every cell or fastest mode that it speaks of; one entry where none is."""
    made: list[FindingCheck] = []
    for publication in publications():
        for finding in publication.findings:
            about = _About(publication, finding, cells, winners)
            found = [check for check in CHECKS[finding.kind](about) if check is not None]
            made += found or [_absent(about)]
    return made


class _About(NamedTuple):
    """A finding, and what there is to compare it with."""

    publication: Publication
    finding: Finding
    cells: Sequence[Cell]
    winners: Sequence[Winner]

    def spoken_of(self) -> list[Cell]:
        return [cell for cell in self.cells if _speaks_of(self.publication, self.finding, cell)]


def _speaks_of(publication: Publication, finding: Finding, cell: Cell) -> bool:
    has_degree = cell.degree > 1 if finding.degree is None else cell.degree == finding.degree
    if cell.is_derived or cell.sharing.name not in finding.modes or not has_degree:
        return False
    if cell.sharing == MIG:
        if finding.profile is not None and finding.profile not in [profile.split(".")[0] for profile in cell.profiles]:
            return False
    elif cell.detail:
        return False  # MPS with limits, say, of which no finding speaks
    if finding.mixes or cell.case.is_mix:
        return cell.case.is_mix and cell.case.mix in finding.mixes
    (params,) = cell.case.params
    return (
        params.get("step_mode", "eager") == "eager"
        and params.get("workload") in (finding.workloads or publication.workloads)
        and (finding.batch_size is None or str(finding.batch_size) == params.get("batch_size"))
    )


def _quantity(about: _About) -> list[FindingCheck | None]:
    name = about.finding.quantity
    return [_in_range(about, cell, list(cell.values.get(name, {}).values())) for cell in about.spoken_of()]


def _against(about: _About) -> list[FindingCheck | None]:
    return [
        _in_range(about, cell, _ratios(cell, _find(about.cells, cell, cell.degree, about.finding.against), SPEEDUP))
        for cell in about.spoken_of()
    ]


def _memory_growth(about: _About) -> list[FindingCheck | None]:
    """Of what grows with the degree, the highest degree of each case and mode."""
    highest = {(cell.case, cell.sharing): cell for cell in about.spoken_of() if cell.values}  # ordered by degree
    found = []
    for cell in highest.values():
        ratios = _ratios(cell, _find(about.cells, cell, 1, SERIAL.name), MEMORY)
        found.append(_in_range(about, cell, [ratio / cell.degree for ratio in ratios], Scale.PEAK))
    return found


def _out_of_memory(about: _About) -> list[FindingCheck | None]:
    return [_ran_out(about, cell) for cell in about.spoken_of()]


def _ran_out(about: _About, cell: Cell) -> FindingCheck | None:
    if cell.finding in _SAY_NOTHING:
        return None
    if cell.results[Result.OOM]:
        return _check(about, cell, None, Result.OOM.value, Agreement.AGREES)
    if not cell.values:
        return None  # it failed otherwise, which says nothing
    return _check(about, cell, None, Result.OK.value, Agreement.DIFFERS, "it fits here")


def _in_range(about: _About, cell: Cell, values: Sequence[float], scale: Scale = Scale.POSITIVE) -> FindingCheck | None:
    if cell.finding in _SAY_NOTHING:
        return None
    if cell.results[Result.OOM]:
        if about.finding.degree is None:
            return None  # nothing is said of degrees that do not fit
        return _check(about, cell, None, Result.OOM.value, Agreement.DIFFERS, finding_in_words(cell))
    if not values:
        return None
    ours = estimate(values, scale)
    in_words = f"{ours.median:.2f}{interval_in_words(ours, '.2f')}"
    return _check(about, cell, ours, in_words, *_against_range(about.finding, ours))


def _find(cells: Sequence[Cell], cell: Cell, degree: int, mode: str) -> Cell | None:
    found = (other for other in cells if (other.case, other.degree, other.sharing.name) == (cell.case, degree, mode))
    return next((other for other in found if other.is_ranked), None)


def _ratios(cell: Cell, other: Cell | None, metric: str) -> list[float]:
    mine = cell.values.get(metric, {})
    theirs = {} if other is None else other.values.get(metric, {})
    return [mine[block] / theirs[block] for block in sorted(mine.keys() & theirs.keys()) if theirs[block]]


def _against_range(finding: Finding, ours: Estimate) -> tuple[Agreement, str]:
    low, high = finding.low, finding.high
    if low is not None and ours.median < low:
        difference = f"{100 * (1 - ours.median / low):.0f} % lower"
        reaches = ours.high is not None and ours.high >= low
    elif high is not None and ours.median > high:
        difference = f"{100 * (ours.median / high - 1):.0f} % higher"
        reaches = ours.low is not None and ours.low <= high
    else:
        return Agreement.AGREES, ""
    if reaches:
        return Agreement.UNDECIDED, f"{difference}, but the interval reaches into the range"
    return Agreement.DIFFERS, difference


def _fastest(about: _About) -> list[FindingCheck | None]:
    return [_is_fastest(about, winner) for winner in about.winners if winner.case.mix in about.finding.mixes]


def _is_fastest(about: _About, winner: Winner) -> FindingCheck | None:
    mine = [cell for cell in about.cells if (cell.case, cell.degree) == (winner.case, winner.degree)]
    name_of = {cell.mode: cell.sharing.name for cell in mine}
    fastest, expected = {name_of.get(mode, mode) for mode in winner.tied}, set(about.finding.modes)
    if fastest <= expected:
        agreement, difference = Agreement.AGREES, ""
    elif expected - set(name_of.values()):
        return _absent(about)  # a mode that the finding names did not run
    elif fastest & expected:
        agreement, difference = Agreement.UNDECIDED, f"not told apart: {', '.join(winner.tied)}"
    else:
        agreement, difference = Agreement.DIFFERS, f"fastest here: {', '.join(winner.tied)}"
    check = _check(about, mine[0], None, " or ".join(winner.tied), agreement, difference)
    return dataclasses.replace(check, mode="")


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
        note=_note(about.publication, cell),
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


def _note(publication: Publication, cell: Cell) -> str:
    """What a reader must mind: all of it shifts the figures."""
    differs = []
    if cell.is_simulated:
        differs.append("simulated, so it says nothing about a GPU")
    elif publication.gpu not in cell.device:
        differs.append(f"{cell.device} instead of an {publication.gpu}")
    if cell.window is WindowKind.STEADY:
        differs.append(f"steady window instead of {publication.epochs} epochs")
    if any(params.get("source") in _SYNTHETIC for params in cell.case.params):
        differs.append("synthetic data instead of images from disk")
    return "; ".join(differs)


CHECKS: dict[str, Callable[[_About], list[FindingCheck | None]]] = {
    "quantity": _quantity,
    "against": _against,
    "memory_growth": _memory_growth,
    "out_of_memory": _out_of_memory,
    "fastest": _fastest,
}
"""By the kind of a finding."""
