"""A figure of the speed-up against the number of jobs, over serial and over the best step mode alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.base.domain.normalisation import SPEEDUP
from pipeline.base.domain.sharing_modes import SERIAL, SharingMode
from pipeline.base.system.grouping import group_by
from pipeline.report.evaluate.cells import Case, Cell, list_cases, list_modes
from pipeline.report.evaluate.contrasts import BASELINES_NOTE, contrast_cells, is_best_solo_serial, name_best_solo
from pipeline.report.evaluate.effects import find_serial, list_other_modes
from pipeline.report.evaluate.metrics import BEST_SOLO, TOTAL_TIME
from pipeline.report.evaluate.statistics import Estimate
from pipeline.report.evaluate.wording import absence_in_words
from pipeline.report.figures.drawing import (
    FAINT,
    HOLLOW_CAPTION,
    Sketch,
    add_legend,
    collect_handles,
    count_characters,
    draw_level,
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


_SHIFT = 0.1
"""Distance between the points of two modes with the same number of jobs. Unit: jobs."""


class _Panel(NamedTuple):
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


def sketches(cells: Sequence[Cell], _: GroupSeries | None) -> Iterator[Sketch]:
    """Yield a sketch of the workloads that ran in several copies, without a given rate."""
    copies = [cell for cell in cells if not cell.case.is_mix and not cell.num_given]
    if panels := _panels(copies):
        yield Sketch(
            name="gain",
            title="Speed-up against the number of jobs",
            caption=_caption(copies, panels),
            section="Speed-up",
            paint=partial(_paint, panels),
        )


def _caption(cells: Sequence[Cell], panels: Sequence[_Panel]) -> str:
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


def _panels(cells: Sequence[Cell]) -> list[_Panel]:
    """Return the panels of each case with several jobs, those of one workload together."""
    gains = [c for c in cells if c.degree > 1 and not c.is_derived and c.is_ranked and SPEEDUP in c.estimates]
    by_workload = group_by(list_cases(gains), lambda case: case.params[0].get("workload", ""))
    panels = []
    for case in (case for alike in by_workload.values() for case in alike):
        members = [cell for cell in cells if cell.case == case]
        panels.append(_Panel(case, SPEEDUP, members, _compare_step_modes(case, cells)))
        has_other = any(BEST_SOLO in c.estimates and not is_best_solo_serial(c) for c in gains if c.case == case)
        if has_other:
            serial = find_serial(case, cells)
            is_known = serial is not None and BEST_SOLO in serial.estimates
            step_mode = labels.value_in_words(labels.STEP_MODE, case.params[0].get(labels.STEP_MODE, ""))
            alone = [(step_mode, serial.estimates[BEST_SOLO])] if serial and is_known else []
            panels.append(_Panel(case, BEST_SOLO, members, alone))
    return panels


def _paint(panels: Sequence[_Panel]) -> Figure:
    by_workload = group_by(panels, lambda panel: panel.workload)
    variants = {len(alike) for alike in by_workload.values()}
    is_double = all(panel.metric != other.metric for panel, other in zip(panels[::2], panels[1::2], strict=False))
    columns = max(variants) if len(variants) == 1 else 0
    # Variants of one workload share a row if all workloads have the same number of variants.
    figure, every_axes = make_panels(len(panels), 2.1, columns=2 if columns > 3 and is_double else columns)
    tops: dict[tuple[str, str], float] = defaultdict(float)
    for axes, panel in zip(every_axes, panels, strict=True):
        place = panel.workload, panel.metric
        tops[place] = max(tops[place], _draw(axes, panel))
    for axes, panel in zip(every_axes, panels, strict=True):
        axes.set_ylim(0, tops[panel.workload, panel.metric])
    handles = collect_handles(every_axes)
    add_legend(figure, list(handles.values()), list(handles))
    return figure


def _draw(axes: Axes, panel: _Panel) -> float:
    """Draw one panel; return the upper limit of its axis."""
    degrees = sorted({cell.degree for cell in panel.cells})
    reached = [1.0]
    axes.axhline(1, color=FAINT, linewidth=0.8)
    if panel.metric == SPEEDUP:
        axes.plot(degrees, degrees, color=FAINT, linewidth=1, linestyle="--", label="ideal")
    modes = [mode for mode in list_modes(panel.cells) if mode != SERIAL]
    for number, mode in enumerate(modes):
        reached += _line(axes, mode, panel, shift=_SHIFT * (number - (len(modes) - 1) / 2))
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


def _line(axes: Axes, mode: SharingMode, panel: _Panel, shift: float) -> list[float]:
    """Draw one mode, shifted sideways so that intervals stay visible; return the upper ends of its intervals."""
    by_degree: dict[float, Estimate] = {}
    marked: set[float] = set()
    for cell in (cell for cell in panel.cells if cell.sharing == mode):
        if cell.is_ranked and panel.metric in cell.estimates:
            gain, place = cell.estimates[panel.metric], cell.degree + shift
            by_degree[place] = max(by_degree.get(place, gain), gain, key=lambda estimate: estimate.median)
            is_doubtful = cell.marks if panel.metric == SPEEDUP else cell.marks_of_rows
            marked |= {place} if is_doubtful else set()
    medians = [estimate.median for estimate in by_degree.values()]
    if by_degree:
        errors = list(zip(*map(error_bar, by_degree.values()), strict=True))
        style: dict[str, Any] = {"color": mode.colour, "marker": mode.marker, "markersize": 4.5, "linewidth": 1.5}
        axes.errorbar(list(by_degree), medians, errors, label=mode.label, elinewidth=0.9, capsize=2, **style)
        hollow_points(axes, by_degree, style)
    for place in marked:
        beside: dict[str, Any] = {"textcoords": "offset points", "xytext": (5, 0), "color": mode.colour}
        axes.annotate("*", (place, by_degree[place].median), va="center", **beside)
    return [estimate.median + error_bar(estimate)[1] for estimate in by_degree.values()]


def _describe_missing(cells: Sequence[Cell]) -> list[str]:
    """Return, for each degree, a line with the modes without a figure: `7: naive oom, MPS % wrong results`."""
    by_degree: dict[int, list[str]] = defaultdict(list)
    for mode in list_modes(cells):
        for degree in {cell.degree for cell in cells if cell.sharing == mode}:
            members = [cell for cell in cells if (cell.sharing, cell.degree) == (mode, degree)]
            if not any(cell.is_ranked for cell in members) and (why := absence_in_words(members[0])):
                by_degree[degree].append(f"{mode.label} {why}")
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
