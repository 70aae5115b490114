"""The figures of a report, from its cells. What a figure cannot show it says, in a panel or in its caption."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from pipeline.modes import SERIAL
from pipeline.report.bars import Bar, bar_of, grouped_bars, legend_of
from pipeline.report.drawing import FAINT, Drawn, draw, in_lines, new_figure, panels_of, plain, say_missing
from pipeline.report.gain import paint_gain
from pipeline.report.metrics import ENERGY_PER_SAMPLE, MEMORY, METRICS, SPEEDUP, Scale
from pipeline.report.records import Study
from pipeline.report.series import GroupSeries
from pipeline.report.statistics import Estimate, estimate
from pipeline.report.tables import Case, Cell, modes_in
from pipeline.report.timeline_figure import paint_timeline
from pipeline.words import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WORKLOADS, MIXES, GAIN, ENERGY, TIMELINE = "Workloads", "Mixes", "Throughput gain", "Energy", "One group over time"
_BARS = (
    "Bars are medians over the blocks, error bars 95 % t intervals, of memory the lowest and highest block (from three "
    "blocks on)."
)
_BOXES = " A hatched box is a group without a figure, labelled with what came of it."


def every_figure(study: Study, cells: Sequence[Cell], timeline: GroupSeries | None) -> list[Drawn]:
    """All figures that the study has something for, in the order of the page.

    Args:
        study: for the stamp of a simulated one.
        cells: of the study.
        timeline: the samples of one group; `None` if there are none.
    """
    make = partial(draw, is_simulated=study.is_simulated)
    drawn: list[Drawn] = []
    names = _Names()
    for case in _cases(cells, is_mix=False):
        mine = [cell for cell in cells if cell.case == case]
        if len({cell.mode for cell in mine}) < 2:
            continue  # a baseline alone is a line in the chart of the gain
        drawn.append(
            make(
                names.of(f"workload-{case.label}"),
                plain(case.label),
                _workload_caption(mine),
                WORKLOADS,
                partial(_paint_workload, mine),
            )
        )
    mixes = [cell for cell in cells if cell.case.is_mix]
    if mixes:
        drawn.append(
            make(
                names.of("mixes-total-time"),
                "Total time of the mixes",
                f"{_mix_caption(mixes)} {_BARS}{_BOXES}",
                MIXES,
                partial(_paint_mixes, mixes),
            )
        )
    copies = [cell for cell in cells if not cell.case.is_mix]
    if any(cell.degree > 1 for cell in copies):
        drawn.append(
            make(
                names.of("gain"),
                "Throughput gain against the number of jobs",
                "Speed of all jobs together over one at a time, in the same block: medians and 95 % t intervals. "
                "Dashed: the ideal, as many times as there are jobs. Dotted: one job at a time in another step mode, "
                "where it was measured. Of several MIG layouts or limits at a degree, the fastest is drawn.",
                GAIN,
                partial(paint_gain, copies),
            )
        )
    if any(ENERGY_PER_SAMPLE in cell.estimates for cell in cells):
        drawn.append(
            make(
                names.of("energy-per-sample"),
                "Energy per sample",
                f"Energy of the whole GPU over the samples of all jobs, idle power included. {_BARS}{_BOXES}",
                ENERGY,
                partial(_paint_energy, cells),
            )
        )
    if timeline is not None:
        drawn.append(
            make(
                names.of("over-time"),
                f"Utilisation and memory over time: {plain(timeline.name)}",
                f"Group {plain(timeline.name)}, block {timeline.block}. The bars below are the spans of the jobs' "
                "work; time runs from the start of the first. Series as sampled"
                + (f", thinned to {timeline.thinned_to} points." if timeline.thinned_to else "."),
                TIMELINE,
                partial(paint_timeline, timeline),
            )
        )
    return drawn


class _Names:
    """File names made of labels, each used once."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def of(self, text: str) -> str:
        base = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:80] or "figure"
        name, number = base, 2
        while name in self._used:
            name, number = f"{base}-{number}", number + 1
        self._used.add(name)
        return name


def _cases(cells: Sequence[Cell], *, is_mix: bool) -> list[Case]:
    return list(dict.fromkeys(cell.case for cell in cells if cell.case.is_mix is is_mix))


def _by_degree(cells: Sequence[Cell], bar: Callable[[Cell], Bar]) -> list[tuple[str, list[Bar]]]:
    degrees = sorted({cell.degree for cell in cells})
    return [(counted(degree, "job"), [bar(cell) for cell in cells if cell.degree == degree]) for degree in degrees]


def _epoch_metric(cells: Sequence[Cell]) -> str:
    """Time per epoch as it was measured; from throughput in a steady window."""
    measured = any("epoch_time_s" in cell.estimates for cell in cells)
    return "epoch_time_s" if measured else "epoch_time_derived_s"


def _workload_caption(cells: Sequence[Cell]) -> str:
    derived = (
        " Time per epoch is the samples of an epoch over the measured throughput of a job."
        if _epoch_metric(cells) == "epoch_time_derived_s"
        else ""
    )
    return (
        f"Time per epoch, activity and memory of the whole GPU, by number of equal jobs.{derived} GRACT says that some "
        f"kernel was resident, SMACT what share of the multiprocessors had work. {_BARS}{_BOXES}"
    )


