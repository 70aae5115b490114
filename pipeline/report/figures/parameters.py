"""Figures against one swept parameter: batch size, sequence length, arrival rate, a script's flag, MIG profile, ...

The axis has the values of a numeric param, if cases differ only in this param; the MIG profiles on which the same jobs
ran; or the models of services that are asked in the same way. Workloads that ran alone on several profiles share one
figure of their throughput.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.base.domain import service_figures, work_units
from pipeline.base.domain.normalisation import MEMORY_PEAK, SLOWDOWN, SPEEDUP
from pipeline.base.domain.sharing_modes import MIG, PROFILE_COLOURS, SERIAL, SharingMode
from pipeline.base.system.words import format_count
from pipeline.report.evaluate import effects, sweeps
from pipeline.report.evaluate.cells import Case, Cell, list_metrics
from pipeline.report.evaluate.contrasts import contrast_cells
from pipeline.report.evaluate.metrics import (
    FIRST_TOKEN_MEAN,
    FIRST_TOKEN_P95,
    FIRST_TOKEN_P99,
    INSTANCE_MEMORY,
    LATENCY_DEVIATION,
    MEAN_LATENCY,
    P95_LATENCY,
    P99_LATENCY,
    STEP_TIME,
    Metric,
    choose_prefix,
    is_latency,
    name_instance_metric,
    scale_estimate,
)
from pipeline.report.evaluate.publication import WHOLE_GPU
from pipeline.report.evaluate.sweeps import FEWEST, AxisKind, Sweep, parse_number
from pipeline.report.evaluate.wording import describe_absence
from pipeline.report.figures.bar_charts import NOT_SUSTAINED
from pipeline.report.figures.drawing import (
    FAINT,
    HOLLOW_CAPTION,
    INK,
    SERIES_COLOURS,
    Sketch,
    add_legend,
    clean_text,
    count_characters,
    draw_line,
    error_bar,
    hollow_points,
    make_panels,
    set_title,
    wrap_lines,
)
from pipeline.report.read import labels
from pipeline.report.read.group_series import GroupSeries

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CASE_MARKERS = ("^", "o", "s", "D", "v", "X", "P")
_CASE_STYLES = ("-", "--", "-.", ":")
_IDEAL = "ideal"

_Places = Mapping[str, Cell]


def _find_scanned_cases(cells: Sequence[Cell]) -> dict[Case, _Places]:
    """Return the cells by profile of the cases that ran only alone, on `FEWEST` profiles or more.

    Empty for a single case, whose figures `parameters` draws against the profile.
    """
    shared = {cell.case for cell in cells if cell.degree > 1}
    scanned: dict[Case, _Places] = {
        case: by_place
        for case, by_place in effects.group_by_profile(cells).items()
        if len(by_place.keys() - {WHOLE_GPU}) >= FEWEST and case not in shared
    }
    return scanned if len(scanned) > 1 else {}


def sketch_profiles(cells: Sequence[Cell], _: GroupSeries | None) -> Iterator[Sketch]:
    """Yield a sketch with a panel for each workload, if several cases ran on several profiles."""
    panels: dict[str, dict[Case, _Places]] = defaultdict(dict)
    for case, by_place in _find_scanned_cases(cells).items():
        panels[case.params[0].get("workload", case.label)][case] = by_place
    if panels:
        yield Sketch(
            name="profile scaling",
            title="Throughput of one job by MIG profile",
            caption="Throughput divided by that on the largest profile; medians over the blocks and 95 % t intervals. "
            "Dotted: ideal, by multiprocessors, or by memory slices for memory bandwidth. The whole GPU is on the "
            f"right. {HOLLOW_CAPTION}",
            section="Parameters",
            paint=partial(_paint_profiles, panels),
        )


def _paint_profiles(panels: Mapping[str, Mapping[Case, _Places]]) -> Figure:
    figure, every_axes = make_panels(len(panels), 2.6)
    handles: dict[str, Any] = {}
    for axes, (workload, cases) in zip(every_axes, panels.items(), strict=True):
        handles |= _draw_profiles(axes, workload, cases)
    add_legend(figure, list(handles.values()), list(handles))
    return figure


def _draw_profiles(axes: Axes, workload: str, cases: Mapping[Case, _Places]) -> dict[str, Any]:
    """Draw the cases of a workload; return the handles of their lines by label."""
    ticks = effects.sort_places({place for by_place in cases.values() for place in by_place})[::-1]
    handles: dict[str, Any] = {}
    for number, (case, by_place) in enumerate(cases.items()):
        label = clean_text(case.label.removeprefix(workload).strip(" ()")) if len(cases) > 1 else "one job"
        colour = MIG.colour if len(cases) == 1 else SERIES_COLOURS[number % len(SERIES_COLOURS)][0]
        style: dict[str, Any] = {"color": colour, "markersize": 3.5, "linewidth": 1.4}
        style |= {
            "marker": _CASE_MARKERS[number % len(_CASE_MARKERS)],
            "linestyle": _CASE_STYLES[number % len(_CASE_STYLES)],
        }
        reference = next(cell for place, cell in by_place.items() if place != WHOLE_GPU)
        estimates = {
            float(ticks.index(place)): pair.ratio
            for place, cell in reversed(list(by_place.items()))
            if (pair := contrast_cells(cell, reference)) is not None and pair.ratio is not None
        }
        handles[label] = draw_line(axes, estimates, style)
        ideals = {ticks.index(place): effects.compute_ideal(cell, reference) for place, cell in by_place.items()}
        drawn_ideals = {place: ideal for place, ideal in sorted(ideals.items()) if ideal is not None}
        (handles[_IDEAL],) = axes.plot(list(drawn_ideals), list(drawn_ideals.values()), ":", color=FAINT, linewidth=1.1)
    axes.set_xticks(range(len(ticks)), ["whole GPU" if tick == WHOLE_GPU else tick for tick in ticks], rotation=30)
    axes.set_xlabel("MIG profile")
    axes.set_ylabel("relative throughput")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y")
    set_title(axes, workload)
    return {label: handle for label, handle in handles.items() if label != _IDEAL} | {_IDEAL: handles[_IDEAL]}


_MOST_TICKS = 10
_DOUBLING, _WIDE = 1.5, defaultdict(lambda: 8, {AxisKind.RATES: 16})
"""An axis is logarithmic if each value is at least 1.5 times the previous value, or the last 8 times the first; an axis
of arrival rates only if the last is 16 times the first."""

_STYLES: tuple[Any, ...] = ("-", "--", "-.", ":", (0, (7, 1.5, 1, 1.5, 1, 1.5)), (0, (10, 2)))
_MARKERS = ("X", "P", "*", "d", "h", "p", "8")
"""Styles and markers of further lines of a mode: one for each degree, or for each profile or limit of one degree."""

_ACTIVITY = ("gract_mean_ratio", "smact_mean_ratio")
_BESIDE = 0.7
"""The share of the distance between two models over which the points of one model are spread."""
_TOO_FEW = "too few requests"
_RATE_TITLE = "arrival rate of a job (requests/s)"
_CLIENT_TITLES = {"job": "clients of each job", "group": "clients of all jobs together"}
"""Titles of an axis with the number of clients, by the param `outstanding_per`."""


def sketch_parameters(cells: Sequence[Cell], _: GroupSeries | None) -> Iterator[Sketch]:
    """Yield a sketch for each parameter that was varied while all others were constant."""
    measured_cells = [cell for cell in cells if not cell.is_derived]
    drawn_together = _find_scanned_cases(cells)
    by_profile = sweeps.profiles([cell for cell in measured_cells if cell.case not in drawn_together], FEWEST)
    for swept in (*sweeps.numbers(measured_cells, FEWEST), *by_profile, *sweeps.models(measured_cells, FEWEST)):
        if _has_lines(swept) and (panels := _list_metrics(swept)):
            yield Sketch(
                name=f"against {swept.axis} {swept.what}",
                title=f"{clean_text(swept.what, 100)} against {swept.axis}",
                caption=_describe_parameters(panels),
                section="Parameters",
                paint=partial(_paint_parameters, swept, panels),
            )


def _has_lines(swept: Sweep) -> bool:
    """Return whether a mode has `FEWEST` values or more; serial jobs alone are no reason to draw other modes."""
    lengths = {mode: len(by_place) for (mode, _), by_place in _list_lines(swept).items()}
    shared = [length for mode, length in lengths.items() if mode != SERIAL.label]
    return max(shared or lengths.values()) >= FEWEST


def _describe_parameters(panels: Sequence[Metric]) -> str:
    caption = (
        f"Medians over the blocks and 95 % t intervals; for memory, the lowest and highest block. {HOLLOW_CAPTION}"
    )
    caption += " A line joins neighbouring values of the axis, and ends where a figure is missing."
    names = {metric.name for metric in panels}
    if MEAN_LATENCY in names:
        caption += (
            " Latencies are those of the slowest job; the standard deviation is that of its requests in a window. "
            "Dotted: the objective."
        )
    if names & {*_ACTIVITY, MEMORY_PEAK} or any("energy" in name for name in names):
        caption += " Activity, memory and energy are those of the whole GPU, unless the title mentions an instance."
    return caption


def _list_metrics(swept: Sweep) -> list[Metric]:
    cells = list(itertools.chain(*swept.cells.values()))
    metrics = list_metrics(cells)
    counts = work_units.find_units(metrics)
    slowdown = [SLOWDOWN] if cells[0].case.is_mix else []
    if swept.kind is AxisKind.MODELS:
        counts = (work_units.REQUESTS,)  # an image is not a text
    speed = [*map(work_units.total_of, counts), SPEEDUP, *slowdown, service_figures.GOODPUT_TOTAL]
    activity = [*_ACTIVITY, *map(name_instance_metric, _ACTIVITY)]
    energy = map(work_units.energy_of, counts)
    return [
        metrics[name]
        for name in (*speed, *_list_time_metrics(cells), *activity, MEMORY_PEAK, INSTANCE_MEMORY, *energy)
        if sum(any(name in cell.figures for cell in members) for members in swept.cells.values()) > 1
    ]


def _list_time_metrics(cells: Sequence[Cell]) -> list[str]:
    """Return the quantities of latency and of the first token, else the step time.

    They are means, p99 (and p95 if a p99 is missing) and the deviation of the latency.
    """
    served = [cell for cell in cells if MEAN_LATENCY in cell.figures]
    if not served:
        return [STEP_TIME]

    def list_tails(p99: str, p95: str) -> list[str]:
        return [p99] if all(p99 in cell.figures for cell in served) else [p99, p95]

    first_tokens = [FIRST_TOKEN_MEAN, *list_tails(FIRST_TOKEN_P99, FIRST_TOKEN_P95)]
    return [*first_tokens, MEAN_LATENCY, *list_tails(P99_LATENCY, P95_LATENCY), LATENCY_DEVIATION]


def _list_lines(swept: Sweep) -> dict[tuple[str, int], dict[float, Cell]]:
    """Return the cells of each line, by mode and number of jobs."""
    lines: dict[tuple[str, int], dict[float, Cell]] = defaultdict(dict)
    for place, members in swept.cells.items():
        for cell in members:
            mode = cell.sharing.label if swept.kind is AxisKind.PROFILES else cell.mode
            lines[mode, cell.degree][place] = cell
    return dict(sorted(lines.items(), key=lambda item: (next(iter(item[1].values())).sharing.order, item[0])))


def _paint_parameters(swept: Sweep, metrics: Sequence[Metric]) -> Figure:
    lines = _list_lines(swept)
    every_degree = sorted({degree for _, degree in lines})
    styles = _style_lines(lines, every_degree)
    figure, every_axes = make_panels(len(metrics), 2.6)
    handles: dict[str, Any] = {}
    shift = _BESIDE / len(lines) if swept.kind is AxisKind.MODELS else 0
    for axes, metric in zip(every_axes, metrics, strict=True):
        estimates = (cell.figures[metric.name] for by_place in lines.values() for cell in by_place.values()
                 if metric.name in cell.figures)  # fmt: skip
        scale, prefix = choose_prefix((estimate.median for estimate in estimates), metric.unit)
        for number, ((mode, degree), by_place) in enumerate(lines.items()):
            offset = shift * (number - (len(lines) - 1) / 2)
            style = styles[mode, degree]
            if (handle := _draw_line(axes, swept, metric.name, by_place, style, scale, offset)) is not None:
                label = f"{mode}, {format_count(degree, 'job')}" if len(every_degree) > 1 else mode
                handles.setdefault(label, handle)
        set_title(axes, metric.title)
        axes.set_ylabel(f"{prefix}{metric.unit}")
        if is_latency(metric.name):
            _scale_latency(axes, swept, metric.name)
        else:
            axes.set_ylim(bottom=0)
        axes.grid(axis="y")
        _label_axis(axes, swept, metric.name)
    add_legend(figure, list(handles.values()), list(handles))
    return figure


def _style_lines(
    lines: Mapping[tuple[str, int], Mapping[float, Cell]], every_degree: Sequence[int]
) -> dict[tuple[str, int], dict[str, Any]]:
    """Return colour, marker and dashes of each line; several MIG profiles of one degree have different colours."""
    first = {line: next(iter(by_place.values())) for line, by_place in lines.items()}
    modes = [(cell.sharing, degree) for (_, degree), cell in first.items()]
    has_one_line_by_degree = len(set(modes)) == len(modes)
    styles = {}
    drawn: Counter[SharingMode] = Counter()
    for (mode, degree), cell in first.items():
        number = every_degree.index(degree) if has_one_line_by_degree else drawn[cell.sharing]
        drawn[cell.sharing] += 1
        colour = _choose_colour(cell, has_profile_colour=not has_one_line_by_degree)
        dashes = number + (colour != cell.sharing.colour and cell.sharing == MIG)  # only serial jobs are solid
        styles[mode, degree] = {
            "color": colour,
            "marker": [cell.sharing.marker, *_MARKERS][number % len(_MARKERS)],
            "linestyle": _STYLES[dashes % len(_STYLES)],
            "markersize": 3.5,
            "linewidth": 1.4,
        }
    return styles


def _choose_colour(cell: Cell, *, has_profile_colour: bool) -> str:
    slices = {labels.rank_profile(profile)[0] for profile in cell.profiles}
    if has_profile_colour and cell.sharing == MIG and len(slices) == 1 and slices <= PROFILE_COLOURS.keys():
        return PROFILE_COLOURS[slices.pop()][0]
    return FAINT if cell.sharing == SERIAL else cell.sharing.colour  # bars of serial jobs are too pale for lines


def _draw_line(
    axes: Axes,
    swept: Sweep,
    name: str,
    by_place: Mapping[float, Cell],
    style: Mapping[str, Any],
    scale: float,
    offset: float,
) -> Any:
    estimates = {
        place: scale_estimate(cell.figures[name], scale) for place, cell in by_place.items() if name in cell.figures
    }
    if not estimates:
        return None
    medians = _break_line(swept, {place: estimate.median for place, estimate in estimates.items()})
    errors = [error_bar(estimates[place]) if place in estimates else (0.0, 0.0) for place in medians]
    places = [place + offset for place in medians]
    joined = {**style, **({"linestyle": "none"} if swept.kind is AxisKind.MODELS else {})}
    below_and_above = list(zip(*errors, strict=True))
    handle = axes.errorbar(places, list(medians.values()), below_and_above, elinewidth=0.9, capsize=2, **joined)
    hollow_points(axes, {place + offset: estimate for place, estimate in estimates.items()}, style)
    return handle


def _break_line(swept: Sweep, by_place: Mapping[float, float]) -> dict[float, float]:
    """Return the figures of a line, from the first to the last, with NaN for the places of the axis between them."""
    low, high = min(by_place), max(by_place)
    return {place: by_place.get(place, math.nan) for place in swept.ticks if low <= place <= high}


def _scale_latency(axes: Axes, swept: Sweep, name: str) -> None:
    from matplotlib.ticker import LogFormatter

    class PlainFormatter(LogFormatter):
        """Labels without exponents: `0.4`, where LogFormatter writes `4e-01`."""

        def __call__(self, x: float, pos: int | None = None) -> str:
            return f"{x:g}" if super().__call__(x, pos) else ""

    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(PlainFormatter())
    axes.yaxis.set_minor_formatter(PlainFormatter(labelOnlyBase=False))
    params = [params for members in swept.cells.values() for cell in members for params in cell.case.params]
    objectives = {value for params in params if (value := _find_objective(params, name)) is not None}
    if len(objectives) == 1:
        axes.axhline(objectives.pop(), color=INK, linewidth=0.9, linestyle=":")


def _find_objective(params: Mapping[str, str], name: str) -> float | None:
    """Return the objective of a latency or of the time to the first token; `None` without one."""
    if name in (FIRST_TOKEN_MEAN, FIRST_TOKEN_P95, FIRST_TOKEN_P99):
        return parse_number(params.get(service_figures.TTFT, ""))
    return parse_number(params.get(service_figures.OBJECTIVE, "")) if _name_limited_latency(params) == name else None


def _name_limited_latency(params: Mapping[str, str]) -> str:
    """Return the latency that an objective limits: at its percentile, else the mean."""
    percentile = parse_number(params.get(service_figures.OBJECTIVE_PERCENTILE, ""))
    text = "mean" if percentile is None else f"p{percentile:g}".replace(".", "")
    return service_figures.name_worst(f"latency_{text}_ms")


def _label_axis(axes: Axes, swept: Sweep, name: str) -> None:
    from matplotlib.ticker import NullLocator

    places = list(swept.ticks)
    grows = all(before * _DOUBLING <= after for before, after in itertools.pairwise(places))
    is_wide = (grows and swept.kind is AxisKind.NUMBERS) or places[-1] >= _WIDE[swept.kind] * places[0]
    is_logarithmic = swept.is_numeric and places[0] > 0 and is_wide
    if is_logarithmic:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter("{x:g}")
    if not swept.is_numeric or len(places) <= _MOST_TICKS:
        texts = list(swept.ticks.values())
        if swept.is_numeric:
            texts = _hide_touching([math.log(x) if is_logarithmic else x for x in places], texts, axes)
        axes.set_xticks(places, texts, rotation=0 if swept.is_numeric else 30)
    title = _RATE_TITLE if swept.kind is AxisKind.RATES else swept.axis
    if swept.axis == service_figures.CLIENTS:
        params = itertools.chain.from_iterable(cell.case.params for cell in swept.cells[places[0]])
        title = _CLIENT_TITLES[next(filter(None, (param.get(service_figures.CLIENTS_OF) for param in params)), "job")]
    lines = [f"{tick}: {words}" for place, tick in swept.ticks.items() if (words := _explain(swept.cells[place], name))]
    axes.set_xlabel("\n".join([title, *(wrap_lines(line, count_characters(axes)) for line in lines)]))


def _explain(cells: Sequence[Cell], name: str) -> str:
    """Return why cells have no figure: `naive oom`, `naive, MPS too few requests`; empty if all have one."""
    modes: dict[str, dict[str, None]] = defaultdict(dict)
    for cell in cells:
        if absence := describe_absence(cell) or _explain_missing_latency(cell, name):
            modes[absence][cell.mode] = None
    return "; ".join(f"{', '.join(members)} {absence}" for absence, members in modes.items())


def _explain_missing_latency(cell: Cell, name: str) -> str:
    if not is_latency(name) or name in cell.figures or not cell.is_ranked:
        return ""
    if cell.num_saturated:
        return NOT_SUSTAINED
    return _TOO_FEW if MEAN_LATENCY in cell.figures else ""


def _hide_touching(places: Sequence[float], texts: Sequence[str], axes: Axes) -> list[str]:
    """Remove the labels of ticks that would touch an earlier label or the last one."""
    per_character = (places[-1] - places[0]) / max(1, 0.9 * count_characters(axes))

    def touch(one: int, other: int) -> bool:
        return abs(places[one] - places[other]) < per_character * (1 + (len(texts[one]) + len(texts[other])) / 2)

    visible = [len(places) - 1]
    for number in range(len(places) - 1):
        if not any(touch(number, other) for other in visible):
            visible.append(number)
    return [label if number in visible else "" for number, label in enumerate(texts)]
