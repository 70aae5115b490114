"""Figures of bars: mixes, each workload by number of equal jobs, and the energy per work unit."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from pipeline.base.domain import work_units
from pipeline.base.domain.normalisation import MEAN_SLOWDOWN, MEMORY_PEAK, P99_SLOWDOWN, SLOWDOWN, SPEEDUP
from pipeline.base.domain.sharing_modes import SERIAL
from pipeline.base.domain.window import WindowKind
from pipeline.base.system.grouping import group_by
from pipeline.report.evaluate import sweeps
from pipeline.report.evaluate.cells import Case, Cell, list_cases, list_metrics, list_modes
from pipeline.report.evaluate.effects import SoloMode, find_place, list_other_modes
from pipeline.report.evaluate.metrics import (
    ENERGY_VS_ALONE,
    MEAN_LATENCY,
    METRICS,
    TOTAL_TIME,
    Metric,
    choose_prefix,
    make_work_metrics,
    scale_estimate,
)
from pipeline.report.evaluate.sweeps import FEWEST
from pipeline.report.evaluate.wording import join_words
from pipeline.report.figures.bars import (
    BARS_CAPTION,
    Bar,
    group_by_case,
    group_by_degree,
    grouped_bars,
    make_bar,
    make_figure_bar,
    make_legend,
    num_bars,
)
from pipeline.report.figures.drawing import (
    FAINT,
    WIDEST,
    Sketch,
    add_legend,
    clean_text,
    collect_handles,
    draw_level,
    make_panels,
    new_figure,
    set_title,
)
from pipeline.report.read.group_series import GroupSeries

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LAYOUTS = "Labels of MIG bars: the instance in which the layouts of a mix differ; the tables have the layouts. "

_MOST_IN_A_ROW = 8


def sketch_mixes(cells: Sequence[Cell], _: GroupSeries | None) -> Iterator[Sketch]:
    """Yield a sketch of the mixes without a given rate, and one of the mixes of services and other jobs."""
    mixes = _shorten_details([cell for cell in cells if cell.case.is_mix])
    if timed := [cell for cell in mixes if not cell.num_given]:
        layouts = _LAYOUTS if any(cell.profiles for cell in timed) else ""
        yield Sketch(
            name="mixes-total-time",
            title="Time of the mixes",
            caption=f"{_describe_times(timed)} {layouts}{BARS_CAPTION}",
            section="Mixes",
            paint=partial(_paint_times, timed),
        )
    served = [cell for cell in mixes if 0 < cell.num_given < cell.degree and cell.sharing != SERIAL]
    latency = next((name for name in (P99_SLOWDOWN, MEAN_SLOWDOWN) if any(name in c.estimates for c in served)), None)
    if latency is not None:
        yield Sketch(
            name="beside-inference",
            title="Training and inference together",
            caption=(
                "From top to bottom: throughput of the job that is slowed down most, relative to the job alone; "
                "latency of the service that is slowed down most, relative to the service alone; energy, if measured, "
                f"relative to the same work with each job alone. {BARS_CAPTION}"
            ),
            section="Mixes",
            paint=partial(_paint_shares, served, latency),
        )


def _shorten_details(cells: Sequence[Cell]) -> list[Cell]:
    """Reduce the details of MIG layouts, which are long, to the instances in which the layouts of a mix differ."""
    short: dict[tuple[Case, str], str] = {}
    for members in group_by([c for c in cells if c.profiles], lambda cell: (cell.case, cell.sharing)).values():
        layouts = [Counter(name.partition(".")[0] for name in cell.profiles) for cell in members]
        common = functools.reduce(operator.and_, layouts)
        details = ["+".join((layout - common).elements()) for layout in layouts]
        if len(set(details)) == len(details):
            short |= {(cell.case, cell.mode): text for cell, text in zip(members, details, strict=True)}
    return [dataclasses.replace(cell, detail=short.get((cell.case, cell.mode), cell.detail)) for cell in cells]


def _describe_times(cells: Sequence[Cell]) -> str:
    if all(cell.window is WindowKind.WORK for cell in cells):
        return "Total time of the mix, divided by its serial total time in the same block; below 1 is faster."
    return "Time for the same work, divided by its serial time (the inverse of the speed-up); below 1 is faster."


def _paint_times(cells: Sequence[Cell]) -> Figure:
    has_seconds = any(TOTAL_TIME in cell.estimates for cell in cells)
    rows = _split_rows(cells)
    num_panels = len(rows) * (2 if has_seconds else 1)
    figure = new_figure(WIDEST, 0.8 + (2.8 if num_panels < 3 else 1.9) * num_panels)
    panels = iter(figure.subplots(num_panels, 1, squeeze=False)[:, 0])
    for row in rows:
        ratio = next(panels)
        shared = [cell for cell in row if cell.sharing != SERIAL]
        grouped_bars(ratio, group_by_case(shared, lambda cell: make_bar(cell, cell.estimate_inverse(SPEEDUP))))
        ratio.axhline(1, color=FAINT, linewidth=1.2, linestyle="--")
        ratio.annotate("serial", (1, 1), xycoords=("axes fraction", "data"), xytext=(-2, 2),
                       textcoords="offset points", ha="right", fontsize=7, color=FAINT)  # fmt: skip
        ratio.set_ylabel("time against serial")
        ratio.set_ylim(top=max(1.15, ratio.get_ylim()[1]))
        if has_seconds:
            seconds = next(panels)
            grouped_bars(seconds, group_by_case(row, lambda cell: make_bar(cell, cell.estimates.get(TOTAL_TIME))))
            seconds.set_ylabel("total time (s)")
    add_legend(figure, make_legend(list_modes([c for c in cells if has_seconds or c.sharing != SERIAL])))
    return figure


def _split_rows(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Split many mixes into those without and with large jobs, whose times have other scales."""
    if len(list_cases(cells)) <= _MOST_IN_A_ROW:
        return [list(cells)]
    return list(group_by(cells, lambda cell: any(cell.case.rank[:1])).values())


