"""Figures of lines with intervals: fractions of a GPU, speed-ups by number of jobs, and workloads beside stressors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.base.domain.normalisation import SPEEDUP
from pipeline.base.domain.sharing_modes import SERIAL, SPARE_COLOURS, SharingMode
from pipeline.base.system.words import group_by
from pipeline.report.evaluate.cells import Case, Cell, list_cases, list_modes
from pipeline.report.evaluate.contrasts import BASELINES_NOTE, contrast_cells, is_best_solo_serial, name_best_solo
from pipeline.report.evaluate.effects import find_serial, list_other_modes
from pipeline.report.evaluate.metrics import BEST_SOLO, JOULE, P95_LATENCY, TOTAL_TIME, choose_prefix, scale_estimate
from pipeline.report.evaluate.services import Fraction, list_fractions, read_objective
from pipeline.report.evaluate.statistics import Estimate
from pipeline.report.evaluate.stressors import StressorEffect
from pipeline.report.evaluate.wording import describe_absence
from pipeline.report.figures.drawing import (
    FAINT,
    HOLLOW_CAPTION,
    SERIES_COLOURS,
    Sketch,
    add_legend,
    clean_text,
    collect_handles,
    count_characters,
    draw_level,
    draw_line,
    error_bar,
    make_panels,
    set_title,
    wrap_lines,
)
from pipeline.report.read import labels
from pipeline.report.read.group_series import GroupSeries

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_REST_STYLES = {"idle": "--", "loaded": "-"}


@dataclass(frozen=True, slots=True)
class _FractionPanel:
    """One figure of each fraction; `is_proportional` draws what the fractions have if they share the whole GPU's."""

    title: str
    unit: str
    figures: Sequence[Estimate | None]
    is_proportional: bool = False


def sketch_fractions(cells: Sequence[Cell], _: GroupSeries | None) -> Iterator[Sketch]:
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
            paint=partial(_paint_fractions, parts),
        )


def _paint_fractions(parts: Sequence[Fraction]) -> Figure:
    numbers = sorted({part.num_parts for part in parts})
    ticks = [next(part.name for part in parts if part.num_parts == number) for number in numbers]
    panels = [panel for panel in _list_fraction_panels(parts) if any(panel.figures[1:])]
    figure, every_axes = make_panels(len(panels), 2.4, columns=2)
    handles: dict[str, Any] = {}
    for axes, panel in zip(every_axes, panels, strict=True):
        reference, *figures = zip(parts, panel.figures, strict=True)
        lines = group_by(figures, lambda pair: (pair[0].sharing, pair[0].rest))
        for (sharing, load), members in sorted(lines.items(), key=lambda line: (line[0][0].order, line[0][1])):
            pairs = [(numbers.index(part.num_parts), estimate) for part, estimate in (reference, *members)]
            estimates = {float(place): estimate for place, estimate in pairs if estimate is not None}
            style: dict[str, Any] = {"color": sharing.colour, "marker": sharing.marker, "linestyle": _REST_STYLES[load]}
            style |= {"markersize": 3.5, "linewidth": 1.4}
            handles.setdefault(f"{sharing.label}, rest {load}", draw_line(axes, estimates, style))
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


def _list_fraction_panels(parts: Sequence[Fraction]) -> list[_FractionPanel]:
    fewest, most = min(parts[0].cells), max(parts[0].cells)
    any_cell = parts[0].cells[most]
    objective, _ = read_objective(any_cell.case.params[0])
    users = [part.estimate_users() for part in parts]
    energies = [_read_fraction(part, most, any_cell.energy) for part in parts]
    scale, prefix = choose_prefix(energy.median for energy in energies if energy is not None)
    return [
        _FractionPanel(
            f"throughput with {most} users",
            "whole GPU = 1",
            [_compare_fraction(part, most) for part in parts],
            is_proportional=True,
        ),
        _FractionPanel(
            f"users with a {objective}",
            "users",
            [number if isinstance(number, Estimate) else None for number in users],
            is_proportional=True,
        ),
        _FractionPanel(
            f"p95 latency with {fewest} users", "ms", [_read_fraction(part, fewest, P95_LATENCY) for part in parts]
        ),
        _FractionPanel(
            f"energy per request with {most} users",
            f"{prefix}{JOULE}",
            [None if energy is None else scale_estimate(energy, scale) for energy in energies],
        ),
    ]


