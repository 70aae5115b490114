"""A figure of each workload: time per epoch, activity and memory, by number of equal jobs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pipeline.report.evaluate.cells import Cell, cases_in, modes_in
from pipeline.report.evaluate.metrics import MEMORY, METRICS
from pipeline.report.figures.bars import BARS_CAPTION, bar_of, by_degree, grouped_bars, legend_of
from pipeline.report.figures.drawing import Sketch, new_figure, plain, say_missing
from pipeline.report.read.samples import GroupSeries

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ACTIVITY = ("gract_mean_ratio", "smact_mean_ratio")


def sketches(cells: Sequence[Cell], _: GroupSeries | None) -> Iterator[Sketch]:
    """One a workload that ran in several modes; a baseline alone is a line in the chart of the gain."""
    for case in cases_in([cell for cell in cells if not cell.case.is_mix]):
        mine = [cell for cell in cells if cell.case == case]
        if len({cell.mode for cell in mine}) > 1:
            yield Sketch(
                name=f"workload-{case.label}",
                title=plain(case.label),
                caption=_caption(mine),
                section="Workloads",
                paint=partial(_paint, mine),
            )


def _epoch_metric(cells: Sequence[Cell]) -> str:
    """Time per epoch as it was measured; from throughput in a steady window."""
    measured = any("epoch_time_s" in cell.estimates for cell in cells)
    return "epoch_time_s" if measured else "epoch_time_derived_s"


def _caption(cells: Sequence[Cell]) -> str:
    derived = "Time per epoch is the samples of an epoch over the measured throughput of a job. "
    return (
        "Time per epoch, activity and memory of the whole GPU, by number of equal jobs. "
        f"{derived if _epoch_metric(cells) == 'epoch_time_derived_s' else ''}GRACT says that some kernel was "
        f"resident, SMACT what share of the multiprocessors had work. {BARS_CAPTION}"
    )


def _paint(cells: Sequence[Cell]) -> Figure:
    """Three panels: time per epoch, GRACT with SMACT beside it, memory footprint; serial copies only for time."""
    figure = new_figure(max(10.0, min(16.0, 4.0 + 0.5 * len(cells))), 3.4)
    first, second, third = figure.subplots(1, 3)
    ran = [cell for cell in cells if not cell.is_derived]
    name = _epoch_metric(cells)
    _panel(first, ran, name)
    has_activity = any(name in cell.estimates for cell in ran for name in _ACTIVITY)
    if has_activity:
        grouped_bars(second, by_degree(ran, lambda cell: bar_of(cell, *map(cell.estimates.get, _ACTIVITY))))
        second.set_ylim(0, 1.05)
        second.set_ylabel("share of the time / of the SMs")
    else:
        say_missing(second, "not measured: it takes\nlistener gpm or dcgm")
    second.set_title("GRACT and SMACT")
    _panel(third, ran, MEMORY)
    handles = legend_of(second, modes_in(ran), second=("GRACT", "SMACT") if has_activity else None)
    figure.legend(handles=handles, loc="outside lower left", ncols=len(handles), fontsize=8)
    return figure


def _panel(axes: Axes, cells: Sequence[Cell], name: str) -> None:
    metric = METRICS[name]
    axes.set_title(metric.title)
    if not any(name in cell.estimates for cell in cells):
        say_missing(axes, "not measured")
        return
    grouped_bars(axes, by_degree(cells, lambda cell: bar_of(cell, cell.estimates.get(name))))
    axes.set_ylabel(metric.unit)
