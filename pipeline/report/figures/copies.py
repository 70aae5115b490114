"""Figures of each workload by number of equal jobs: time, activity and memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from pipeline.base.domain.normalisation import MEMORY_PEAK
from pipeline.base.domain.sharing_modes import SERIAL
from pipeline.report.evaluate import sweeps
from pipeline.report.evaluate.cells import Cell, list_cases, list_metrics, list_modes
from pipeline.report.evaluate.effects import find_place
from pipeline.report.evaluate.metrics import MEAN_LATENCY, METRICS, TOTAL_TIME, Metric
from pipeline.report.evaluate.sweeps import FEWEST
from pipeline.report.evaluate.wording import join_words
from pipeline.report.figures.bars import (
    BARS_CAPTION,
    group_by_degree,
    grouped_bars,
    make_bar,
    make_figure_bar,
    make_legend,
    num_bars,
)
from pipeline.report.figures.drawing import Sketch, add_legend, clean_text, make_panels
from pipeline.report.read.group_series import GroupSeries

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DERIVED = "epoch_time_derived_s"
_ACTIVITY = ("gract_mean_ratio", "smact_mean_ratio")


def sketches(cells: Sequence[Cell], _: GroupSeries | None) -> Iterator[Sketch]:
    """Yield a sketch for each workload that ran in several modes, unless other figures or tables show it.

    `parameters` draws sweeps; jobs that ran only alone, on the whole GPU and on MIG profiles, are in `profile_tables`.
    """
    copies = [cell for cell in cells if not cell.case.is_mix]
    sweeping = (*sweeps.numbers(copies, FEWEST), *sweeps.models(copies, FEWEST))
    swept = {cell.case for sweep in sweeping for cell in chain(*sweep.cells.values())}
    for case in (case for case in list_cases(copies) if case not in swept):
        members = [cell for cell in cells if cell.case == case]
        if len({cell.mode for cell in members}) > 1 and not all(map(_is_alone, members)):
            yield Sketch(
                name=f"workload-{case.label}",
                title=clean_text(case.label),
                caption=_caption(members),
                section="Workloads",
                paint=partial(_paint, members),
            )


def _is_alone(cell: Cell) -> bool:
    return cell.degree == 1 and find_place(cell) is not None and not cell.num_given


def _speed_metric(cells: Sequence[Cell]) -> Metric:
    latency = [MEAN_LATENCY] if cells[0].num_given else []
    # In a steady window, the total time is the length that the user chose.
    times = [] if cells[0].window.is_steady else [TOTAL_TIME]
    names = [*latency, "epoch_time_s", _DERIVED, *times, cells[0].throughput, TOTAL_TIME]
    chosen = next((name for name in names if any(name in cell.estimates for cell in cells)), TOTAL_TIME)
    return list_metrics(cells)[chosen]


def _caption(cells: Sequence[Cell]) -> str:
    metric = _speed_metric(cells)
    derived = "Time per epoch: work of an epoch, divided by the throughput of a job in the window; without validation. "
    serial = "Serial: the job alone, with which the other groups of its block are compared. "
    activity = "GRACT: share of time with a kernel resident. SMACT: share of multiprocessors with work. "
    shown = [metric.title.partition(",")[0]]
    shown += ["activity"] * _has(cells, *_ACTIVITY) + ["memory of the whole GPU"] * _has(cells, MEMORY_PEAK)
    return (
        f"{join_words(shown)[:1].upper()}{join_words(shown)[1:]}, by number of equal jobs. "
        f"{serial if any(cell.sharing == SERIAL for cell in cells) else ''}"
        f"{derived if metric.name == _DERIVED else ''}{activity if _has(cells, *_ACTIVITY) else ''}{BARS_CAPTION}"
    )


def _has(cells: Sequence[Cell], *names: str) -> bool:
    return any(name in cell.estimates for cell in cells for name in names)


def _paint(cells: Sequence[Cell]) -> Figure:
    ran = [cell for cell in cells if not cell.is_derived]
    has_activity, has_memory = _has(ran, *_ACTIVITY), _has(ran, MEMORY_PEAK)
    most_bars = num_bars(group_by_degree(ran, make_bar))
    figure, panels = make_panels(1 + has_activity + has_memory, 2.5, most_bars=most_bars)
    time, *remaining = panels
    _panel(time, ran, _speed_metric(cells))
    if has_activity:
        activity = remaining.pop(0)
        grouped_bars(activity, group_by_degree(ran, lambda cell: make_bar(cell, *map(cell.estimates.get, _ACTIVITY))))
        activity.set_ylim(0, 1.05)
        activity.set_ylabel("share of the time / of the SMs")
        activity.set_title("GRACT and SMACT")
    for memory in remaining:
        _panel(memory, ran, METRICS[MEMORY_PEAK])
    add_legend(figure, make_legend(list_modes(ran), second=("GRACT", "SMACT") if has_activity else None))
    return figure


def _panel(axes: Axes, cells: Sequence[Cell], metric: Metric) -> None:
    axes.set_title(metric.title)
    grouped_bars(axes, group_by_degree(cells, lambda cell: make_figure_bar(cell, metric.name)))
    axes.set_ylabel(metric.unit)
