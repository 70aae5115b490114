"""The selector of a figure of a study, by which claims, published findings, `compare` and boards name their figures.

A figure is that of a cell, the comparison of a cell with another one, or a count of the whole study.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pipeline.base.domain.normalisation import SPEEDUP, select_independent
from pipeline.base.domain.records import Result
from pipeline.base.domain.sharing_modes import MIG, SERIAL
from pipeline.report.evaluate import verdicts
from pipeline.report.evaluate.cells import Cell, label_cases, make_cells, ratios
from pipeline.report.evaluate.contrasts import Contrast, Decision, compare_modes
from pipeline.report.evaluate.statistics import MARGIN, Estimate, Test, compare_pairs, half_width
from pipeline.report.evaluate.verdicts import Winner
from pipeline.report.evaluate.wording import describe_finding
from pipeline.report.read.study_records import Row, Study


class NoFigureError(Exception):
    """A study has no figure for a selector, or one with a mark that a claim does not accept."""


@dataclass(frozen=True)
class EvaluatedStudy:
    """A study, with its cells, comparisons and fastest modes as in its report."""

    study: Study

    @functools.cached_property
    def cells(self) -> Sequence[Cell]:
        return make_cells(self.study)

    @functools.cached_property
    def comparisons(self) -> Sequence[Contrast]:
        return compare_modes(self.cells)

    @functools.cached_property
    def winners(self) -> Sequence[Winner]:
        return verdicts.winners(self.cells, self.comparisons)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """A figure of a cell, of a comparison (with `against` or `over`), or of the whole study (without `case`).

    Attributes:
        quantity: name of a metric; `speed` or `energy` with `against`; a count of the study without `case`.
        case: label of the case.
        jobs: number of jobs; `None` for any number above 1.
        mode: label of the sharing mode; `MIG` stands for any of its layouts.
        against: the other side of a comparison in the report: serial, naive, CUDA graph alone.
        over: another case with these jobs and this mode; the figure is the ratio of both in the same blocks.
        margin: relative difference within which the two cases are tested to be equal.
        block: the only block that counts; `None` for all blocks.
    """

    quantity: str
    case: str = ""
    jobs: int | None = 1
    mode: str = ""
    against: str = ""
    over: str = ""
    margin: float | None = None
    block: int | None = None

    def __str__(self) -> str:
        return name_cell(self.case, self.jobs or 0, self.mode)

    def selects(self, cell: Cell, case: str) -> bool:
        """Return whether a cell, whose case has this name, is meant."""
        has_jobs = cell.degree > 1 if self.jobs is None else cell.degree == self.jobs
        return self.case == case and has_jobs and self.mode in (cell.mode, MIG.label if cell.sharing == MIG else "")

    def find_cell(self, cells: Sequence[Cell]) -> Cell:
        """Return the only cell that is meant; raise `NoFigureError` if there is none, or several."""
        selected = [cell for cell in cells if self.selects(cell, cell.case.label)]
        if len(selected) != 1:
            labels = ", ".join(dict.fromkeys(repr(cell.case.label) for cell in cells))
            raise NoFigureError(f"the study has {len(selected) or 'no'} groups {self}; its cases are {labels}")
        return selected[0]

    def find_verdict(self, comparisons: Sequence[Contrast]) -> Contrast:
        """Return the comparison with `against`; raise `NoFigureError` if there is none."""
        place = (self.case, self.jobs, self.mode, self.quantity)
        by_reference = {
            verdict.against: verdict
            for verdict in comparisons
            if (verdict.case.label, verdict.degree, verdict.mode, verdict.quantity.value) == place
        }
        if self.against not in by_reference:
            references = ", ".join(by_reference) or "nothing"
            raise NoFigureError(f"{self.quantity} of {self} is not compared with {self.against}, but {references}")
        return by_reference[self.against]

    def test_cases(self, cells: Sequence[Cell]) -> Test:
        """Test whether the quantity is equal in the cases `case` and `over`, in the blocks that have both.

        Raises:
            NoFigureError: a case is missing, or no two blocks have both.
        """
        cell, other = self.find_cell(cells), replace(self, case=self.over).find_cell(cells)
        by_block = ratios(cell, other, self.quantity)
        if len(by_block) < 2:
            raise NoFigureError(f"{self} and {self.over} share fewer than two blocks with {self.quantity}")
        return compare_pairs(select_independent(by_block, cell.gpus), self.margin or MARGIN)

    def find_estimate(self, measured: EvaluatedStudy) -> Estimate:
        """Return the estimate of the figure, whatever its marks; raise `NoFigureError` if the study has none."""
        if not self.case:
            return Estimate(median=self._count(measured), low=None, high=None, n=1)
        if self.over:
            return self.test_cases(measured.cells).ratio
        cell = self.find_cell(measured.cells)
        estimate = cell.figures.get(self.quantity)
        if self.against:
            estimate = self.find_verdict(measured.comparisons).ratio
        if self.block is not None:
            figure = cell.values.get(self.quantity, {}).get(self.block, math.nan)
            estimate = Estimate(median=figure, low=None, high=None, n=1)
        if estimate is None or not math.isfinite(estimate.median):
            raise NoFigureError(f"{self} has no {self.quantity} ({describe_finding(cell)})")
        return estimate

    def find_recorded(self, study: Study) -> str:
        """Return a setting, fact or `date` that the groups of the study, or of the case, recorded in common.

        Raises:
            NoFigureError: the groups recorded nothing, or different values.
        """
        cases = label_cases(study)
        rows = [row for row in study.rows if self.case in ("", cases[row.run_id].label)]
        records = [record for row in rows for record in (row.facts, row.params, *(job.params for job in row.jobs))]
        records += [{"date": datetime.fromtimestamp(row.start_ms / 1000, UTC).date().isoformat()} for row in rows]
        values = {record[self.quantity] for record in records if self.quantity in record}
        if len(values) != 1:
            raise NoFigureError(f"the groups recorded {len(values) or 'no'} values of {self.quantity}")
        return values.pop()

    def list_marks(self, measured: EvaluatedStudy) -> list[str]:
        """Return the marks of the cells behind the figure; notes on a gain belong to gains over serial only."""
        modes = {self.mode, self.against} if self.case else set()
        has_gain = self.quantity == SPEEDUP or self.against == SERIAL.label
        marks = ["simulated"] if measured.study.is_simulated else []
        for cell in measured.cells:
            if cell.case.label in (self.case, self.over) and cell.degree == self.jobs and cell.mode in modes:
                marks += [*filter(None, [cell.marks_of_rows]), *(cell.notes_on_gain if has_gain else ())]
        return marks

    def _count(self, measured: EvaluatedStudy) -> float:
        if self.quantity not in _COUNTS:
            raise NoFigureError(f"{self.quantity} is no quantity of a study; add a case, or use {', '.join(_COUNTS)}")
        compared = [v for v in measured.comparisons if self.against in ("", v.against)]
        count = _COUNTS[self.quantity](measured.study, compared)
        if math.isnan(count):
            raise NoFigureError(f"the study has no {self.quantity}")
        return count


def name_cell(case: str, jobs: int, mode: str, *, is_mix: bool = False) -> str:
    """Return `7 x resnet26 bs32, MPS`; `M+2S, MPS` for a mix."""
    return f"{case}, {mode}" if is_mix else f"{jobs} x {case}, {mode}"


def _measure_duration(rows: Sequence[Row]) -> float:
    return (max(row.end_ms or row.start_ms for row in rows) - min(row.start_ms for row in rows)) / 1000


def _measure_half_width(comparisons: Sequence[Contrast]) -> float:
    widths = [half_width(verdict.ratio) for verdict in comparisons if verdict.ratio is not None]
    return statistics.median([width for width in widths if width is not None] or [math.nan])


def _count_decided(comparisons: Sequence[Contrast]) -> int:
    return sum(verdict.decision not in (Decision.NO_VERDICT, Decision.NOT_RANKED) for verdict in comparisons)


_COUNTS: Mapping[str, Callable[[Study, Sequence[Contrast]], float]] = {
    "groups": lambda study, _: len(study.rows),
    "ok": lambda study, _: sum(row.result is Result.OK for row in study.rows),
    "blocks": lambda study, _: len(study.blocks),
    "complete_blocks": lambda study, _: study.num_complete_blocks,
    "comparisons": lambda _, compared: sum(verdict.ratio is not None for verdict in compared),
    "verdicts": lambda _, compared: _count_decided(compared),
    "half_width": lambda _, compared: _measure_half_width(compared),
    "duration_s": lambda study, _: _measure_duration(study.rows),
}
"""Quantities of a whole study; those of comparisons can be limited to one reference (`against`)."""
