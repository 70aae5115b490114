"""Training beside inference: what the training kept of its throughput, and how much longer the requests took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pipeline.base.domain.modes import SERIAL
from pipeline.base.domain.normalise import MEAN_SLOWDOWN, P99_SLOWDOWN, SLOWDOWN
from pipeline.report.evaluate.cells import Cell, modes_in
from pipeline.report.evaluate.metrics import ENERGY_VS_ALONE, METRICS
from pipeline.report.evaluate.statistics import Estimate
from pipeline.report.figures.bars import BARS_CAPTION, bar_of, bar_of_figure, by_case, grouped_bars, legend_of
from pipeline.report.figures.drawing import FAINT, WIDEST, Sketch, add_legend, new_figure
from pipeline.report.read.samples import GroupSeries

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def sketches(cells: Sequence[Cell], _: GroupSeries | None) -> Iterator[Sketch]:
    """One of all mixes of services at a given rate and other jobs."""
    mixes = [cell for cell in cells if cell.case.is_mix and 0 < cell.num_given < cell.degree and cell.sharing != SERIAL]
    latency = next((name for name in (P99_SLOWDOWN, MEAN_SLOWDOWN) if any(name in c.estimates for c in mixes)), None)
    if latency is not None:
        yield Sketch(
            name="beside-inference",
            title="Training beside inference",
            caption=(
                "From above: throughput of the job that is slowed down most, over its throughput alone; latency of the "
                "service that is slowed down most, over its latency alone; energy, where it was measured, over that of "
                f"the same work, each job alone. {BARS_CAPTION}"
            ),
            section="Mixes",
            paint=partial(_paint, mixes, latency),
        )


def _kept(cell: Cell) -> Estimate | None:
    kept = {block: 1 / slowdown for block, slowdown in cell.values.get(SLOWDOWN, {}).items()}
    return cell.estimate(kept) if kept else None


def _paint(cells: Sequence[Cell], latency: str) -> Figure:
    has_energy = any(ENERGY_VS_ALONE in cell.estimates for cell in cells)
    figure = new_figure(WIDEST, 7.8 if has_energy else 5.4)
    kept, paid, *energy = figure.subplots(3 if has_energy else 2, 1)
    grouped_bars(kept, by_case(cells, lambda cell: bar_of(cell, _kept(cell))))
    kept.set_ylabel("throughput kept")
    grouped_bars(paid, by_case(cells, lambda cell: bar_of_figure(cell, latency)))
    paid.set_ylabel(f"{METRICS[latency].title.removeprefix('worst slowdown of the ')}, times alone")
    kept.set_ylim(top=max(1.05, kept.get_ylim()[1]))
    for axes in energy:
        grouped_bars(axes, by_case(cells, lambda cell: bar_of_figure(cell, ENERGY_VS_ALONE)))
        axes.set_ylabel("energy, over that apart")
        axes.set_ylim(top=max(1.05, axes.get_ylim()[1]))
    for axes in (kept, paid, *energy):
        axes.axhline(1, color=FAINT, linewidth=1.2, linestyle="--")
    add_legend(figure, legend_of(modes_in(cells)))
    return figure
