"""The tables of MIG's cost and scaling, and of what neighbours take."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.base.domain.records import NEIGHBOURS
from pipeline.base.system.words import natural
from pipeline.report.evaluate import scaling
from pipeline.report.evaluate.cells import Cell
from pipeline.report.evaluate.publication import WHOLE_GPU
from pipeline.report.page.table_format import Table, Values, with_interval


def scaling_table(cells: Sequence[Cell]) -> Table:
    """How many times as fast a job is on the larger of two places, beside the ideal and what publications say."""
    rows: list[Values] = []
    for step in scaling.steps(cells):
        larger = "the whole GPU" if step.larger == WHOLE_GPU else step.larger
        of_ideal = None if step.ideal is None else 100 * step.ratio.median / step.ideal
        figures = (with_interval(step.ratio), step.ideal, of_ideal, step.loss_pct, step.published or None)
        rows.append((step.case.label, larger, step.smaller, *figures))
    note = (
        "One job on each: its throughput on the larger over that on the smaller, and then the median over the blocks. "
        "Ideal: the ratio of the multiprocessors; bandwidth goes by memory slices instead. Loss: what a job on the "
        "profile of all slices lacks of that on the whole GPU. Published ratios are of the GPU in parentheses."
    )
    columns = ("case", "larger", "smaller", "times as fast", "ideal", "of the ideal (%)", "loss (%)", "published")
    return Table("scaling", "MIG's cost and scaling", columns, tuple(rows), note)


def neighbour_table(cells: Sequence[Cell]) -> Table:
    """What share of their throughput jobs keep beside neighbours."""
    rows: list[Values] = []
    for each in scaling.besides(cells):
        cell = each.cell
        case = cell.case.label.removesuffix(f" [{NEIGHBOURS} {cell.neighbours}]")
        rows.append((case, cell.degree, cell.mode, cell.neighbours, with_interval(each.kept)))
    rows.sort(key=lambda row: natural(str(row[0])))
    note = "Throughput beside neighbours over that of the same jobs in the same mode without, by block."
    columns = ("case", "jobs", "mode", "neighbours", "throughput kept")
    return Table("neighbours", "What neighbours leave", columns, tuple(rows), note)
