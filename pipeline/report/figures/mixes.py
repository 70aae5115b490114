"""Time of the mixes against one job after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pipeline.base.domain.modes import SERIAL
from pipeline.base.domain.normalise import SPEEDUP
from pipeline.base.domain.records import WindowKind
from pipeline.report.evaluate.cells import Cell, modes_in
from pipeline.report.evaluate.metrics import TOTAL_TIME
from pipeline.report.evaluate.statistics import Estimate
from pipeline.report.figures.bars import BARS_CAPTION, bar_of, by_case, grouped_bars, legend_of
from pipeline.report.figures.drawing import FAINT, WIDEST, Sketch, add_legend, new_figure
from pipeline.report.read.samples import GroupSeries

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def sketches(cells: Sequence[Cell], _: GroupSeries | None) -> Iterator[Sketch]:
    """One of all mixes of jobs that are as fast as they can."""
    mixes = [cell for cell in cells if cell.case.is_mix and not cell.num_given]
    if mixes:
        yield Sketch(
            name="mixes-total-time",
            title="Time of the mixes",
            caption=f"{_caption(mixes)} {BARS_CAPTION}",
            section="Mixes",
            paint=partial(_paint, mixes),
        )


def _caption(cells: Sequence[Cell]) -> str:
    if all(cell.window is WindowKind.WORK for cell in cells):
        return "Total time of the mix over its total time one after another, in the same block; below 1 is a gain."
    return "Time for the same work over its time one after another (the inverse of the speed-up); below 1 is a gain."


def _time_against_serial(cell: Cell) -> Estimate | None:
    times = {block: 1 / speed for block, speed in cell.values.get(SPEEDUP, {}).items() if speed > 0}
    return cell.estimate(times) if times else None


def _paint(cells: Sequence[Cell]) -> Figure:
    has_seconds = any(TOTAL_TIME in cell.estimates for cell in cells)
    figure = new_figure(WIDEST, 6.4 if has_seconds else 4.0)
    panels = list(figure.subplots(2 if has_seconds else 1, 1, squeeze=False)[:, 0])
    shared = [cell for cell in cells if cell.sharing != SERIAL]
    ratio = panels[0]
    grouped_bars(ratio, by_case(shared, lambda cell: bar_of(cell, _time_against_serial(cell))))
    ratio.axhline(1, color=FAINT, linewidth=1.2, linestyle="--")
    ratio.annotate("serial", (1, 1), xycoords=("axes fraction", "data"), xytext=(-2, 2), textcoords="offset points",
                   ha="right", fontsize=7, color=FAINT)  # fmt: skip
    ratio.set_ylabel("time against serial")
    ratio.set_ylim(top=max(1.15, ratio.get_ylim()[1]))
    if has_seconds:
        grouped_bars(panels[1], by_case(cells, lambda cell: bar_of(cell, cell.estimates.get(TOTAL_TIME))))
        panels[1].set_ylabel("total time (s)")
    add_legend(figure, legend_of(modes_in(cells if has_seconds else shared)))
    return figure
