"""A figure of the throughput gain against the number of jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.base.domain.normalisation import SPEEDUP
from pipeline.base.domain.sharing_modes import SERIAL, SharingMode
from pipeline.base.system.grouping import group_by
from pipeline.report.evaluate.cells import Case, Cell, list_cases, list_modes, speed_ratios
from pipeline.report.evaluate.metrics import TOTAL_TIME
from pipeline.report.evaluate.statistics import Estimate
from pipeline.report.evaluate.wording import absence_in_words
from pipeline.report.figures.drawing import (
    FAINT,
    INK,
    Sketch,
    add_legend,
    count_characters,
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


def sketches(cells: Sequence[Cell], _: GroupSeries | None) -> Iterator[Sketch]:
    """Yield a sketch of the workloads that ran in several copies, without a given rate."""
    copies = [cell for cell in cells if not cell.case.is_mix and not cell.num_given]
    if _cases(copies):
        yield Sketch(
            name="gain",
            title="Throughput gain against the number of jobs",
            caption=_caption(copies),
            section="Gain",
            paint=partial(_paint, copies),
        )


def _caption(cells: Sequence[Cell]) -> str:
    drawn = _cases(cells)
    missing = [case.label for case in list_cases([cell for cell in cells if cell.degree > 1]) if case not in drawn]
    has_others = any(_compare_step_modes(case, cells) for case in drawn)
    dotted = "Dotted: one job at a time in another step mode. " if has_others else ""
    caption = (
        "Speed of all jobs over serial in the same block: medians and 95 % t intervals. Dashed: ideal, the number of "
        f"jobs. {dotted}If there are several MIG layouts or MPS limits, the line shows the fastest."
    )
    return f"{caption} Without a figure: {', '.join(missing)}." if missing else caption


def _cases(cells: Sequence[Cell]) -> list[Case]:
    return list_cases(
        [c for c in cells if c.degree > 1 and not c.is_derived and c.is_ranked and SPEEDUP in c.estimates]
    )


def _paint(cells: Sequence[Cell]) -> Figure:
    by_workload = group_by(_cases(cells), lambda case: case.params[0].get("workload", ""))
    cases = [case for alike in by_workload.values() for case in alike]
    variants = {len(alike) for alike in by_workload.values()}
    # Variants of one workload share a row if all workloads have the same number of variants.
    figure, panels = make_panels(len(cases), 2.7, columns=max(variants) if len(variants) == 1 else 0)
    handles: dict[str, Any] = {}
    tops: dict[Case, float] = {}
    for axes, case in zip(panels, cases, strict=True):
        tops[case] = _panel(axes, case, [cell for cell in cells if cell.case == case], _compare_step_modes(case, cells))
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
        axes.set_ylabel("speed-up against serial")
    for alike in by_workload.values():
        for case in alike:
            panels[cases.index(case)].set_ylim(0, max(tops[member] for member in alike))
    add_legend(figure, list(handles.values()), list(handles))
    return figure


def _panel(axes: Axes, case: Case, cells: Sequence[Cell], alone: Sequence[tuple[str, Estimate]]) -> float:
    """Draw one case; return the upper limit of its axis."""
    degrees = sorted({cell.degree for cell in cells})
    axes.plot(degrees, degrees, color=FAINT, linewidth=1, linestyle="--", label="ideal")
    axes.axhline(1, color=FAINT, linewidth=0.8)
    reached = [1.0]
    for mode in list_modes(cells):
        if mode != SERIAL:
            reached += _line(axes, mode, [cell for cell in cells if cell.sharing == mode])
    for label, gain in alone:
        axes.axhline(gain.median, color=INK, linewidth=1.1, linestyle=":", label=f"alone, {label}")
        reached.append(gain.median)
    set_title(axes, case.label)
    axes.set_xticks(degrees)
    axes.set_xlim(degrees[0] - 0.3, degrees[-1] + 0.3)
    axes.set_xlabel(
        "\n".join(["jobs", *(wrap_lines(line, count_characters(axes)) for line in _describe_missing(cells))])
    )
    axes.grid(axis="y")
    return min(1.08 * max(degrees[-1], *reached), 1.35 * max(reached) + 0.3)


def _line(axes: Axes, mode: SharingMode, cells: Sequence[Cell]) -> list[float]:
    """Draw one mode; return the upper ends of its intervals."""
    by_degree: dict[int, Estimate] = {}
    marked: set[int] = set()
    for cell in cells:
        if cell.is_ranked and SPEEDUP in cell.estimates:
            gain = cell.estimates[SPEEDUP]
            by_degree[cell.degree] = max(by_degree.get(cell.degree, gain), gain, key=lambda estimate: estimate.median)
            marked |= {cell.degree} if cell.marks else set()
    medians = [estimate.median for estimate in by_degree.values()]
    if by_degree:
        errors = list(zip(*map(error_bar, by_degree.values()), strict=True))
        style: dict[str, Any] = {"color": mode.colour, "marker": mode.marker, "markersize": 4.5, "linewidth": 1.5}
        axes.errorbar(list(by_degree), medians, errors, label=mode.label, elinewidth=0.9, capsize=2, **style)
    for degree in marked:
        beside: dict[str, Any] = {"textcoords": "offset points", "xytext": (5, 0), "color": mode.colour}
        axes.annotate("*", (degree, by_degree[degree].median), va="center", **beside)
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


def _compare_step_modes(case: Case, cells: Sequence[Cell]) -> list[tuple[str, Estimate]]:
    """Divide the speed of the workload alone in each other step mode by its speed in the step mode of the case."""
    alone = [cell for cell in cells if cell.degree == 1 and cell.sharing == SERIAL]
    serial = next((cell for cell in alone if cell.case == case), None)
    if serial is None:
        return []
    gains = []
    for other in alone:
        (params,), (other_params,) = case.params, other.case.params
        same = (
            labels.identify_program(params) == labels.identify_program(other_params)
            and case.setting == other.case.setting
        )
        step_mode = other_params.get(labels.STEP_MODE)
        if not same or step_mode == params.get(labels.STEP_MODE):
            continue
        ratios, _ = speed_ratios(other, serial, (serial.throughput, TOTAL_TIME))
        if ratios:
            word = labels.value_in_words(labels.STEP_MODE, step_mode or "")
            gains.append((word, serial.estimate(ratios)))
    return gains