def _paint_shares(cells: Sequence[Cell], latency: str) -> Figure:
    has_energy = any(ENERGY_VS_ALONE in cell.estimates for cell in cells)
    figure = new_figure(WIDEST, 7.8 if has_energy else 5.4)
    throughput, paid, *energy = figure.subplots(3 if has_energy else 2, 1)
    grouped_bars(throughput, group_by_case(cells, lambda cell: make_bar(cell, cell.estimate_inverse(SLOWDOWN))))
    throughput.set_ylabel("throughput kept")
    grouped_bars(paid, group_by_case(cells, lambda cell: make_figure_bar(cell, latency)))
    paid.set_ylabel(f"{METRICS[latency].title.removeprefix('worst slowdown of the ')}, times alone")
    for axes in energy:
        grouped_bars(axes, group_by_case(cells, lambda cell: make_figure_bar(cell, ENERGY_VS_ALONE)))
        axes.set_ylabel("energy, times alone")
    for axes in (throughput, *energy):
        axes.set_ylim(top=max(1.05, axes.get_ylim()[1]))
    for axes in (throughput, paid, *energy):
        axes.axhline(1, color=FAINT, linewidth=1.2, linestyle="--")
    add_legend(figure, make_legend(list_modes(cells)))
    return figure


_DERIVED = "epoch_time_derived_s"
_ACTIVITY = ("gract_mean_ratio", "smact_mean_ratio")


def sketch_copies(cells: Sequence[Cell], _: GroupSeries | None) -> Iterator[Sketch]:
    """Yield a sketch for each workload that ran in several modes, unless other figures or tables show it.

    `parameters` draws sweeps; jobs that ran only alone, on the whole GPU and on MIG profiles, are in `profile_tables`.
    """
    copies = [cell for cell in cells if not cell.case.is_mix]
    sweeping = (*sweeps.numbers(copies, FEWEST), *sweeps.models(copies, FEWEST))
    swept = {cell.case for sweep in sweeping for cell in chain(*sweep.cells.values())}
    for case in (case for case in list_cases(copies) if case not in swept):
        members = [cell for cell in cells if cell.case == case]
        if len({cell.mode for cell in members}) > 1 and not all(map(_is_alone, members)):
            yield Sketch(
                name=f"workload-{case.label}",
                title=clean_text(case.label),
                caption=_describe_copies(members),
                section="Workloads",
                paint=partial(_paint_copies, members),
            )


def _is_alone(cell: Cell) -> bool:
    return cell.degree == 1 and find_place(cell) is not None and not cell.num_given


def _speed_metric(cells: Sequence[Cell]) -> Metric:
    latency = [MEAN_LATENCY] if cells[0].num_given else []
    # In a steady window, the total time is the length that the user chose.
    times = [] if cells[0].window.is_steady else [TOTAL_TIME]
    names = [*latency, "epoch_time_s", _DERIVED, *times, cells[0].throughput, TOTAL_TIME]
    chosen = next((name for name in names if any(name in cell.estimates for cell in cells)), TOTAL_TIME)
    return list_metrics(cells)[chosen]


def _describe_copies(cells: Sequence[Cell]) -> str:
    metric = _speed_metric(cells)
    derived = "Time per epoch: work of an epoch, divided by the throughput of a job in the window; without validation. "
    serial = "Serial: the job alone, with which the other groups of its block are compared. "
    activity = "GRACT: share of time with a kernel resident. SMACT: share of multiprocessors with work. "
    shown = [metric.title.partition(",")[0]]
    shown += ["activity"] * _has(cells, *_ACTIVITY) + ["memory of the whole GPU"] * _has(cells, MEMORY_PEAK)
    return (
        f"{join_words(shown)[:1].upper()}{join_words(shown)[1:]}, by number of equal jobs. "
        f"{serial if any(cell.sharing == SERIAL for cell in cells) else ''}"
        f"{derived if metric.name == _DERIVED else ''}{activity if _has(cells, *_ACTIVITY) else ''}{BARS_CAPTION}"
    )


