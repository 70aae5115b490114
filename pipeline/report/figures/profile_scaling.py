"""One figure of all workloads that ran alone on several MIG profiles: throughput against the profile."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.base.domain.sharing_modes import MIG
from pipeline.report.evaluate import effects
from pipeline.report.evaluate.cells import Case, Cell
from pipeline.report.evaluate.contrasts import contrast_cells
from pipeline.report.evaluate.publication import WHOLE_GPU
from pipeline.report.evaluate.sweeps import FEWEST
from pipeline.report.figures.drawing import (
    FAINT,
    HOLLOW_CAPTION,
    SERIES_COLOURS,
    Sketch,
    add_legend,
    clean_text,
    error_bar,
    hollow_points,
    make_panels,
    set_title,
)
from pipeline.report.read.group_series import GroupSeries

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MARKERS = ("^", "o", "s", "D", "v", "X", "P")
_STYLES = ("-", "--", "-.", ":")
_IDEAL = "ideal"

Places = Mapping[str, Cell]


def find_cases(cells: Sequence[Cell]) -> dict[Case, Places]:
    """Return the cells by profile of the cases that ran only alone, on `FEWEST` profiles or more.

    Empty for a single case, whose figures `parameters` draws against the profile.
    """
    shared = {cell.case for cell in cells if cell.degree > 1}
    scanned: dict[Case, Places] = {
        case: by_place
        for case, by_place in effects.group_by_profile(cells).items()
        if len(by_place.keys() - {WHOLE_GPU}) >= FEWEST and case not in shared
    }
    return scanned if len(scanned) > 1 else {}


def sketches(cells: Sequence[Cell], _: GroupSeries | None) -> Iterator[Sketch]:
    """Yield a sketch with a panel for each workload, if several cases ran on several profiles."""
    panels: dict[str, dict[Case, Places]] = defaultdict(dict)
    for case, by_place in find_cases(cells).items():
        panels[case.params[0].get("workload", case.label)][case] = by_place
    if panels:
        yield Sketch(
            name="profile scaling",
            title="Throughput of one job by MIG profile",
            caption="Throughput divided by that on the largest profile; medians over the blocks and 95 % t intervals. "
            "Dotted: ideal, by multiprocessors, or by memory slices for memory bandwidth. The whole GPU is on the "
            f"right. {HOLLOW_CAPTION}",
            section="Parameters",
            paint=partial(_paint, panels),
        )


def _paint(panels: Mapping[str, Mapping[Case, Places]]) -> Figure:
    figure, every_axes = make_panels(len(panels), 2.6)
    handles: dict[str, Any] = {}
    for axes, (workload, cases) in zip(every_axes, panels.items(), strict=True):
        handles |= _panel(axes, workload, cases)
    add_legend(figure, list(handles.values()), list(handles))
    return figure


def _panel(axes: Axes, workload: str, cases: Mapping[Case, Places]) -> dict[str, Any]:
    """Draw the cases of a workload; return the handles of their lines by label."""
    ticks = effects.sort_places({place for by_place in cases.values() for place in by_place})[::-1]
    handles: dict[str, Any] = {}
    for number, (case, by_place) in enumerate(cases.items()):
        label = clean_text(case.label.removeprefix(workload).strip(" ()")) if len(cases) > 1 else "one job"
        colour = MIG.colour if len(cases) == 1 else SERIES_COLOURS[number % len(SERIES_COLOURS)][0]
        style: dict[str, Any] = {"color": colour, "markersize": 3.5, "linewidth": 1.4}
        style |= {"marker": _MARKERS[number % len(_MARKERS)], "linestyle": _STYLES[number % len(_STYLES)]}
        reference = next(cell for place, cell in by_place.items() if place != WHOLE_GPU)
        estimates = {
            float(ticks.index(place)): pair.ratio
            for place, cell in reversed(list(by_place.items()))
            if (pair := contrast_cells(cell, reference)) is not None and pair.ratio is not None
        }
        errors = list(zip(*map(error_bar, estimates.values()), strict=True))
        medians = [estimate.median for estimate in estimates.values()]
        handles[label] = axes.errorbar(list(estimates), medians, errors, elinewidth=0.9, capsize=2, **style)
        hollow_points(axes, estimates, style)
        ideals = {ticks.index(place): effects.compute_ideal(cell, reference) for place, cell in by_place.items()}
        known = {place: ideal for place, ideal in sorted(ideals.items()) if ideal is not None}
        (handles[_IDEAL],) = axes.plot(list(known), list(known.values()), ":", color=FAINT, linewidth=1.1)
    axes.set_xticks(range(len(ticks)), ["whole GPU" if tick == WHOLE_GPU else tick for tick in ticks], rotation=30)
    axes.set_xlabel("MIG profile")
    axes.set_ylabel("relative throughput")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y")
    set_title(axes, workload)
    return {label: handle for label, handle in handles.items() if label != _IDEAL} | {_IDEAL: handles[_IDEAL]}
