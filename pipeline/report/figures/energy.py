"""Energy per sample of each workload and of the mixes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pipeline.report.evaluate.cells import Cell, cases_in, modes_in
from pipeline.report.evaluate.metrics import ENERGY_PER_SAMPLE
from pipeline.report.figures.bars import BARS_CAPTION, Bar, bar_of, by_case, by_degree, grouped_bars, legend_of
from pipeline.report.figures.drawing import Sketch, in_lines, panels_of
from pipeline.report.read.samples import GroupSeries

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def sketches(cells: Sequence[Cell], _: GroupSeries | None) -> Iterator[Sketch]:
    """One of all cells, if energy was measured."""
    if any(ENERGY_PER_SAMPLE in cell.estimates for cell in cells):
        yield Sketch(
            name="energy-per-sample",
            title="Energy per sample",
            caption="Energy of the whole GPU over the samples of all jobs, idle power included. " + BARS_CAPTION,
            section="Energy",
            paint=partial(_paint, cells),
        )


def _bar(cell: Cell) -> Bar:
    return bar_of(cell, cell.estimates.get(ENERGY_PER_SAMPLE))


def _paint(cells: Sequence[Cell]) -> Figure:
    """A panel a workload, one for all mixes; serial copies cost what one costs."""
    ran = [cell for cell in cells if not cell.is_derived]
    copies = cases_in([cell for cell in ran if not cell.case.is_mix])
    copies = [case for case in copies if any(ENERGY_PER_SAMPLE in cell.estimates for cell in ran if cell.case == case)]
    mixes = [cell for cell in ran if cell.case.is_mix]
    has_mixes = any(ENERGY_PER_SAMPLE in cell.estimates for cell in mixes)
    figure, panels = panels_of(len(copies) + has_mixes, 2.6)
    for axes, case in zip(panels, copies, strict=False):
        mine = [cell for cell in ran if cell.case == case]
        grouped_bars(axes, by_degree(mine, _bar))
        axes.set_title(in_lines(case.label), fontsize=8)
        axes.set_ylabel("J per sample")
    if has_mixes:
        axes = panels[len(copies)]
        grouped_bars(axes, by_case(mixes, _bar))
        axes.set_title("mixes", fontsize=8)
        axes.set_ylabel("J per sample")
        axes.tick_params(axis="x", labelrotation=90 if len(cases_in(mixes)) > 3 else 0)
    modes = modes_in(ran)
    figure.legend(handles=legend_of(panels[0], modes), loc="outside lower left", ncols=len(modes), fontsize=8)
    return figure
