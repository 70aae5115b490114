"""Figures against one swept parameter: batch size, sequence length, arrival rate, a script's flag, MIG profile, ...

One kind of figure has a numeric param on its axis, if cases differ only in this param. The other kind has the MIG
profiles on which the same jobs ran.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.base.domain import service_figures, work_units
from pipeline.base.domain.normalisation import SLOWDOWN, SPEEDUP
from pipeline.base.domain.sharing_modes import SharingMode
from pipeline.base.system.words import format_count
from pipeline.report.evaluate import sweeps
from pipeline.report.evaluate.cells import Cell, list_metrics
from pipeline.report.evaluate.joules import choose_prefix, scale_estimate
from pipeline.report.evaluate.metrics import (
    INSTANCE_MEMORY,
    MEAN_LATENCY,
    MEMORY,
    P99_LATENCY,
    Metric,
    name_instance_metric,
)
from pipeline.report.evaluate.sweeps import FEWEST, Sweep, parse_number
from pipeline.report.evaluate.wording import absence_in_words
from pipeline.report.figures.bars import NOT_SUSTAINED
from pipeline.report.figures.drawing import (
    HOLLOW_CAPTION,
    INK,
    Sketch,
    add_legend,
    clean_text,
    count_characters,
    error_bar,
    hollow_points,
    make_panels,
    set_title,
    wrap_lines,
)
from pipeline.report.read.group_series import GroupSeries

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_TICKS = 10
_DOUBLING, _WIDE = 1.5, 8
"""An axis is logarithmic if each value is at least 1.5 times the previous value, or the last 8 times the first."""

_STYLES = ("-", "--", "-.", ":")
_MARKERS = ("X", "P", "*", "d", "h", "p", "8")
"""Styles and markers of further lines of a mode: one for each degree, or for each profile or limit of one degree."""

_MEDIAN_LATENCY, _P95_LATENCY = (
    service_figures.name_worst("latency_p50_ms"),
    service_figures.name_worst("latency_p95_ms"),
)
_ACTIVITY = ("gract_mean_ratio", "smact_mean_ratio")


def sketches(cells: Sequence[Cell], _: GroupSeries | None) -> Iterator[Sketch]:
    """Yield a sketch for each parameter that was varied while all others were constant."""
    ran = [cell for cell in cells if not cell.is_derived]
    for swept in (*sweeps.numbers(ran, FEWEST), *sweeps.profiles(ran, FEWEST)):
        if panels := _panels(swept):
            yield Sketch(
                name=f"against {swept.axis} {swept.what}",
                title=f"{clean_text(swept.what, 100)} against {swept.axis}",
                caption=_caption(panels),
                section="Parameters",
                paint=partial(_paint, swept, panels),
            )


def _caption(panels: Sequence[Metric]) -> str:
    caption = (
        f"Medians over the blocks and 95 % t intervals; for memory, the lowest and highest block. {HOLLOW_CAPTION}"
    )
    names = {metric.name for metric in panels}
    if MEAN_LATENCY in names:
        caption += (
            " Latencies are those of the slowest job. Line: mean. Band: median to p99, or to p95 if there are too few "
            "requests for a p99. Dotted: the objective."
        )
    if names & {*_ACTIVITY, MEMORY} or any("energy" in name for name in names):
        caption += " Activity, memory and energy are those of the whole GPU, unless the title mentions an instance."
    return caption


def _panels(swept: Sweep) -> list[Metric]:
    cells = list(itertools.chain(*swept.cells.values()))
    known = list_metrics(cells)
    counts = work_units.find_units(known)
    slowdown = [SLOWDOWN] if cells[0].case.is_mix else []
    speed = [*map(work_units.total_of, counts), SPEEDUP, *slowdown, MEAN_LATENCY, service_figures.GOODPUT_TOTAL]
    activity = [*_ACTIVITY, *map(name_instance_metric, _ACTIVITY)]
    return [
        known[name]
        for name in (*speed, *activity, MEMORY, INSTANCE_MEMORY, *map(work_units.energy_of, counts))
        if sum(any(name in cell.figures for cell in members) for members in swept.cells.values()) > 1
    ]


def _lines(swept: Sweep) -> dict[tuple[str, int], dict[float, Cell]]:
    """Return the cells of each line, by mode and number of jobs."""
    lines: dict[tuple[str, int], dict[float, Cell]] = defaultdict(dict)
    for place, members in swept.cells.items():
        for cell in members:
            mode = cell.mode if swept.is_numeric else cell.sharing.label
            lines[mode, cell.degree][place] = cell
    return dict(sorted(lines.items(), key=lambda item: (next(iter(item[1].values())).sharing.order, item[0])))


def _paint(swept: Sweep, metrics: Sequence[Metric]) -> Figure:
    lines = _lines(swept)
    every_cell = [cell for by_place in lines.values() for cell in by_place.values()]
    every_degree = sorted({degree for _, degree in lines})
    sharings = [(next(iter(by_place.values())).sharing, degree) for (_, degree), by_place in lines.items()]
    styles_by_degree = len(set(sharings)) == len(sharings)
    panels = list(itertools.chain(*(_split_panels(metric, every_degree) for metric in metrics)))
    figure, every_axes = make_panels(len(panels), 2.6)
    handles: dict[str, Any] = {}
    latencies: list[Axes] = []
    for axes, (metric, title, degrees) in zip(every_axes, panels, strict=True):
        known = (cell.figures[metric.name] for cell in every_cell if metric.name in cell.figures)
        scale, prefix = choose_prefix((estimate.median for estimate in known), metric.unit)
        drawn: Counter[SharingMode] = Counter()
        for (mode, degree), by_place in lines.items():
            sharing = next(iter(by_place.values())).sharing
            number = every_degree.index(degree) if styles_by_degree else drawn[sharing]
            style: dict[str, Any] = {"color": sharing.colour, "markersize": 3.5, "linewidth": 1.4}
            style |= {"marker": [sharing.marker, *_MARKERS][number % len(_MARKERS)]}
            style |= {"linestyle": _STYLES[number % len(_STYLES)]}
            drawn[sharing] += 1
            label = f"{mode}, {format_count(degree, 'job')}" if len(every_degree) > 1 else mode
            if degree in degrees and (handle := _line(axes, metric.name, by_place, style, scale)) is not None:
                handles.setdefault(label, handle)
        set_title(axes, title)
        axes.set_ylabel(f"{prefix}{metric.unit}")
        if metric.name == MEAN_LATENCY:
            _latency(axes, swept)
            latencies.append(axes)
        else:
            axes.set_ylim(bottom=0)
        axes.grid(axis="y")
        _axis(axes, swept, degrees, is_of_latency=metric.name == MEAN_LATENCY)
    if latencies:
        low, high = zip(*(axes.get_ylim() for axes in latencies), strict=True)
        for axes in latencies:
            axes.set_ylim(min(low), max(high))
    add_legend(figure, list(handles.values()), list(handles))
    return figure


def _split_panels(metric: Metric, degrees: Sequence[int]) -> Iterator[tuple[Metric, str, Sequence[int]]]:
    """Yield quantity, title and degrees of each panel.

    Latencies have a panel for each degree, because their bands would hide each other.
    """
    together = [degree for degree in degrees if degree > 1]
    if metric.name != MEAN_LATENCY or len(together) < 2:
        yield metric, metric.title, degrees
    else:
        for degree in together:
            yield metric, f"{metric.title}, {format_count(degree, 'job')}", [1, degree]


def _line(axes: Axes, name: str, by_place: Mapping[float, Cell], style: Mapping[str, Any], scale: float) -> Any:
    estimates = {
        place: scale_estimate(cell.figures[name], scale) for place, cell in by_place.items() if name in cell.figures
    }
    if not estimates:
        return None
    if name == MEAN_LATENCY:
        _band(axes, by_place, style["color"])
    errors = list(zip(*map(error_bar, estimates.values()), strict=True))
    medians = [estimate.median for estimate in estimates.values()]
    handle = axes.errorbar(list(estimates), medians, errors, elinewidth=0.9, capsize=2, **style)
    hollow_points(axes, estimates, style)
    return handle


def _band(axes: Axes, by_place: Mapping[float, Cell], colour: str) -> None:
    served = {place: cell.estimates for place, cell in by_place.items() if MEAN_LATENCY in cell.figures}
    top = P99_LATENCY if all(P99_LATENCY in estimates for estimates in served.values()) else _P95_LATENCY
    known = [place for place, estimates in served.items() if {_MEDIAN_LATENCY, top} <= estimates.keys()]
    low, high = ([served[place][name].median for place in known] for name in (_MEDIAN_LATENCY, top))
    axes.fill_between(known, low, high, color=colour, alpha=0.12, linewidth=0)


def _latency(axes: Axes, swept: Sweep) -> None:
    from matplotlib.ticker import LogFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(LogFormatter())  # plain numbers
    axes.yaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False))
    params = [params for members in swept.cells.values() for cell in members for params in cell.case.params]
    objectives = {
        value for params in params if (value := parse_number(params.get(service_figures.OBJECTIVE, ""))) is not None
    }
    if len(objectives) == 1:
        axes.axhline(objectives.pop(), color=INK, linewidth=0.9, linestyle=":")


def _axis(axes: Axes, swept: Sweep, degrees: Sequence[int], *, is_of_latency: bool) -> None:
    from matplotlib.ticker import NullLocator

    places = list(swept.ticks)
    grows = all(before * _DOUBLING <= after for before, after in itertools.pairwise(places))
    is_logarithmic = swept.is_numeric and places[0] > 0 and (grows or places[-1] >= _WIDE * places[0])
    if is_logarithmic:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter("{x:g}")
    if not swept.is_numeric or len(places) <= _MOST_TICKS:
        labels = list(swept.ticks.values())
        if swept.is_numeric:
            labels = _hide_touching([math.log(x) if is_logarithmic else x for x in places], labels, axes)
        axes.set_xticks(places, labels, rotation=0 if swept.is_numeric else 30)
    lines = []
    for place, tick in swept.ticks.items():
        drawn = [cell for cell in swept.cells[place] if cell.degree in degrees]
        unsustained = {id(cell): NOT_SUSTAINED for cell in drawn if is_of_latency and cell.num_saturated}
        why = [(cell.mode, absence_in_words(cell) or unsustained.get(id(cell))) for cell in drawn]
        if words := [f"{mode} {word}" for mode, word in why if word]:
            lines.append(f"{tick}: {', '.join(words)}")
    axes.set_xlabel("\n".join([swept.axis, *(wrap_lines(line, count_characters(axes)) for line in lines)]))


def _hide_touching(places: Sequence[float], labels: Sequence[str], axes: Axes) -> list[str]:
    """Remove the labels of ticks that would touch an earlier label or the last one."""
    per_character = (places[-1] - places[0]) / max(1, 0.9 * count_characters(axes))

    def touch(one: int, other: int) -> bool:
        return abs(places[one] - places[other]) < per_character * (1 + (len(labels[one]) + len(labels[other])) / 2)

    visible = [len(places) - 1]
    for number in range(len(places) - 1):
        if not any(touch(number, other) for other in visible):
            visible.append(number)
    return [label if number in visible else "" for number, label in enumerate(labels)]