def _has(cells: Sequence[Cell], *names: str) -> bool:
    return any(name in cell.estimates for cell in cells for name in names)


def _paint_copies(cells: Sequence[Cell]) -> Figure:
    ran = [cell for cell in cells if not cell.is_derived]
    has_activity, has_memory = _has(ran, *_ACTIVITY), _has(ran, MEMORY_PEAK)
    most_bars = num_bars(group_by_degree(ran, make_bar))
    figure, panels = make_panels(1 + has_activity + has_memory, 2.5, most_bars=most_bars)
    time, *remaining = panels
    _draw_metric(time, ran, _speed_metric(cells))
    if has_activity:
        activity = remaining.pop(0)
        grouped_bars(activity, group_by_degree(ran, lambda cell: make_bar(cell, *map(cell.estimates.get, _ACTIVITY))))
        activity.set_ylim(0, 1.05)
        activity.set_ylabel("share of the time / of the SMs")
        activity.set_title("GRACT and SMACT")
    for memory in remaining:
        _draw_metric(memory, ran, METRICS[MEMORY_PEAK])
    add_legend(figure, make_legend(list_modes(ran), second=("GRACT", "SMACT") if has_activity else None))
    return figure


def _draw_metric(axes: Axes, cells: Sequence[Cell], metric: Metric) -> None:
    axes.set_title(metric.title)
    grouped_bars(axes, group_by_degree(cells, lambda cell: make_figure_bar(cell, metric.name)))
    axes.set_ylabel(metric.unit)


def sketch_metrics(cells: Sequence[Cell], _: GroupSeries | None) -> Iterator[Sketch]:
    """Yield a sketch of the workloads and one of the mixes for each metric with a caption, such as the energy of work.

    The energy per work unit has a sketch for each unit of the jobs.
    """
    for unit in dict.fromkeys(cell.unit for cell in cells if cell.unit):
        members = [cell for cell in cells if cell.unit == unit]
        yield from _sketch_metric(make_work_metrics(unit)[work_units.energy_of(unit)], members)
    for metric in METRICS.values():
        if metric.caption:
            yield from _sketch_metric(metric, cells)


def _sketch_metric(metric: Metric, cells: Sequence[Cell]) -> Iterator[Sketch]:
    measured = {cell.case for cell in cells if metric.name in cell.estimates and cell.sharing != SERIAL}
    ran = [cell for cell in cells if cell.case in measured and not cell.is_derived]
    copies, mixes = ([cell for cell in ran if cell.case.is_mix is is_mix] for is_mix in (False, True))
    solo_modes = {case: _list_levels(case, cells, metric.name) for case in list_cases(copies)}
    dotted = " Dotted: one job alone in another step mode; band: its interval." if any(solo_modes.values()) else ""
    for members, of_mixes in ((copies, ""), (mixes, "mixes")):
        if members:
            yield Sketch(
                name=f"{metric.title} {of_mixes}".strip(),
                title=f"{metric.title.capitalize()}{' of the mixes' if of_mixes else ''}",
                caption=f"{metric.caption} {BARS_CAPTION}{'' if of_mixes else dotted}",
                section=metric.title.partition(" ")[0].capitalize(),
                paint=partial(_paint_metric, members, metric, solo_modes),
            )


def _list_levels(case: Case, cells: Sequence[Cell], name: str) -> list[SoloMode]:
    return [other for other in list_other_modes(case, cells) if other.cell.is_ranked and name in other.cell.estimates]


def _paint_metric(cells: Sequence[Cell], metric: Metric, solo_modes: Mapping[Case, Sequence[SoloMode]]) -> Figure:
    name = metric.name
    known = [cell.estimates[name] for cell in cells if cell.is_ranked and name in cell.estimates]
    scale, prefix = choose_prefix((estimate.median for estimate in known), metric.unit)

    def bar(cell: Cell) -> Bar:
        return make_bar(cell, scale_estimate(cell.estimates[name], scale) if name in cell.estimates else None)

    if cells[0].case.is_mix:
        contents = [("", group_by_case(cells, bar))]
    else:
        copies = {case: [cell for cell in cells if cell.case == case] for case in list_cases(cells)}
        contents = [(case.label, group_by_degree(members, bar)) for case, members in copies.items()]
    figure, panels = make_panels(len(contents), 2.5, most_bars=max(num_bars(groups) for _, groups in contents))
    for axes, (title, groups) in zip(panels, contents, strict=True):
        grouped_bars(axes, groups)
        set_title(axes, title)
        axes.set_ylabel(f"{prefix}{metric.unit} {metric.title.partition(' ')[2]}".strip())
    for axes, case in zip(panels, list_cases(cells), strict=False):
        for solo in solo_modes.get(case, []):
            level = scale_estimate(solo.cell.estimates[name], scale)
            draw_level(axes, f"alone, {solo.step_mode}", level)
            axes.set_ylim(top=max(axes.get_ylim()[1], 1.05 * level.median))
    add_legend(figure, [*make_legend(list_modes(cells)), *collect_handles(panels).values()])
    return figure
