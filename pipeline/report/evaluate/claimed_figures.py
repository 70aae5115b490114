"""The figures behind the claims of a page, from the cells and comparisons of a report."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pipeline.base.domain.normalisation import SPEEDUP, select_independent
from pipeline.base.domain.records import Result
from pipeline.base.domain.sharing_modes import SERIAL
from pipeline.report.evaluate import contrasts
from pipeline.report.evaluate.cells import Cell, label_cases, make_cells, ratios
from pipeline.report.evaluate.contrasts import Contrast, Decision
from pipeline.report.evaluate.statistics import MARGIN, Estimate, Test, compare_pairs, half_width
from pipeline.report.evaluate.wording import finding_in_words
from pipeline.report.read.claims_file import Query, Show
from pipeline.report.read.study_records import Row, Study


class NoFigureError(Exception):
    """A study has no figure for a claim, or one with a mark that the claim does not accept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedStudy:
    """A study, with its cells and comparisons as in its report."""

    study: Study
    cells: Sequence[Cell]
    comparisons: Sequence[Contrast]


def evaluate_study(study: Study) -> EvaluatedStudy:
    """Evaluate a study as its report does."""
    cells = make_cells(study)
    return EvaluatedStudy(study=study, cells=cells, comparisons=contrasts.compare_modes(cells))


_COUNTS: dict[str, Callable[[EvaluatedStudy], float]] = {
    "groups": lambda measured: len(measured.study.rows),
    "ok": lambda measured: sum(row.result is Result.OK for row in measured.study.rows),
    "blocks": lambda measured: len(measured.study.blocks),
    "complete_blocks": lambda measured: measured.study.num_complete_blocks,
    "comparisons": lambda measured: sum(verdict.ratio is not None for verdict in measured.comparisons),
    "verdicts": lambda measured: sum(
        verdict.decision not in (Decision.NO_VERDICT, Decision.NOT_RANKED) for verdict in measured.comparisons
    ),
    "half_width": lambda measured: statistics.median(_list_half_widths(measured.comparisons) or [math.nan]),
    "duration_s": lambda measured: _measure_duration(measured.study.rows),
}
"""Quantities of a whole study; those of comparisons can be limited to one reference (`against`)."""
_COMBINATIONS: dict[str, Callable[[Sequence[float]], float]] = {
    "least": min,
    "most": max,
    "mean": statistics.fmean,
    "median": statistics.median,
    "ratio": lambda figures: figures[0] / figures[1],
    "difference": lambda figures: figures[0] - figures[1],
    "distance": lambda figures: abs(figures[0] / figures[1] - 1),
    "above_1": lambda figures: sum(figure > 1 for figure in figures),
}
"""Quantities of the figures of several queries."""


def format_combination(query: Query, figures: Sequence[float]) -> str:
    """Return the text of a combination of figures; raise `NoFigureError` if there is no such one."""
    try:
        return _format_number(query, _COMBINATIONS[query.quantity](figures))
    except (LookupError, ArithmeticError) as error:
        names = ", ".join(_COMBINATIONS)
        raise NoFigureError(f"{query.quantity} does not combine {len(figures)} figures; use {names}") from error


def format_figure(query: Query, measured: EvaluatedStudy) -> str:
    """Return the text that stands for a query on its page.

    Raises:
        NoFigureError: the study has no such figure, or its marks are not those of the query.
    """
    if query.show is Show.TOLERANCE:
        return _format_number(query, query.tolerance or 0.0)
    if query.show is Show.RECORDED:
        return _find_recorded(query, measured.study)
    if query.show is Show.VERDICT:
        text = _find_comparison(query, measured).decision.value
    elif query.show is Show.P_EQUAL:
        p_equal = _compare_cases(query, measured).p_equal
        text = _format_number(query, math.nan if p_equal is None else p_equal)
    else:
        text = format_estimate(query, find_estimate(query, measured))
    _check_marks(query, _list_marks(query, measured))
    return text


def find_estimate(query: Query, measured: EvaluatedStudy) -> Estimate:
    """Return the estimate of a query, whatever its marks.

    Raises:
        NoFigureError: the study has no such figure.
    """
    if not query.case:
        return Estimate(median=_count(query, measured), low=None, high=None, n=1)
    if query.over:
        return _compare_cases(query, measured).ratio
    cell = find_cell(query, measured)
    estimate = _find_comparison(query, measured).ratio if query.against else cell.figures.get(query.quantity)
    if query.block is not None:
        figure = cell.values.get(query.quantity, {}).get(query.block, math.nan)
        estimate = Estimate(median=figure, low=None, high=None, n=1)
    if estimate is None or not math.isfinite(estimate.median):
        raise NoFigureError(f"{_describe(query)} has no {query.quantity} ({finding_in_words(cell)})")
    return estimate


def _find_recorded(query: Query, study: Study) -> str:
    """Return a setting, fact or `date` that the groups of a study, or of a case, recorded and have in common."""
    cases = label_cases(study)
    rows = [row for row in study.rows if query.case in ("", cases[row.run_id].label)]
    records = [record for row in rows for record in (row.facts, row.params, *(job.params for job in row.jobs))]
    records += [{"date": datetime.fromtimestamp(row.start_ms / 1000, UTC).date().isoformat()} for row in rows]
    values = {record[query.quantity] for record in records if query.quantity in record}
    if len(values) != 1:
        raise NoFigureError(f"the groups recorded {len(values) or 'no'} values of {query.quantity}")
    return format(values.pop(), query.format)


