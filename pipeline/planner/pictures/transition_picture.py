"""A transition over time: the steps on each GPU, and the margin of the services."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.base.system.words import natural_key
from pipeline.planner.deployment import total_per_s
from pipeline.planner.transition.graph import assign_times
from pipeline.planner.transition.transition_steps import KINDS, Step, Transition
from pipeline.report.figures.drawing import (
    FAINT,
    LEAST_CHARACTER,
    LEAST_FONT,
    PAPER,
    SERIES_COLOURS,
    WARNING,
    Sketch,
    add_legend,
    clean_text,
    find_widest,
    new_figure,
    say_missing,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = dict(zip(KINDS, (light for light, _ in SERIES_COLOURS), strict=True))
_LANE, _TALLEST = 0.15, 18.0  # inches
_LEAST_LINE = 0.12
"""The least height of a lane with words, and of a label of a GPU. Unit: inches."""
_LONGEST_LABEL = 14
_DRAWN_SHARE = 0.93
"""The share of the width that labels and bars have, without margins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bar:
    """A step on one of its GPUs; concurrent steps have different lanes."""

    step: Step
    gpu: str
    begins: float
    ends: float
    is_source: bool
    lane: int = 0


def sketch(transition: Transition, name: str) -> Sketch:
    """Sketch the steps of a transition."""
    is_timed = bool(transition.durations_s)
    steps = transition.steps if is_timed else assign_times(transition.steps, dict.fromkeys(KINDS, 1.0))
    unit = "Times are computed from --duration" if is_timed else "Without --duration, all steps have equal length"
    return Sketch(
        name=name,
        title="The transition, GPU by GPU",
        caption="Each bar is a step on a GPU, at its earliest time; a migration is drawn on both GPUs, with an open "
        f"bar on the GPU that it leaves. {unit}. Below: the least ratio of throughput to required throughput over all "
        "services, which must not fall below 1.",
        section="Transition",
        paint=partial(_paint, transition, steps, "s" if is_timed else "steps"),
    )


def _paint(transition: Transition, steps: Sequence[Step], unit: str) -> Figure:
    bars = _bars(steps)
    gpus = sorted({bar.gpu for bar in bars}, key=natural_key)
    lanes = {gpu: 1 + max(bar.lane for bar in bars if bar.gpu == gpu) for gpu in gpus}
    num_lanes = sum(lanes.values()) + 0.6 * len(gpus)
    lane = min(_LANE, _TALLEST / max(num_lanes, 1))
    height = 0.3 + lane * num_lanes
    figure = new_figure(find_widest(), height + 1.9)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[height, 1.2])
    if not bars:
        say_missing(above, "nothing changes")
        say_missing(below, "nothing changes")
        return figure
    end = max(bar.ends for bar in bars)
    _gpus(above, bars, gpus, lanes, end, lane_height=lane)
    _least(below, transition, steps, end)
    below.set_xlabel(f"time since the first step began ({unit})")
    add_legend(figure, _legend({bar.step.kind for bar in bars}))
    return figure


def _bars(steps: Sequence[Step]) -> list[_Bar]:
    bars: list[_Bar] = []
    free: dict[str, list[float]] = {}  # time at which each lane of a GPU is free
    for step in sorted(steps, key=lambda step: (step.begins_s or 0.0, step.ends_s or 0.0)):
        begins, ends = step.begins_s or 0.0, step.ends_s or 0.0
        for gpu in dict.fromkeys((step.gpu, step.source_gpu)):
            if gpu is None:
                continue
            lanes = free.setdefault(gpu, [])
            lane = next((number for number, until in enumerate(lanes) if until <= begins), len(lanes))
            lanes[lane : lane + 1] = [ends]
            bars.append(_Bar(step=step, gpu=gpu, begins=begins, ends=ends, is_source=gpu != step.gpu, lane=lane))
    return bars


