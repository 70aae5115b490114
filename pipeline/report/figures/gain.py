"""The chart of throughput gain against the number of jobs, with the ideal and what another step mode does alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from pipeline.base.modes import SERIAL, Mode
from pipeline.report.evaluate.cells import Case, Cell, cases_in, modes_in, speed_ratios
from pipeline.report.evaluate.metrics import SPEEDUP, THROUGHPUT, TOTAL_TIME
from pipeline.report.evaluate.statistics import Estimate
from pipeline.report.evaluate.wording import ENDINGS
from pipeline.report.figures.drawing import FAINT, INK, ON_PAPER, UPRIGHT, Sketch, around, in_lines, panels_of
from pipeline.report.read import labels
from pipeline.report.read.samples import GroupSeries

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def sketches(cells: Sequence[Cell], _: GroupSeries | None) -> Iterator[Sketch]:
    """One of the workloads of which several copies ran."""
    copies = [cell for cell in cells if not cell.case.is_mix]
    if any(cell.degree > 1 for cell in copies):
        yield Sketch(
            name="gain",
            title="Throughput gain against the number of jobs",
            caption="Speed of all jobs together over one at a time, in the same block: medians and 95 % t intervals. "
            "Dashed: the ideal, as many times as there are jobs. Dotted: one job at a time in another step mode, "
            "where it was measured. Of several MIG layouts or limits at a degree, the fastest is drawn.",
            section="Throughput gain",
            paint=partial(_paint, copies),
        )


def _paint(cells: Sequence[Cell]) -> Figure:
    cases = cases_in([cell for cell in cells if cell.degree > 1 and not cell.is_derived])
    figure, panels = panels_of(len(cases), 2.9)
    handles: dict[str, Any] = {}
    for axes, case in zip(panels, cases, strict=True):
        _panel(axes, case, cells)
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    panels[0].set_ylabel("speed-up against serial")
    columns = min(len(handles), 6)
    figure.legend(list(handles.values()), list(handles), loc="outside lower left", ncols=columns, fontsize=8)
    return figure


def _panel(axes: Axes, case: Case, cells: Sequence[Cell]) -> None:
    mine = [cell for cell in cells if cell.case == case]
    degrees = sorted({cell.degree for cell in mine})
    axes.plot(degrees, degrees, color=FAINT, linewidth=1, linestyle="--", label="ideal")
    axes.axhline(1, color=FAINT, linewidth=0.8)
    reached = 1.0
    failed: Counter[int] = Counter()
    for mode in modes_in(mine):
        if mode != SERIAL:
            reached = max(reached, _line(axes, mode, [cell for cell in mine if cell.sharing == mode], failed))
    for label, gain in _other_step_modes(case, cells):
        axes.axhline(gain.median, color=INK, linewidth=1.1, linestyle=":", label=f"alone, {label}")
        reached = max(reached, gain.median)
    axes.set_title(in_lines(case.label), fontsize=8)
    axes.set_xticks(degrees)
    axes.set_xlim(degrees[0] - 0.3, degrees[-1] + 0.3)
    axes.set_ylim(0, min(max(1.08 * degrees[-1], 1.08 * reached), 1.35 * reached + 0.3))
    axes.set_xlabel("jobs")
    axes.grid(axis="y")


def _line(axes: Axes, mode: Mode, cells: Sequence[Cell], failed: Counter[int]) -> float:
    """Draw one mode; how high it gets. What has no figure is written beside its degree, where `failed` counts."""
    points: list[tuple[int, Estimate]] = []
    for degree in sorted({cell.degree for cell in cells}):
        here = [cell for cell in cells if cell.degree == degree]
        known = [cell.estimates[SPEEDUP] for cell in here if cell.is_ranked and SPEEDUP in cell.estimates]
        if known:
            points.append((degree, max(known, key=lambda found: found.median)))
        elif all(not cell.is_ranked for cell in here):
            text = f"{mode.label} {ENDINGS[here[0].finding].label}" if here[0].finding in ENDINGS else mode.label
            place: dict[str, Any] = {"xytext": (-10 - 10 * failed[degree], 3), "textcoords": "offset points"}
            axes.annotate(text, (degree, 0), **place, **UPRIGHT, **ON_PAPER, fontsize=7, color=INK, zorder=5)
            failed[degree] += 1
    if not points:
        return 1.0
    medians = [found.median for _, found in points]
    errors = list(zip(*(around(found) for _, found in points), strict=True))
    style: dict[str, Any] = {"color": mode.colour, "marker": mode.marker, "markersize": 4.5, "linewidth": 1.5}
    degrees = [degree for degree, _ in points]
    axes.errorbar(degrees, medians, errors, label=mode.label, elinewidth=0.9, capsize=2, **style)
    return max(medians)


def _other_step_modes(case: Case, cells: Sequence[Cell]) -> list[tuple[str, Estimate]]:
    """What the same workload does alone in each other step mode, over what it does alone in this one."""
    alone = [cell for cell in cells if cell.degree == 1 and cell.sharing == SERIAL]
    own = next((cell for cell in alone if cell.case == case), None)
    if own is None:
        return []
    found = []
    for other in alone:
        same = (other.case.base_workloads, other.case.setting) == (case.base_workloads, case.setting)
        step_mode = other.case.params[0].get(labels.STEP_MODE)
        if not same or step_mode == case.params[0].get(labels.STEP_MODE):
            continue
        ratios, _ = speed_ratios(other, own, (THROUGHPUT, TOTAL_TIME))
        if ratios:
            word = labels.value_in_words(labels.STEP_MODE, step_mode) or "eager"
            found.append((word, own.estimate(ratios)))
    return found
