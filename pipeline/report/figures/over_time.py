"""Figures over time: one case in all sharing modes, and the utilisation, memory and job spans of one group."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.base.domain.trial_words import find_shared_places
from pipeline.report.evaluate.cells import Cell
from pipeline.report.figures.drawing import (
    FAINT,
    INK,
    SERIES_COLOURS,
    WIDEST,
    Sketch,
    add_legend,
    clean_text,
    collect_handles,
    new_figure,
    say_missing,
)
from pipeline.report.read.group_series import GroupSeries, Line
from pipeline.report.read.labels import rank_profile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DASHES = ("-", "--", ":", "-.")  # distinguishable in grey print
_SECTION = "One group over time"
_LAST = 0.9
"""Jobs that end after this share of the time of the group end together with the last one."""
_NAME_LENGTH = 30
_COMBINED = "Where only GPU instances were read, activity is their mean, weighted by compute slices. "
_LINES = [(light, dashes) for dashes in _DASHES for light, _ in SERIES_COLOURS]


def sketches(_: Sequence[Cell], group: GroupSeries | None) -> Iterator[Sketch]:
    """Yield a sketch of the chosen group's case in several sharing modes, and one of the group, if it has samples."""
    if group is not None and group.other_modes and (group.activity or group.memory_mib):
        modes = sorted((group, *group.other_modes), key=lambda member: member.sharing.order)
        measured = f"{group.activity[0].label} and memory" if group.activity else "memory"
        is_combined = any(mode.activity and all(line.instance for line in mode.activity) for mode in modes)
        yield Sketch(
            name="over-time-modes",
            title=f"{_name_sampled(group)} over time in {len(modes)} sharing modes",
            caption=f"{measured[:1].upper()}{measured[1:]} of the whole GPU while the same jobs run in each sharing "
            f"mode: {', '.join(clean_text(member.name) for member in modes)}. Markers: a job "
            f"ended before the others. {_COMBINED if is_combined else ''}{_describe_blocks(modes)}",
            section=_SECTION,
            paint=partial(_paint_modes, modes),
        )
    if group is not None:
        is_divided = any(line.instance for line in (*group.activity, *group.memory_mib))
        instances = "GPU instances: profile (id). " if is_divided else ""
        yield Sketch(
            name="over-time",
            title=f"{_name_sampled(group)} over time: {clean_text(group.name)}",
            caption=f"Group {clean_text(group.name)}, block {group.block}. The bars at the bottom show when each job "
            f"worked. {instances}The series are as sampled"
            + (f", thinned to {group.thinned_to} points." if group.thinned_to else "."),
            section=_SECTION,
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


def _paint_modes(modes: Sequence[GroupSeries]) -> Figure:
    activity = [(group, _combine(_select_quantity(group.activity, modes), is_share=True)) for group in modes]
    memory = [(group, _combine(group.memory_mib, is_share=False)) for group in modes]
    kinds = [
        (label, [(group, line) for group, line in lines if line is not None])
        for label, lines in (("activity", activity), ("memory (MiB)", memory))
        if any(line is not None for _, line in lines)
    ]
    figure = new_figure(WIDEST, 2.0 * len(kinds) + 0.6)
    panels = list(figure.subplots(len(kinds), 1, sharex=True, squeeze=False)[:, 0])
    for axes, (label, lines) in zip(panels, kinds, strict=True):
        for group, line in lines:
            _draw_mode(axes, group, line, _DASHES[modes.index(group) % len(_DASHES)])
        axes.set_ylabel(label if label != "activity" else lines[0][1].label)
        axes.grid(axis="y")
        axes.set_ylim(0, 1.05 if label == "activity" else None)
    views = [_view(group) for group in modes if group.spans]
    if views:
        panels[-1].set_xlim(min(begin for begin, _ in views), max(end for _, end in views))
    panels[-1].set_xlabel("time since the first job began (s)")
    add_legend(figure, list(collect_handles(panels).values()))
    return figure


def _draw_mode(axes: Axes, group: GroupSeries, line: Line, dashes: str) -> None:
    import numpy as np

    style: dict[str, Any] = {"color": group.sharing.colour, "linestyle": dashes, "linewidth": 1.4}
    last = max((span.end_s for span in group.spans), default=0.0)
    ends = [span.end_s for span in group.spans if span.end_s < _LAST * last]
    axes.plot(line.t_s, line.values, **style)
    axes.plot(ends, np.interp(ends, line.t_s, line.values), linestyle="none", marker=group.sharing.marker,
              color=group.sharing.colour, markeredgecolor=INK, markeredgewidth=0.6, markersize=6)  # fmt: skip
    axes.plot([], [], marker=group.sharing.marker, label=clean_text(group.mode), **style)  # for the legend


def _select_quantity(lines: Sequence[Line], modes: Sequence[GroupSeries]) -> list[Line]:
    """Return the lines of the first quantity of activity that every sharing mode has, or else any has."""
    counts = Counter(label for group in modes for label in _labels(group.activity))
    shown = next(iter(counts.most_common(1)), ("", 0))[0]
    return [line for line in lines if line.label == shown]


def _combine(lines: Sequence[Line], *, is_share: bool) -> Line | None:
    """Return the line of the whole GPU, or else of its instances: shares as a mean by compute slices, else the sum."""
    import numpy as np

    device_lines = [line for line in lines if not line.instance]
    if device_lines or len(lines) < 2:
        return (*device_lines, *lines, None)[0]
    weights = [max(1, rank_profile(line.instance)[0]) for line in lines]
    t_s = lines[0].t_s
    at_times = [np.interp(t_s, line.t_s, line.values) for line in lines]
    values = np.average(at_times, axis=0, weights=weights) if is_share else np.sum(at_times, axis=0)
    return Line(label=lines[0].label, t_s=t_s, values=tuple(values.tolist()))


def _describe_blocks(modes: Sequence[GroupSeries]) -> str:
    blocks = list(dict.fromkeys(str(group.block) for group in modes))
    return f"Block {blocks[0]}." if len(blocks) == 1 else f"Blocks {' and '.join(blocks)}, in the order of the names."


def _name_sampled(group: GroupSeries) -> str:
    if not group.memory_mib:
        return "Utilisation" if group.activity else "Jobs"
    return "Utilisation and memory" if group.activity else "Memory"


def _view(group: GroupSeries) -> tuple[float, float]:
    """Return the range of the time axis: the work of the jobs, with little of their start and end."""
    last = max((span.end_s for span in group.spans), default=math.inf)
    around = max(1.0, 0.1 * last)
    return -around, last + around


def _series(axes: Axes, lines: tuple[Line, ...], unit: str, quantity: str, view: tuple[float, float]) -> None:
    begin, end = view
    shown = [line for line in lines if line.t_s and line.t_s[0] <= end and begin <= line.t_s[-1]]
    if not shown:
        say_missing(axes, f"no sample of {quantity} at this time")
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


def _leave_out_shared_words(labels: Sequence[str]) -> list[str]:
    """Return long labels, such as those of trials, without the words that are the same in all."""
    if max(map(len, labels)) <= _NAME_LENGTH:
        return list(labels)
    rows = [label.split() for label in labels]
    shared = find_shared_places(rows)
    return [" ".join(word for place, word in enumerate(words) if place not in shared) for words in rows]


def _spans(axes: Axes, group: GroupSeries) -> None:
    axes.set_xlabel("time since the first job began (s)")
    if not group.spans:
        say_missing(axes, "no job recorded its span")
        return
    for number, span in enumerate(group.spans):
        axes.barh(number, span.end_s - span.start_s, 0.72, left=span.start_s, color=group.sharing.colour,
                  edgecolor=FAINT, linewidth=0.5)  # fmt: skip
    endings = ["" if span.result in ("ok", "") else f" ({span.result})" for span in group.spans]
    labels = _leave_out_shared_words([span.label for span in group.spans])
    names = [clean_text(label + ending, _NAME_LENGTH) for label, ending in zip(labels, endings, strict=True)]
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_ylabel("jobs")
    axes.spines["left"].set_visible(False)