def _gpus(
    axes: Axes, bars: Sequence[_Bar], gpus: Sequence[str], lanes: dict[str, int], end: float, *, lane_height: float
) -> None:
    labels = [clean_text(f"GPU {gpu}", _LONGEST_LABEL) for gpu in gpus]
    characters = find_widest() * _DRAWN_SHARE / LEAST_CHARACTER - max(map(len, labels))
    tops, top = {}, 0.0
    for gpu in gpus:
        tops[gpu] = top
        top += lanes[gpu] + 0.6
    for bar in bars:
        colour = _COLOURS[bar.step.kind]
        at, length = tops[bar.gpu] + bar.lane + 0.5, bar.ends - bar.begins
        style: dict[str, Any] = {"color": colour, "edgecolor": PAPER}
        if bar.is_source:
            style = {"facecolor": PAPER, "edgecolor": colour}
        axes.barh(at, length, 0.86, left=bar.begins, linewidth=0.7, **style)
        words, room = _words(bar), int(length / end * characters) if end else 0
        if lane_height >= _LEAST_LINE and room >= min(len(words), 7):
            ink = colour if bar.is_source else PAPER
            axes.text(
                bar.begins + length / 2,
                at,
                clean_text(words, max(room, 4)),
                ha="center",
                va="center",
                fontsize=LEAST_FONT,
                color=ink,
            )
    for gpu in gpus[1:]:
        axes.axhline(tops[gpu] - 0.3, color=FAINT, linewidth=0.3)
    middles = [tops[gpu] + lanes[gpu] / 2 for gpu in gpus]
    shown = _space_out(middles, _LEAST_LINE / lane_height)
    axes.set_yticks([middles[n] for n in shown], [labels[n] for n in shown], fontsize=LEAST_FONT)
    axes.set_ylim(top, -0.3)
    axes.set_xlim(0, end or 1)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)


def _space_out(places: Sequence[float], distance: float) -> list[int]:
    """Return the numbers of those ascending places that are at least this distance apart, beginning with the first."""
    chosen: list[int] = []
    for number, place in enumerate(places):
        if not chosen or place - places[chosen[-1]] >= distance:
            chosen.append(number)
    return chosen


def _words(bar: _Bar) -> str:
    if bar.step.instance is not None:
        return bar.step.instance.service
    added, gone = bar.step.made, bar.step.destroyed
    return " ".join(slice_.profile.partition(".")[0] for slice_ in (added or gone))


def _least(axes: Axes, transition: Transition, steps: Sequence[Step], end: float) -> None:
    times, shares = least_shares(transition, steps)
    if not shares:
        say_missing(axes, "no service has a required throughput")
        return
    axes.step([*times, end], [*shares, shares[-1]], where="post", color=_COLOURS["repartition"], linewidth=1.1)
    axes.axhline(1.0, color=WARNING, linewidth=0.8, linestyle="--")
    axes.set_ylim(0, max(1.2, *shares) * 1.05)
    axes.set_ylabel("least share\nof required")
    axes.grid(axis="y")


def least_shares(transition: Transition, steps: Sequence[Step]) -> tuple[list[float], list[float]]:
    """Return times, and the least share from each time on; empty if no service has a required throughput.

    A service counts from the end of the step that starts it to the start of the step that ends it.
    """
    old, new = transition.old_rates_per_s, transition.new_rates_per_s
    required = {name: min(rate, new[name]) for name, rate in old.items() if name in new}
    has = {name: total for name, total in total_per_s(transition.today.gpus).items() if name in required}
    changes: list[tuple[float, str, float]] = []
    for step in steps:
        if step.instance is None or step.instance.service not in required:
            continue
        worth = step.instance.throughput_per_s or 0.0
        if step.kind == "migrate" and step.source is not None:
            worth -= step.source.throughput_per_s or 0.0
        time_s = step.begins_s if step.kind == "delete" else step.ends_s
        changes.append((time_s or 0.0, step.instance.service, -worth if step.kind == "delete" else worth))
    if not required:
        return [], []
    times, shares = [0.0], [min(has[name] / required[name] for name in required)]
    for time_s, group in itertools.groupby(sorted(changes), key=lambda change: change[0]):
        for _, service, change in group:  # changes at the same time count together
            has[service] += change
        times.append(time_s)
        shares.append(min(has[name] / required[name] for name in required))
    return times, shares


def _legend(kinds: set[str]) -> list[Any]:
    from matplotlib.patches import Patch

    return [Patch(facecolor=_COLOURS[kind], label=kind) for kind in KINDS if kind in kinds]
