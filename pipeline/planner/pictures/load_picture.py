"""The GPUs that each method needs by load, from the output of `compare --json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.planner import input_files
from pipeline.report.figures.drawing import FAINT, SERIES_COLOURS, Sketch, add_legend, find_widest, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LINES = [
    (light, dashes, marker) for dashes in ("-", "--") for (light, _), marker in zip(SERIES_COLOURS, "os^D", strict=True)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """The GPUs of a method; `num_gpus` is `None` without a plan."""

    method: str
    status: str
    num_gpus: int | None = None
    bound: float | None = None
    gap: float | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """All methods at a load, a multiple of the rates."""

    load: float
    methods: tuple[Method, ...]
    bound: float | None = None


def read(content: Mapping[str, Any], where: str) -> tuple[Load, ...]:
    """Read the output of `compare --json`, in the order of the loads; ConfigError if it is invalid."""
    loads: tuple[Load, ...] = input_files.decode(tuple[Load, ...], content.get("loads"), f"{where}: loads")
    return tuple(sorted(loads, key=lambda load: load.load))


def sketch(loads: Sequence[Load], name: str) -> Sketch:
    """Sketch GPUs by load, one line per method."""
    proved = all(row.status == "optimal" for load in loads for row in load.methods[:1])
    exact = "the grey line is the lower bound, because some plans of the exact method are not proved"
    if proved:
        exact = "the GPUs of the exact method are proved to be the fewest"
    return Sketch(
        name=name,
        title="GPUs by load",
        caption="GPUs that each method needs to serve a multiple of the given rates within the same objectives; "
        f"{exact}. A gap in a line means that the method found no plan.",
        section="Methods",
        paint=partial(_paint, loads, proved),
    )


def _paint(loads: Sequence[Load], is_proved: bool) -> Figure:
    from matplotlib.ticker import MaxNLocator

    width = find_widest()
    figure = new_figure(width, 0.5 * width + 0.8)
    axes = figure.subplots()
    names = list(dict.fromkeys(row.method for load in loads for row in load.methods))
    x = [load.load for load in loads]
    handles = []
    for number, name in enumerate(names):
        colour, dashes, marker = _LINES[number % len(_LINES)]
        counts = [{row.method: row.num_gpus for row in load.methods}.get(name) for load in loads]
        num_gpus = [float("nan") if count is None else float(count) for count in counts]
        # Markers are open and of several sizes, because lines overlap.
        style: dict[str, Any] = {"color": colour, "linestyle": dashes, "marker": marker, "linewidth": 1.2}
        style |= {"markersize": max(9 - number, 3), "markerfacecolor": "none"}
        handles += axes.plot(x, num_gpus, label=name, **style)
    if not is_proved:
        bounds = [float("nan") if load.bound is None else load.bound for load in loads]
        handles += axes.plot(x, bounds, color=FAINT, linewidth=1, label="lower bound")
    axes.set_xlabel("load (times the given rates)")
    axes.set_ylabel("GPUs")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(axis="y")
    add_legend(figure, handles)
    return figure
