"""Slowdown of each workload beside stressors, against their dial: a panel for each mode, a line for each resource."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.base.domain.sharing_modes import SPARE_COLOURS
from pipeline.base.system.grouping import group_by
from pipeline.report.evaluate.stressors import StressorEffect
from pipeline.report.figures.drawing import (
    FAINT,
    HOLLOW_CAPTION,
    SERIES_COLOURS,
    Sketch,
    add_legend,
    clean_text,
    collect_handles,
    error_bar,
    hollow_points,
    make_panels,
    set_title,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = [light for light, _ in (*SERIES_COLOURS, *SPARE_COLOURS)]
_MARKERS, _DASHES = "os^DvPX*d", ("-", "--", "-.")


def sketches(effects: Sequence[StressorEffect]) -> Iterator[Sketch]:
    """Yield a sketch for each workload that ran beside stressors."""
    known = [effect for effect in effects if effect.sensitivity is not None]
    for workload, members in group_by(known, lambda effect: effect.workload).items():
        yield Sketch(
            name=f"sensitivity {workload}",
            title=f"{clean_text(workload)} beside stressors",
            caption=(
                "Slowdown of the workload beside a stressor of one resource, against the share of time in which the "
                "stressor works; 1 is the speed alone, or in the idle turns of the stressor. Medians over the blocks "
                "and 95 % t intervals. "
                f"{HOLLOW_CAPTION}"
            ),
            section="Sensitivity",
            paint=partial(_paint, members),
        )


def _paint(effects: Sequence[StressorEffect]) -> Figure:
    by_mode = group_by(effects, lambda effect: effect.mode)
    styles = _style_resources(sorted({effect.resource for effect in effects}))
    figure, panels = make_panels(len(by_mode), 2.8, columns=2)
    for axes, (mode, members) in zip(panels, by_mode.items(), strict=True):
        for resource, line in group_by(members, lambda effect: effect.resource).items():
            _draw_line(axes, resource, line, styles[resource])
        axes.axhline(1, color=FAINT, linewidth=1.2, linestyle="--")
        axes.set_xlim(0, 1.05)
        axes.set_xlabel("dial: share of time of the stressor")
        axes.set_ylabel("slowdown, times alone")
        axes.grid(axis="y")
        set_title(axes, mode)
    highest = max(1.1, *(axes.get_ylim()[1] for axes in panels))
    for axes in panels:
        axes.set_ylim(0, 1.05 * highest)
    handles = collect_handles(panels)
    add_legend(figure, list(handles.values()), list(handles))
    return figure


def _style_resources(resources: Sequence[str]) -> dict[str, dict[str, Any]]:
    return {
        resource: {
            "color": _COLOURS[number % len(_COLOURS)],
            "marker": _MARKERS[number % len(_MARKERS)],
            "linestyle": _DASHES[number // len(_COLOURS) % len(_DASHES)],
            "markersize": 4,
            "linewidth": 1.4,
        }
        for number, resource in enumerate(resources)
    }


def _draw_line(axes: Axes, resource: str, effects: Sequence[StressorEffect], style: Mapping[str, Any]) -> None:
    estimates = {effect.dial: effect.sensitivity for effect in effects if effect.sensitivity is not None}
    medians = [estimate.median for estimate in estimates.values()]
    errors = list(zip(*map(error_bar, estimates.values()), strict=True))
    axes.errorbar(list(estimates), medians, errors, elinewidth=0.9, capsize=2, label=resource, **style)
    hollow_points(axes, estimates, style)
