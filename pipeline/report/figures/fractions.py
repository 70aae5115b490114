"""Services on fractions of a GPU, with the rest of the GPU idle and loaded by the same service."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.base.system.grouping import group_by
from pipeline.report.evaluate.cells import Cell
from pipeline.report.evaluate.metrics import JOULE, P95_LATENCY, choose_prefix, scale_estimate
from pipeline.report.evaluate.services import Fraction, list_fractions, read_objective
from pipeline.report.evaluate.statistics import Estimate
from pipeline.report.figures.drawing import (
    FAINT,
    HOLLOW_CAPTION,
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
    from matplotlib.figure import Figure

_STYLES = {"idle": "--", "loaded": "-"}


@dataclass(frozen=True, slots=True)
class _Panel:
    """One figure of each fraction; `is_proportional` draws what the fractions have if they share the whole GPU's."""

    title: str
    unit: str
    figures: Sequence[Estimate | None]
    is_proportional: bool = False


def sketches(cells: Sequence[Cell], _: GroupSeries | None) -> Iterator[Sketch]:
    """Yield a sketch for each service that ran on fractions of a GPU."""
    for service, parts in group_by(list_fractions(cells), lambda part: part.service).items():
        yield Sketch(
            name=f"fractions {service}",
            title=f"Fractions of a GPU: {clean_text(service, 100)}",
            caption="Throughput and users of one service, over the share of the GPU that it has; latency of the "
            "slowest service; energy of the whole GPU, over the requests of all services. Loaded: the same service "
            f"runs on the other parts. Dotted: in proportion to the part. A line ends where a figure is missing, such "
            f"as a p95 in a window that is too short for it. {HOLLOW_CAPTION}",
            section="Fractions of a GPU",
            paint=partial(_paint, parts),
        )


def _paint(parts: Sequence[Fraction]) -> Figure:
    numbers = sorted({part.num_parts for part in parts})
    ticks = [next(part.name for part in parts if part.num_parts == number) for number in numbers]
    panels = [panel for panel in _list_panels(parts) if any(panel.figures[1:])]
    figure, every_axes = make_panels(len(panels), 2.4, columns=2)
    handles: dict[str, Any] = {}
    for axes, panel in zip(every_axes, panels, strict=True):
        reference, *figures = zip(parts, panel.figures, strict=True)
        lines = group_by(figures, lambda pair: (pair[0].sharing, pair[0].rest))
        for (sharing, rest), members in sorted(lines.items(), key=lambda line: (line[0][0].order, line[0][1])):
            pairs = [(numbers.index(part.num_parts), estimate) for part, estimate in (reference, *members)]
            estimates = {float(place): estimate for place, estimate in pairs if estimate is not None}
            style: dict[str, Any] = {"color": sharing.colour, "marker": sharing.marker, "linestyle": _STYLES[rest]}
            style |= {"markersize": 3.5, "linewidth": 1.4}
            medians = [estimate.median for estimate in estimates.values()]
            errors = list(zip(*map(error_bar, estimates.values()), strict=True)) or None
            handle = axes.errorbar(list(estimates), medians, errors, elinewidth=0.9, capsize=2, **style)
            handles.setdefault(f"{sharing.label}, rest {rest}", handle)
            hollow_points(axes, estimates, style)
        if panel.is_proportional and reference[1] is not None:
            ideals = [reference[1].median / number for number in numbers]
            (handles["in proportion"],) = axes.plot(range(len(numbers)), ideals, ":", color=FAINT, linewidth=1.1)
        set_title(axes, panel.title)
        axes.set_ylabel(panel.unit)
        axes.set_xticks(range(len(ticks)), ticks)
        axes.set_xlim(-0.3, len(ticks) - 0.7)
        axes.set_ylim(0, 1.04 * axes.get_ylim()[1])
        axes.grid(axis="y")
    add_legend(figure, list(handles.values()), list(handles))
    return figure


def _list_panels(parts: Sequence[Fraction]) -> list[_Panel]:
    fewest, most = min(parts[0].cells), max(parts[0].cells)
    any_cell = parts[0].cells[most]
    objective, _ = read_objective(any_cell.case.params[0])
    users = [part.estimate_users() for part in parts]
    energies = [_read(part, most, any_cell.energy) for part in parts]
    scale, prefix = choose_prefix(energy.median for energy in energies if energy is not None)
    return [
        _Panel(
            f"throughput with {most} users",
            "whole GPU = 1",
            [_compare(part, most) for part in parts],
            is_proportional=True,
        ),
        _Panel(
            f"users with a {objective}",
            "users",
            [number if isinstance(number, Estimate) else None for number in users],
            is_proportional=True,
        ),
        _Panel(f"p95 latency with {fewest} users", "ms", [_read(part, fewest, P95_LATENCY) for part in parts]),
        _Panel(
            f"energy per request with {most} users",
            f"{prefix}{JOULE}",
            [None if energy is None else scale_estimate(energy, scale) for energy in energies],
        ),
    ]


def _compare(part: Fraction, users: int) -> Estimate | None:
    pair = part.compare_throughput(users) if users in part.cells else None
    return None if pair is None else pair.ratio


def _read(part: Fraction, users: int, name: str) -> Estimate | None:
    return part.cells[users].figures.get(name) if users in part.cells else None
