"""Energy per sample of each workload and of the mixes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pipeline.base.modes import SERIAL
from pipeline.report.evaluate.cells import Cell, cases_in, modes_in
from pipeline.report.evaluate.metrics import ENERGY_PER_SAMPLE
from pipeline.report.figures.bars import (
    BARS_CAPTION,
    Bar,
    bar_of,
    by_case,
    by_degree,
    grouped_bars,
    legend_of,
    num_bars,
)
from pipeline.report.figures.drawing import Sketch, add_legend, panels_of, set_title
from pipeline.report.read.samples import GroupSeries

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def sketches(cells: Sequence[Cell], _: GroupSeries | None) -> Iterator[Sketch]:
    """One of all cells, if energy was measured."""
    if any(ENERGY_PER_SAMPLE in cell.estimates and cell.sharing != SERIAL for cell in cells):
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
    """A panel a workload that ran in some mode, one for all mixes; serial copies cost what one costs."""
    ran = [cell for cell in cells if not cell.is_derived]
    known = {cell.case for cell in cells if ENERGY_PER_SAMPLE in cell.estimates and cell.sharing != SERIAL}
    of_case = {case: [cell for cell in ran if cell.case == case] for case in cases_in(ran) if not case.is_mix}
    contents = [(case.label, by_degree(mine, _bar)) for case, mine in of_case.items() if case in known]
    if any(case.is_mix for case in known):
        contents.append(("mixes", by_case([cell for cell in ran if cell.case.is_mix], _bar)))
    figure, panels = panels_of(len(contents), 2.9, most_bars=max(num_bars(groups) for _, groups in contents))
    for axes, (title, groups) in zip(panels, contents, strict=True):
        grouped_bars(axes, groups)
        set_title(axes, title)
        axes.set_ylabel("J per sample")
    add_legend(figure, legend_of(modes_in(ran)))
    return figure