def _count(query: Query, measured: EvaluatedStudy) -> float:
    if query.quantity not in _COUNTS:
        raise NoFigureError(f"{query.quantity} is no quantity of a study; add a case, or use {', '.join(_COUNTS)}")
    if query.against:
        comparisons = [verdict for verdict in measured.comparisons if verdict.against == query.against]
        measured = replace(measured, comparisons=comparisons)
    count = _COUNTS[query.quantity](measured)
    if math.isnan(count):
        raise NoFigureError(f"the study has no {query.quantity}")
    return count


def _list_half_widths(comparisons: Sequence[Contrast]) -> list[float]:
    widths = [half_width(verdict.ratio) for verdict in comparisons if verdict.ratio is not None]
    return [width for width in widths if width is not None]


def _measure_duration(rows: Sequence[Row]) -> float:
    return (max(row.end_ms or row.start_ms for row in rows) - min(row.start_ms for row in rows)) / 1000


def find_cell(query: Query, measured: EvaluatedStudy) -> Cell:
    """Return the cell of a query.

    Raises:
        NoFigureError: the study has no such cell, or several.
    """
    cells = [cell for cell in measured.cells if _place(cell) == (query.case, query.jobs, query.mode)]
    if len(cells) != 1:
        known = ", ".join(dict.fromkeys(repr(cell.case.label) for cell in measured.cells))
        raise NoFigureError(f"the study has {len(cells) or 'no'} groups {_describe(query)}; its cases are {known}")
    return cells[0]


def _compare_cases(query: Query, measured: EvaluatedStudy) -> Test:
    """Test whether a quantity is equal in two cases, in the blocks that have both.

    Raises:
        NoFigureError: a case is missing, or no two blocks have both.
    """
    cell, other = (find_cell(replace(query, case=case), measured) for case in (query.case, query.over))
    by_block = ratios(cell, other, query.quantity)
    if len(by_block) < 2:
        raise NoFigureError(f"{_describe(query)} and {query.over} share fewer than two blocks with {query.quantity}")
    return compare_pairs(select_independent(by_block, cell.gpus), query.margin or MARGIN)


def _find_comparison(query: Query, measured: EvaluatedStudy) -> Contrast:
    place = (query.case, query.jobs, query.mode, query.quantity)
    by_reference = {
        verdict.against: verdict
        for verdict in measured.comparisons
        if (verdict.case.label, verdict.degree, verdict.mode, verdict.quantity.value) == place
    }
    if query.against in by_reference:
        return by_reference[query.against]
    references = ", ".join(by_reference) or "nothing"
    raise NoFigureError(
        f"{query.quantity} of {_describe(query)} is not compared with {query.against}, but {references}"
    )


def _place(cell: Cell) -> tuple[str, int, str]:
    return (cell.case.label, cell.degree, cell.mode)


def _describe(query: Query) -> str:
    return f"{query.jobs} x {query.case}, {query.mode}"


def _list_marks(query: Query, measured: EvaluatedStudy) -> list[str]:
    """Return the marks of the cells behind a query; notes on a gain belong to gains over serial only."""
    modes = {query.mode, query.against} if query.case else set()
    has_gain = query.quantity == SPEEDUP or query.against == SERIAL.label
    marks = ["simulated"] if measured.study.is_simulated else []
    for cell in measured.cells:
        if cell.case.label in {query.case, query.over} and cell.degree == query.jobs and cell.mode in modes:
            marks += [*filter(None, [cell.marks_of_rows]), *(cell.notes_on_gain if has_gain else ())]
    return marks


def _check_marks(query: Query, marks: Sequence[str]) -> None:
    for mark in marks:
        if not any(words in mark for words in query.marks):
            raise NoFigureError(f"the figure is marked: {mark}")
    for words in query.marks:
        if not any(words in mark for mark in marks):
            raise NoFigureError(f"the figure is not marked {words!r}")


def format_estimate(query: Query, estimate: Estimate) -> str:
    """Return the part of an estimate that a query shows; raise `NoFigureError` if the estimate has no interval."""
    if query.show is Show.BLOCKS:
        return str(estimate.n)
    if query.show is Show.MEDIAN:
        return _format_number(query, estimate.median)
    if estimate.low is None or estimate.high is None:
        raise NoFigureError(f"{query.quantity} has no interval ({estimate.n} blocks)")
    low, high = _format_number(query, estimate.low), _format_number(query, estimate.high)
    shown = {Show.LOW: low, Show.HIGH: high, Show.INTERVAL: f"{low} to {high}"}
    if query.show in shown:
        return shown[query.show]
    if query.show is Show.ESTIMATE:
        return f"{_format_number(query, estimate.median)} ({low} to {high})"
    if query.show is Show.HALF_WIDTH and (half := half_width(estimate)) is not None:
        return _format_number(query, half)
    raise NoFigureError(f"{query.quantity} has no {query.show.value}")


def _format_number(query: Query, number: float) -> str:
    return format(number * query.scale, query.format or ".2f")