def _compare_fraction(part: Fraction, users: int) -> Estimate | None:
    pair = part.compare_throughput(users) if users in part.cells else None
    return None if pair is None else pair.ratio


def _read_fraction(part: Fraction, users: int, name: str) -> Estimate | None:
    return part.cells[users].figures.get(name) if users in part.cells else None


_SHIFT = 0.1
"""Distance between the points of two modes with the same number of jobs. Unit: jobs."""


class _GainPanel(NamedTuple):
    """The speed-up of a case over serial (`SPEEDUP`) or over its best step mode alone (`BEST_SOLO`)."""

    case: Case
    metric: str
    cells: Sequence[Cell]
    alone: Sequence[tuple[str, Estimate]]

    @property
    def workload(self) -> str:
        return self.case.params[0].get("workload", "")

    @property
    def baseline(self) -> str:
        return "serial" if self.metric == SPEEDUP else name_best_solo(self.known[-1])

    @property
    def known(self) -> list[Cell]:
        """The cells with the figure of the panel that have other modes than serial."""
        return [c for c in self.cells if c.is_ranked and not c.is_derived and self.metric in c.estimates]


def sketch_gains(cells: Sequence[Cell], _: GroupSeries | None) -> Iterator[Sketch]:
    """Yield a sketch of the workloads that ran in several copies, without a given rate."""
    copies = [cell for cell in cells if not cell.case.is_mix and not cell.num_given]
    if panels := _list_gain_panels(copies):
        yield Sketch(
            name="gain",
            title="Speed-up against the number of jobs",
            caption=_describe_gains(copies, panels),
            section="Speed-up",
            paint=partial(_paint_gains, panels),
        )


def _describe_gains(cells: Sequence[Cell], panels: Sequence[_GainPanel]) -> str:
    drawn = {panel.case for panel in panels}
    missing = [case.label for case in list_cases([cell for cell in cells if cell.degree > 1]) if case not in drawn]
    has_best = any(panel.metric == BEST_SOLO for panel in panels)
    best = " and over one job at a time in the best step mode," if has_best else ""
    parts = [
        f"Speed-up of all jobs over serial{best} in the same block: medians and 95 % t intervals.",
        HOLLOW_CAPTION,
        "Dashed: ideal, the number of jobs.",
    ]
    if any(panel.alone for panel in panels):
        parts += ["Dotted: one job at a time in another step mode; band: its interval."]
    parts += ["If there are several MIG layouts or MPS limits, the line shows the fastest."]
    if has_best:
        parts += [BASELINES_NOTE]
    if any(cell.marks for panel in panels for cell in panel.known):
        parts += ["*: doubtful; the page has the reason."]
    return " ".join([*parts, *([f"Without a figure: {', '.join(missing)}."] if missing else [])])


def _list_gain_panels(cells: Sequence[Cell]) -> list[_GainPanel]:
    """Return the panels of each case with several jobs, those of one workload together."""
    gains = [c for c in cells if c.degree > 1 and not c.is_derived and c.is_ranked and SPEEDUP in c.estimates]
    by_workload = group_by(list_cases(gains), lambda case: case.params[0].get("workload", ""))
    panels = []
    for case in (case for alike in by_workload.values() for case in alike):
        members = [cell for cell in cells if cell.case == case]
        panels.append(_GainPanel(case, SPEEDUP, members, _compare_step_modes(case, cells)))
        has_other = any(BEST_SOLO in c.estimates and not is_best_solo_serial(c) for c in gains if c.case == case)
        if has_other:
            serial = find_serial(case, cells)
            is_known = serial is not None and BEST_SOLO in serial.estimates
            step_mode = labels.format_param_value(labels.STEP_MODE, case.params[0].get(labels.STEP_MODE, ""))
            alone = [(step_mode, serial.estimates[BEST_SOLO])] if serial and is_known else []
            panels.append(_GainPanel(case, BEST_SOLO, members, alone))
    return panels


