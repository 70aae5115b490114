"""Figures of mixes: time relative to serial, and training and inference together."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pipeline.base.domain.normalisation import MEAN_SLOWDOWN, P99_SLOWDOWN, SLOWDOWN, SPEEDUP
from pipeline.base.domain.sharing_modes import SERIAL
from pipeline.base.domain.window import WindowKind
from pipeline.base.system.grouping import group_by
from pipeline.report.evaluate.cells import Case, Cell, list_cases, list_modes
from pipeline.report.evaluate.metrics import ENERGY_VS_ALONE, METRICS, TOTAL_TIME
from pipeline.report.figures.bars import (
    BARS_CAPTION,
    group_by_case,
    grouped_bars,
    make_bar,
    make_figure_bar,
    make_legend,
)
from pipeline.report.figures.drawing import FAINT, WIDEST, Sketch, add_legend, new_figure
from pipeline.report.read.group_series import GroupSeries

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LAYOUTS = "Labels of MIG bars: the instance in which the layouts of a mix differ; the tables have the layouts. "

_MOST_IN_A_ROW = 8


def sketches(cells: Sequence[Cell], _: GroupSeries | None) -> Iterator[Sketch]:
    """Yield a sketch of the mixes without a given rate, and one of the mixes of services and other jobs."""
    mixes = _shorten_details([cell for cell in cells if cell.case.is_mix])
    if timed := [cell for cell in mixes if not cell.num_given]:
        yield Sketch(
            name="mixes-total-time",
            title="Time of the mixes",
            caption=f"{_caption(timed)} {_LAYOUTS if any(cell.profiles for cell in timed) else ''}{BARS_CAPTION}",
            section="Mixes",
            paint=partial(_paint_times, timed),
        )
    served = [cell for cell in mixes if 0 < cell.num_given < cell.degree and cell.sharing != SERIAL]
    latency = next((name for name in (P99_SLOWDOWN, MEAN_SLOWDOWN) if any(name in c.estimates for c in served)), None)
    if latency is not None:
        yield Sketch(
            name="beside-inference",
            title="Training and inference together",
            caption=(
                "From top to bottom: throughput of the job that is slowed down most, relative to the job alone; "
                "latency of the service that is slowed down most, relative to the service alone; energy, if measured, "
                f"relative to the same work with each job alone. {BARS_CAPTION}"
            ),
            section="Mixes",
            paint=partial(_paint_shares, served, latency),
        )


def _shorten_details(cells: Sequence[Cell]) -> list[Cell]:
    """Reduce the details of MIG layouts, which are long, to the instances in which the layouts of a mix differ."""
    short: dict[tuple[Case, str], str] = {}
    for members in group_by([c for c in cells if c.profiles], lambda cell: (cell.case, cell.sharing)).values():
        layouts = [Counter(name.partition(".")[0] for name in cell.profiles) for cell in members]
        common = functools.reduce(operator.and_, layouts)
        details = ["+".join((layout - common).elements()) for layout in layouts]
        if len(set(details)) == len(details):
            short |= {(cell.case, cell.mode): text for cell, text in zip(members, details, strict=True)}
    return [dataclasses.replace(cell, detail=short.get((cell.case, cell.mode), cell.detail)) for cell in cells]


def _caption(cells: Sequence[Cell]) -> str:
    if all(cell.window is WindowKind.WORK for cell in cells):
        return "Total time of the mix, divided by its serial total time in the same block; below 1 is faster."
    return "Time for the same work, divided by its serial time (the inverse of the speed-up); below 1 is faster."


def _paint_times(cells: Sequence[Cell]) -> Figure:
    has_seconds = any(TOTAL_TIME in cell.estimates for cell in cells)
    rows = _split_rows(cells)
    num_panels = len(rows) * (2 if has_seconds else 1)
    figure = new_figure(WIDEST, 0.8 + (2.8 if num_panels < 3 else 1.9) * num_panels)
    panels = iter(figure.subplots(num_panels, 1, squeeze=False)[:, 0])
    for row in rows:
        ratio = next(panels)
        shared = [cell for cell in row if cell.sharing != SERIAL]
        grouped_bars(ratio, group_by_case(shared, lambda cell: make_bar(cell, cell.estimate_inverse(SPEEDUP))))
        ratio.axhline(1, color=FAINT, linewidth=1.2, linestyle="--")
        ratio.annotate("serial", (1, 1), xycoords=("axes fraction", "data"), xytext=(-2, 2),
                       textcoords="offset points", ha="right", fontsize=7, color=FAINT)  # fmt: skip
        ratio.set_ylabel("time against serial")
        ratio.set_ylim(top=max(1.15, ratio.get_ylim()[1]))
        if has_seconds:
            seconds = next(panels)
            grouped_bars(seconds, group_by_case(row, lambda cell: make_bar(cell, cell.estimates.get(TOTAL_TIME))))
            seconds.set_ylabel("total time (s)")
    add_legend(figure, make_legend(list_modes([c for c in cells if has_seconds or c.sharing != SERIAL])))
    return figure


def _split_rows(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Split many mixes into those without and with large jobs, whose times have other scales."""
    if len(list_cases(cells)) <= _MOST_IN_A_ROW:
        return [list(cells)]
    return list(group_by(cells, lambda cell: any(cell.case.rank[:1])).values())


def _paint_shares(cells: Sequence[Cell], latency: str) -> Figure:
    has_energy = any(ENERGY_VS_ALONE in cell.estimates for cell in cells)
    figure = new_figure(WIDEST, 7.8 if has_energy else 5.4)
    throughput, paid, *energy = figure.subplots(3 if has_energy else 2, 1)
    grouped_bars(throughput, group_by_case(cells, lambda cell: make_bar(cell, cell.estimate_inverse(SLOWDOWN))))
    throughput.set_ylabel("throughput kept")
    grouped_bars(paid, group_by_case(cells, lambda cell: make_figure_bar(cell, latency)))
    paid.set_ylabel(f"{METRICS[latency].title.removeprefix('worst slowdown of the ')}, times alone")
    for axes in energy:
        grouped_bars(axes, group_by_case(cells, lambda cell: make_figure_bar(cell, ENERGY_VS_ALONE)))
        axes.set_ylabel("energy, times alone")
    for axes in (throughput, *energy):
        axes.set_ylim(top=max(1.05, axes.get_ylim()[1]))
    for axes in (throughput, paid, *energy):
        axes.axhline(1, color=FAINT, linewidth=1.2, linestyle="--")
    add_legend(figure, make_legend(list_modes(cells)))
    return figure