def _paint_workload(cells: Sequence[Cell]) -> Figure:
    """Three panels: time per epoch, GRACT with SMACT beside it, memory footprint; serial copies only for time."""
    figure = new_figure(max(10.0, min(16.0, 4.0 + 0.5 * len(cells))), 3.4)
    first, second, third = figure.subplots(1, 3)
    ran = [cell for cell in cells if not cell.is_derived]
    name = _epoch_metric(cells)
    _panel(first, ran, name)
    has_activity = any({"gract_mean_ratio", "smact_mean_ratio"} & cell.estimates.keys() for cell in ran)
    if has_activity:
        grouped_bars(
            second,
            _by_degree(
                ran,
                lambda cell: bar_of(
                    cell, cell.estimates.get("gract_mean_ratio"), cell.estimates.get("smact_mean_ratio")
                ),
            ),
        )
        second.set_ylim(0, 1.05)
        second.set_ylabel("share of the time / of the SMs")
    else:
        say_missing(second, "not measured: it takes\nlistener gpm or dcgm")
    second.set_title("GRACT and SMACT")
    _panel(third, ran, MEMORY)
    handles = legend_of(second, modes_in(ran), second=("GRACT", "SMACT") if has_activity else None)
    figure.legend(handles=handles, loc="outside lower left", ncols=len(handles), fontsize=8)
    return figure


def _panel(axes: Axes, cells: Sequence[Cell], name: str) -> None:
    metric = METRICS[name]
    axes.set_title(metric.title)
    if not any(name in cell.estimates for cell in cells):
        say_missing(axes, "not measured")
        return
    grouped_bars(axes, _by_degree(cells, lambda cell: bar_of(cell, cell.estimates.get(name))))
    axes.set_ylabel(metric.unit)


def _mix_caption(cells: Sequence[Cell]) -> str:
    if any("makespan_s" in cell.estimates for cell in cells):
        return "Total time of the mix over its total time one after another, in the same block; below 1 is a gain."
    return "Time for the same work over its time one after another (the inverse of the speed-up); below 1 is a gain."


def _time_against_serial(cell: Cell) -> Estimate | None:
    speeds = [value for value in cell.values.get(SPEEDUP, {}).values() if value > 0]
    return estimate([1 / value for value in speeds], Scale.POSITIVE) if speeds else None


def _paint_mixes(cells: Sequence[Cell]) -> Figure:
    """Total time against serial for each mix, and in seconds where jobs had a fixed amount of work."""
    cases = _cases(cells, is_mix=True)
    has_seconds = any("makespan_s" in cell.estimates for cell in cells)
    width = max(7.0, min(16.0, 1.5 + 0.95 * len(cases)))
    figure = new_figure(width, 6.2 if has_seconds else 3.6)
    panels = list(figure.subplots(2 if has_seconds else 1, 1, squeeze=False)[:, 0])
    shared = [cell for cell in cells if cell.sharing != SERIAL]
    ratio = panels[0]
    grouped_bars(ratio, [(c.label, [bar_of(x, _time_against_serial(x)) for x in shared if x.case == c]) for c in cases])
    ratio.axhline(1, color=FAINT, linewidth=1.2, linestyle="--")
    ratio.annotate("serial", (1, 1), xycoords=("axes fraction", "data"), xytext=(-2, 2), textcoords="offset points",
                   ha="right", fontsize=7, color=FAINT)  # fmt: skip
    ratio.set_ylabel("time against serial")
    ratio.set_ylim(top=max(1.15, ratio.get_ylim()[1]))
    if has_seconds:
        seconds = [(c.label, [bar_of(x, x.estimates.get("makespan_s")) for x in cells if x.case == c]) for c in cases]
        grouped_bars(panels[1], seconds)
        panels[1].set_ylabel("total time (s)")
    _slant(panels, cases)
    modes = modes_in(cells if has_seconds else shared)
    figure.legend(handles=legend_of(ratio, modes), loc="outside lower left", ncols=len(modes), fontsize=8)
    return figure


def _slant(panels: Sequence[Axes], cases: Sequence[Case]) -> None:
    if max(len(case.label) for case in cases) > 10:
        for axes in panels:
            axes.tick_params(axis="x", labelrotation=20)


def _paint_energy(cells: Sequence[Cell]) -> Figure:
    """A panel a workload, one for all mixes; serial copies cost what one costs."""
    ran = [cell for cell in cells if not cell.is_derived]
    copies = [c for c in _cases(ran, is_mix=False) if any(ENERGY_PER_SAMPLE in x.estimates for x in ran if x.case == c)]
    mixes = [cell for cell in ran if cell.case.is_mix]
    has_mixes = any(ENERGY_PER_SAMPLE in cell.estimates for cell in mixes)
    figure, panels = panels_of(len(copies) + has_mixes, 2.6)
    for axes, case in zip(panels, copies, strict=False):
        mine = [cell for cell in ran if cell.case == case]
        grouped_bars(axes, _by_degree(mine, lambda cell: bar_of(cell, cell.estimates.get(ENERGY_PER_SAMPLE))))
        axes.set_title(in_lines(case.label), fontsize=8)
        axes.set_ylabel("J per sample")
    if has_mixes:
        axes, cases = panels[len(copies)], _cases(mixes, is_mix=True)
        grouped_bars(
            axes,
            [(c.label, [bar_of(x, x.estimates.get(ENERGY_PER_SAMPLE)) for x in mixes if x.case == c]) for c in cases],
        )
        axes.set_title("mixes", fontsize=8)
        axes.set_ylabel("J per sample")
        axes.tick_params(axis="x", labelrotation=90 if len(cases) > 3 else 0)
    modes = modes_in(ran)
    figure.legend(handles=legend_of(panels[0], modes), loc="outside lower left", ncols=len(modes), fontsize=8)
    return figure