def _paint_gains(panels: Sequence[_GainPanel]) -> Figure:
    by_workload = group_by(panels, lambda panel: panel.workload)
    variants = {len(alike) for alike in by_workload.values()}
    is_double = all(panel.metric != other.metric for panel, other in zip(panels[::2], panels[1::2], strict=False))
    columns = max(variants) if len(variants) == 1 else 0
    # Variants of one workload share a row if all workloads have the same number of variants.
    figure, every_axes = make_panels(len(panels), 2.1, columns=2 if columns > 3 and is_double else columns)
    tops: dict[tuple[str, str], float] = defaultdict(float)
    for axes, panel in zip(every_axes, panels, strict=True):
        place = panel.workload, panel.metric
        tops[place] = max(tops[place], _draw_gains(axes, panel))
    for axes, panel in zip(every_axes, panels, strict=True):
        axes.set_ylim(0, tops[panel.workload, panel.metric])
    handles = collect_handles(every_axes)
    add_legend(figure, list(handles.values()), list(handles))
    return figure


def _draw_gains(axes: Axes, panel: _GainPanel) -> float:
    """Draw one panel; return the upper limit of its axis."""
    degrees = sorted({cell.degree for cell in panel.cells})
    reached = [1.0]
    axes.axhline(1, color=FAINT, linewidth=0.8)
    if panel.metric == SPEEDUP:
        axes.plot(degrees, degrees, color=FAINT, linewidth=1, linestyle="--", label="ideal")
    modes = [mode for mode in list_modes(panel.cells) if mode != SERIAL]
    for number, mode in enumerate(modes):
        reached += _draw_mode(axes, mode, panel, shift=_SHIFT * (number - (len(modes) - 1) / 2))
    for label, gain in panel.alone:
        draw_level(axes, f"alone, {label}", gain)
        reached.append(gain.median)
    set_title(axes, panel.case.label)
    axes.set_ylabel(f"speed-up over\n{panel.baseline}")
    axes.set_xticks(degrees)
    axes.set_xlim(degrees[0] - 0.3, degrees[-1] + 0.3)
    excess = _describe_excess(panel.cells) if panel.metric == SPEEDUP else []
    lines = [*_describe_missing(panel.cells), *excess]
    axes.set_xlabel("\n".join(["jobs", *(wrap_lines(line, count_characters(axes)) for line in lines)]))
    axes.grid(axis="y")
    highest = max(reached)
    return min(1.08 * max(degrees[-1], highest), 1.35 * highest + 0.3) if panel.metric == SPEEDUP else 1.15 * highest


def _draw_mode(axes: Axes, mode: SharingMode, panel: _GainPanel, shift: float) -> list[float]:
    """Draw one mode, shifted sideways so that intervals stay visible; return the upper ends of its intervals."""
    by_degree: dict[float, Estimate] = {}
    marked: set[float] = set()
    for cell in (cell for cell in panel.cells if cell.sharing == mode):
        if cell.is_ranked and panel.metric in cell.estimates:
            gain, place = cell.estimates[panel.metric], cell.degree + shift
            by_degree[place] = max(by_degree.get(place, gain), gain, key=lambda estimate: estimate.median)
            is_doubtful = cell.marks if panel.metric == SPEEDUP else cell.marks_of_rows
            marked |= {place} if is_doubtful else set()
    if by_degree:
        style: dict[str, Any] = {"color": mode.colour, "marker": mode.marker, "markersize": 4.5, "linewidth": 1.5}
        draw_line(axes, by_degree, style, mode.label)
    for place in marked:
        text_style: dict[str, Any] = {"textcoords": "offset points", "xytext": (5, 0), "color": mode.colour}
        axes.annotate("*", (place, by_degree[place].median), va="center", **text_style)
    return [estimate.median + error_bar(estimate)[1] for estimate in by_degree.values()]


