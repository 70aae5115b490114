"""A figure of the utilisation, memory and job spans of one group over time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.report.evaluate.cells import Cell
from pipeline.report.figures.drawing import FAINT, SERIES_COLOURS, WIDEST, Sketch, clean_text, new_figure, say_missing
from pipeline.report.read.group_series import GroupSeries, Line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DASHES = ("-", "--", ":", "-.")  # distinguishable in grey print
_LINES = [(light, dashes) for dashes in _DASHES for light, _ in SERIES_COLOURS]


def sketches(_: Sequence[Cell], group: GroupSeries | None) -> Iterator[Sketch]:
    """Yield a sketch of the chosen group, if it has samples."""
    if group is not None:
        is_divided = any(line.instance for line in (*group.activity, *group.memory_mib))
        instances = "GPU instances: profile (id). " if is_divided else ""
        yield Sketch(
            name="over-time",
            title=f"{_name_sampled(group)} over time: {clean_text(group.name)}",
            caption=f"Group {clean_text(group.name)}, block {group.block}. The bars at the bottom show when each job "
            f"worked. {instances}The series are as sampled"
            + (f", thinned to {group.thinned_to} points." if group.thinned_to else "."),
            section="One group over time",
            paint=partial(_paint, group),
        )


def _paint(group: GroupSeries) -> Figure:
    spans_height = 0.5 + 0.2 * max(1, len(group.spans))
    # One panel is too small for the lines of all instances.
    is_divided = any(line.instance for line in group.activity)
    shares = [[line for line in group.activity if line.label == label] for label in _labels(group.activity)]
    panels = [("activity (share)", group.activity)] if group.activity else []
    if is_divided:
        panels = [(f"{lines[0].label} (share)", tuple(lines)) for lines in shares]
    heights = [2.0 if len(panels) == 1 else 1.6] * len(panels)
    heights += [1.6] if group.memory_mib else []
    view = _view(group)
    figure = new_figure(WIDEST, sum(heights) + spans_height + 0.3)
    grid = figure.subplots(len(heights) + 1, 1, sharex=True, squeeze=False, height_ratios=[*heights, spans_height])
    *above, spans = grid[:, 0]
    for axes, (unit, lines) in zip(above, panels, strict=False):
        _series(axes, lines, unit, "the activity of the GPU", view)
        axes.set_ylim(0, 1.05)
    for memory in above[len(panels) :]:
        _series(memory, group.memory_mib, "memory (MiB)", "the memory of the GPU", view)
        memory.set_ylim(bottom=0)
    _spans(spans, group)
    if group.spans:
        spans.set_xlim(*view)
    return figure


def _name_sampled(group: GroupSeries) -> str:
    if not group.memory_mib:
        return "Utilisation" if group.activity else "Jobs"
    return "Utilisation and memory" if group.activity else "Memory"


def _view(group: GroupSeries) -> tuple[float, float]:
    """Return the range of the time axis: the work of the jobs, with little of their start and end."""
    last = max((span.end_s for span in group.spans), default=math.inf)
    around = max(1.0, 0.1 * last)
    return -around, last + around


def _series(axes: Axes, lines: tuple[Line, ...], unit: str, what: str, view: tuple[float, float]) -> None:
    begin, end = view
    shown = [line for line in lines if line.t_s and line.t_s[0] <= end and begin <= line.t_s[-1]]
    if not shown:
        say_missing(axes, f"no sample of {what} at this time")
        return
    is_divided = any(line.instance for line in lines)
    for number, line in enumerate(shown):
        color, dashes = _LINES[number % len(_LINES)]
        label = line.label if not is_divided else line.instance or "whole GPU"
        is_alone = sum(begin <= t_s <= end for t_s in line.t_s) == 1  # a line needs two points
        style: dict[str, Any] = {"color": color, "linestyle": dashes, "marker": "o" if is_alone else ""}
        axes.plot(line.t_s, line.values, label=label, linewidth=1.1, markersize=3, **style)
    axes.set_ylabel(unit)
    axes.grid(axis="y")
    if is_divided or len(_labels(lines)) > 1 or lines[0].label != "memory in use":
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=7)


def _labels(lines: Sequence[Line]) -> list[str]:
    return list(dict.fromkeys(line.label for line in lines))


def _spans(axes: Axes, group: GroupSeries) -> None:
    axes.set_xlabel("time since the first job began (s)")
    if not group.spans:
        say_missing(axes, "no job recorded its span")
        return
    for number, span in enumerate(group.spans):
        axes.barh(number, span.end_s - span.start_s, 0.72, left=span.start_s, color=group.sharing.colour,
                  edgecolor=FAINT, linewidth=0.5)  # fmt: skip
    endings = ["" if span.result in ("ok", "") else f" ({span.result})" for span in group.spans]
    names = [clean_text(span.label + ending, 30) for span, ending in zip(group.spans, endings, strict=True)]
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_ylabel("jobs")
    axes.spines["left"].set_visible(False)
