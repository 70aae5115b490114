"""The paper's findings beside ours: whether they agree, and by how much they do not."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.report import labels, paper_findings
from pipeline.report.metrics import MEMORY, SPEEDUP, Scale
from pipeline.report.paper_findings import FINDINGS, Finding
from pipeline.report.statistics import Estimate, estimate
from pipeline.report.tables import Cell
from pipeline.report.verdicts import Winner
from pipeline.report.wording import finding_in_words, interval_in_words
from pipeline.types import Result, WindowKind

_UNDER_OTHER_STEPS = ("CUDA graph", "compiled")


class Agreement(enum.StrEnum):
    """How our figure stands to the paper's range."""

    AGREES = "agrees"
    DIFFERS = "differs"
    UNDECIDED = "undecided"
    NOT_MEASURED = "not measured here"


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A finding beside what one cell of ours shows.

    Attributes:
        case_label, degree, mode: of our cell; of the finding, as far as it says so, if there is none.
        ours: our figure in the finding's metric; `None` for an out-of-memory, and where nothing was measured.
        ours_in_words: the same as text.
        difference: by how much ours lies outside the range; why it is undecided.
        note: what is not the same as in the paper: the GPU, the length of the work, the data.
    """

    finding: Finding
    case_label: str
    degree: int | None
    mode: str
    ours: Estimate | None
    ours_in_words: str
    agreement: Agreement
    difference: str
    note: str


def compare(cells: Sequence[Cell], winners: Sequence[Winner] = ()) -> list[Comparison]:
    """Each finding of the paper with every cell of ours that it speaks of; one entry if there is none.

    Args:
        cells: of a study.
        winners: of the same, for the findings about the fastest mode of a mix.
    """
    made: list[Comparison] = []
    for finding in FINDINGS:
        found: list[Comparison | None]
        if finding.metric == paper_findings.BEST_MODE:
            mine = [winner for winner in winners if _mix(winner.case.label) in finding.mixes]
            found = [_best_mode(finding, winner, cells) for winner in mine]
        else:
            found = [_compared(finding, cell, cells) for cell in _spoken_of(finding, cells)]
        made += [comparison for comparison in found if comparison is not None] or [_absent(finding)]
    return made


def _spoken_of(finding: Finding, cells: Sequence[Cell]) -> list[Cell]:
    """The cells that a finding speaks of; of what grows with the degree, the highest degree of each case and mode."""
    found = [cell for cell in cells if _speaks_of(finding, cell)]
    if finding.metric != paper_findings.MEMORY_GROWTH:
        return found
    highest = {(cell.case, cell.family): cell for cell in found if cell.values}  # cells are ordered by degree
    return list(highest.values())


def _speaks_of(finding: Finding, cell: Cell) -> bool:
    if cell.is_derived or cell.family not in finding.families or not _has_degree(finding, cell):
        return False
    if cell.family == labels.MIG:
        if finding.profile is not None and not cell.mode.startswith(f"{labels.MIG} {finding.profile}"):
            return False
    elif cell.mode != cell.family:
        return False  # MPS with limits, say, which the paper does not have
    if finding.mixes or cell.case.is_mix:
        return cell.case.is_mix and _mix(cell.case.label) in finding.mixes
    words = cell.case.workloads[0].split()
    if any(mode in cell.case.workloads[0] for mode in _UNDER_OTHER_STEPS):
        return False
    return words[0] in finding.workloads and (finding.batch_size is None or f"bs{finding.batch_size}" in words)


def _has_degree(finding: Finding, cell: Cell) -> bool:
    return cell.degree > 1 if finding.degree is None else cell.degree == finding.degree


def _mix(label: str) -> str:
    """The label of a mix without the setting behind it."""
    return label.split(" [")[0]


def _compared(finding: Finding, cell: Cell, cells: Sequence[Cell]) -> Comparison | None:
    if cell.finding in (Result.SKIPPED, Result.WRONG_RESULTS):
        return None
    ran_out = cell.results[Result.OOM] > 0
    if finding.metric == paper_findings.OOM:
        if not ran_out and not cell.values:
            return None  # it failed otherwise, which says nothing
        ours_in_words = Result.OOM.value if ran_out else Result.OK.value
        agreement = Agreement.AGREES if ran_out else Agreement.DIFFERS
        return _entry(finding, cell, None, ours_in_words, agreement, "" if ran_out else "it fits here")
    if ran_out and finding.degree is None:
        return None  # nothing is said of degrees that do not fit
    if ran_out:
        return _entry(finding, cell, None, Result.OOM.value, Agreement.DIFFERS, finding_in_words(cell))
    values = _values(finding.metric, cell, cells)
    if not values:
        return None
    ours = estimate(values, Scale.PEAK if finding.metric == paper_findings.MEMORY_GROWTH else Scale.POSITIVE)
    agreement, difference = _against_range(finding, ours)
    return _entry(finding, cell, ours, _in_words(ours), agreement, difference)


def _values(metric: str, cell: Cell, cells: Sequence[Cell]) -> list[float]:
    """The metric in each block; ratios between two cells are taken within a block."""
    if metric == paper_findings.MEMORY_GROWTH:
        solo = _find(cells, cell, 1, labels.SERIAL)
        ratios = _ratios(cell, solo, MEMORY)
        return [ratio / cell.degree for ratio in ratios]
    if metric == paper_findings.AGAINST_NAIVE:
        return _ratios(cell, _find(cells, cell, cell.degree, labels.NAIVE), SPEEDUP)
    if metric == paper_findings.AGAINST_MIG:
        return _ratios(cell, _find(cells, cell, cell.degree, labels.MIG), SPEEDUP)
    return list(cell.values.get(metric, {}).values())


def _find(cells: Sequence[Cell], cell: Cell, degree: int, family: str) -> Cell | None:
    found = (other for other in cells if (other.case, other.degree, other.family) == (cell.case, degree, family))
    return next((other for other in found if other.is_ranked), None)


def _ratios(cell: Cell, other: Cell | None, metric: str) -> list[float]:
    mine = cell.values.get(metric, {})
    theirs = {} if other is None else other.values.get(metric, {})
    return [mine[block] / theirs[block] for block in sorted(mine.keys() & theirs.keys()) if theirs[block]]


def _against_range(finding: Finding, ours: Estimate) -> tuple[Agreement, str]:
    low, high = finding.low, finding.high
    if low is not None and ours.median < low:
        reaches, difference = ours.high is not None and ours.high >= low, f"{100 * (1 - ours.median / low):.0f} % lower"
    elif high is not None and ours.median > high:
        reaches, difference = (
            ours.low is not None and ours.low <= high,
            f"{100 * (ours.median / high - 1):.0f} % higher",
        )
    else:
        return Agreement.AGREES, ""
    if reaches:
        return Agreement.UNDECIDED, f"{difference}, but the interval reaches into the range"
    return Agreement.DIFFERS, difference


def _best_mode(finding: Finding, winner: Winner, cells: Sequence[Cell]) -> Comparison:
    mine = [cell for cell in cells if (cell.case, cell.degree) == (winner.case, winner.degree)]
    family_of = {cell.mode: cell.family for cell in mine}
    families = {family_of.get(mode, mode) for mode in winner.tied}
    if families <= set(finding.families):
        agreement, difference = Agreement.AGREES, ""
    elif families & set(finding.families):
        agreement, difference = Agreement.UNDECIDED, f"not told apart: {', '.join(winner.tied)}"
    else:
        agreement, difference = Agreement.DIFFERS, f"fastest here: {', '.join(winner.tied)}"
    entry = _entry(finding, mine[0], None, " or ".join(winner.tied), agreement, difference)
    missing = set(finding.families) - set(family_of.values())
    if agreement is not Agreement.AGREES and missing:
        return _absent(finding)
    return entry


def _entry(
    finding: Finding, cell: Cell, ours: Estimate | None, in_words: str, agreement: Agreement, difference: str
) -> Comparison:
    return Comparison(
        finding=finding,
        case_label=cell.case.label,
        degree=cell.degree,
        mode=cell.mode if finding.metric != paper_findings.BEST_MODE else "",
        ours=ours,
        ours_in_words=in_words,
        agreement=agreement,
        difference=difference,
        note=_note(cell),
    )


def _absent(finding: Finding) -> Comparison:
    return Comparison(
        finding=finding,
        case_label=", ".join(finding.mixes) or _workloads(finding),
        degree=finding.degree,
        mode=", ".join(finding.families),
        ours=None,
        ours_in_words="",
        agreement=Agreement.NOT_MEASURED,
        difference="",
        note="",
    )


def _workloads(finding: Finding) -> str:
    return "any workload" if finding.workloads == paper_findings.WORKLOADS else ", ".join(finding.workloads)


def _note(cell: Cell) -> str:
    """What a reader must mind: all of it shifts the figures."""
    differs = []
    if cell.is_simulated:
        differs.append("simulated, so it says nothing about a GPU")
    elif paper_findings.GPU not in cell.device:
        differs.append(f"{cell.device} instead of an {paper_findings.GPU}")
    if cell.window is WindowKind.STEADY:
        differs.append("steady window instead of 5 epochs")
    if any(made in " ".join(cell.case.workloads) for made in ("data on the GPU", "host-made data")):
        differs.append("synthetic data instead of images from disk")
    return "; ".join(differs)


def _in_words(ours: Estimate) -> str:
    return f"{ours.median:.2f}{interval_in_words(ours, '.2f')}"