def _describe_missing(cells: Sequence[Cell]) -> list[str]:
    """Return, for each degree, a line with the modes without a figure: `7: naive oom, MPS % wrong results`."""
    by_degree: dict[int, list[str]] = defaultdict(list)
    for mode in list_modes(cells):
        for degree in {cell.degree for cell in cells if cell.sharing == mode}:
            members = [cell for cell in cells if (cell.sharing, cell.degree) == (mode, degree)]
            if not any(cell.is_ranked for cell in members) and (absence := describe_absence(members[0])):
                by_degree[degree].append(f"{mode.label} {absence}")
    return [f"{degree}: {', '.join(words)}" for degree, words in sorted(by_degree.items())]


def _describe_excess(cells: Sequence[Cell]) -> list[str]:
    """Return, for each degree, a line with the modes whose speed-up exceeds the number of jobs."""
    by_degree: dict[int, list[str]] = defaultdict(list)
    for cell in cells:
        if cell.is_ranked and cell.exceeds_ideal:
            by_degree[cell.degree].append(cell.mode)
    return [f"{degree}: {', '.join(modes)}* more than ideal" for degree, modes in sorted(by_degree.items())]


def _compare_step_modes(case: Case, cells: Sequence[Cell]) -> list[tuple[str, Estimate]]:
    """Divide the speed of the workload alone in each other step mode by its speed in the step mode of the case."""
    serial = find_serial(case, cells)
    gains = []
    for other in list_other_modes(case, cells):
        assert serial is not None  # otherwise there are no other modes
        pair = contrast_cells(other.cell, serial, serial.throughput, TOTAL_TIME)
        if pair is not None and pair.ratio is not None:
            gains.append((other.step_mode, pair.ratio))
    return gains


_RESOURCE_COLOURS = [light for light, _ in (*SERIES_COLOURS, *SPARE_COLOURS)]
_RESOURCE_MARKERS, _RESOURCE_DASHES = "os^DvPX*d", ("-", "--", "-.")


def sketch_stressors(effects: Sequence[StressorEffect]) -> Iterator[Sketch]:
    """Yield a sketch for each workload that ran beside stressors."""
    measured_effects = [effect for effect in effects if effect.sensitivity is not None]
    for workload, members in group_by(measured_effects, lambda effect: effect.workload).items():
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
            paint=partial(_paint_stressors, members),
        )


def _paint_stressors(effects: Sequence[StressorEffect]) -> Figure:
    by_mode = group_by(effects, lambda effect: effect.mode)
    styles = _style_resources(sorted({effect.resource for effect in effects}))
    figure, panels = make_panels(len(by_mode), 2.8, columns=2)
    for axes, (mode, members) in zip(panels, by_mode.items(), strict=True):
        for resource, line in group_by(members, lambda effect: effect.resource).items():
            estimates = {effect.dial: effect.sensitivity for effect in line if effect.sensitivity is not None}
            draw_line(axes, estimates, styles[resource], resource)
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
            "color": _RESOURCE_COLOURS[number % len(_RESOURCE_COLOURS)],
            "marker": _RESOURCE_MARKERS[number % len(_RESOURCE_MARKERS)],
            "linestyle": _RESOURCE_DASHES[number // len(_RESOURCE_COLOURS) % len(_RESOURCE_DASHES)],
            "markersize": 4,
            "linewidth": 1.4,
        }
        for number, resource in enumerate(resources)
    }
