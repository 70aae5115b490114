"""Figures of bars: mixes, each workload by number of equal jobs, and the energy per work unit."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

from pipeline.base.domain import work_units
from pipeline.base.domain.normalisation import MEAN_SLOWDOWN, MEMORY_PEAK, P99_SLOWDOWN, SLOWDOWN, SPEEDUP
from pipeline.base.domain.sharing_modes import SERIAL, SharingMode
from pipeline.base.domain.window import WindowKind
from pipeline.base.system.words import format_count, group_by
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
    is_latency,
    make_work_metrics,
    scale_estimate,
)
from pipeline.report.evaluate.statistics import Estimate
from pipeline.report.evaluate.sweeps import FEWEST
from pipeline.report.evaluate.wording import describe_absence, join_words
from pipeline.report.figures.drawing import (
    FAINT,
    HOLLOW_CAPTION,
    INK,
    NO_INTERVAL,
    PAPER,
    WARNING,
    WIDEST,
    Sketch,
    add_legend,
    clean_text,
    collect_handles,
    count_characters,
    draw_level,
    error_bar,
    make_bar_style,
    make_panels,
    new_figure,
    set_title,
    wrap_lines,
)
from pipeline.report.read.group_series import GroupSeries
from pipeline.report.read.labels import rank_profile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


BARS_CAPTION = (
    "Bars: median over the blocks. Error bars: 95 % t interval; for memory, the lowest and highest block. "
    f"{HOLLOW_CAPTION} A dashed box is a group without a figure; its label is the reason. *: doubtful; the page has "
    "the reason."
)
NOT_MEASURED, NOT_SUSTAINED = "not measured", "rate not sustained"
_GROUP_WIDTH = 0.84
_BOX_HEIGHT = 0.5
_DETAIL_SIZE = 7
_IN_BOX: dict[str, Any] = {
    "rotation": 90,
    "ha": "center",
    "va": "bottom",
    "bbox": {"facecolor": PAPER, "edgecolor": "none", "pad": 0.6, "alpha": 0.85},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar, or two adjacent bars (GRACT and SMACT).

    Attributes:
        detail: text below the bar: the MIG profile, the MPS percentage.
        finding: why there are no estimates; empty if there are any.
    """

    sharing: SharingMode
    detail: str
    estimates: tuple[Estimate | None, ...]
    finding: str = ""


Groups = Sequence[tuple[str, Sequence[Bar]]]
"""The label and the bars of each group."""


def make_figure_bar(cell: Cell, name: str) -> Bar:
    """Return the bar of one figure of a cell; if the figure is missing, the bar has the reason."""
    withheld = cell.num_saturated and is_latency(name)
    return make_bar(cell, cell.figures.get(name), missing=NOT_SUSTAINED if withheld else NOT_MEASURED)


def make_bar(cell: Cell, *estimates: Estimate | None, missing: str = NOT_MEASURED) -> Bar:
    """Return the bar of some estimates of a cell; if all are missing, the bar has the outcome of the cell."""
    figures = tuple(estimates) if cell.is_ranked else tuple(None for _ in estimates)
    finding = "" if any(figures) else describe_absence(cell) or missing
    star = "*" if cell.marks else ""
    return Bar(sharing=cell.sharing, detail=f"{clean_text(cell.detail, 24)}{star}", estimates=figures, finding=finding)


def group_by_degree(cells: Sequence[Cell], bar: Callable[[Cell], Bar]) -> list[tuple[str, list[Bar]]]:
    """Return a group of bars for each number of jobs."""
    degrees = sorted({cell.degree for cell in cells})
    ordered = _sort_modes(cells)
    return [
        (format_count(degree, "job"), [bar(cell) for cell in ordered if cell.degree == degree]) for degree in degrees
    ]


def group_by_case(cells: Sequence[Cell], bar: Callable[[Cell], Bar]) -> list[tuple[str, list[Bar]]]:
    """Return a group of bars for each case."""
    ordered = _sort_modes(cells)
    return [(case.label, [bar(cell) for cell in ordered if cell.case == case]) for case in list_cases(cells)]


def _sort_modes(cells: Sequence[Cell]) -> list[Cell]:
    """Sort cells by sharing mode; of one mode, the largest MIG instances come first."""
    return sorted(cells, key=lambda cell: (cell.sharing.order, [-rank_profile(name)[0] for name in cell.profiles]))


def num_bars(groups: Groups) -> int:
    """Return the number of bars for which a panel needs space."""
    return max(3, len(groups)) * max(3, *(len(bars) for _, bars in groups), 0)


def grouped_bars(axes: Axes, groups: Groups) -> None:
    """Draw bars in groups, one group for each label under the axis; all bars have the same width.

    Details of bars that are too narrow for them are part of the label of the group.
    """
    most = max((len(bars) for _, bars in groups), default=1)
    width = _GROUP_WIDTH / max(most, 3)
    details: dict[float, str] = {}
    labels = []
    margin = 0.55 + max(0, 3 - len(groups)) / 2  # a single group does not fill the panel
    are_wide = _measure_width(axes) * width / (len(groups) - 1 + 2 * margin) >= _DETAIL_SIZE
    for position, (label, bars) in enumerate(groups):
        x_start = position - width * len(bars) / 2
        num_by_mode = Counter(bar.sharing for bar in bars)
        texts = {}
        for number, bar in enumerate(bars):
            _one_bar(axes, bar, x_start + number * width, width)
            is_plain = num_by_mode[bar.sharing] > 1 and not bar.detail.rstrip("*")
            texts[x_start + (number + 0.47) * width] = f"{bar.sharing.label if is_plain else ''}{bar.detail}"
        summary = ", ".join(dict.fromkeys(filter(None, texts.values())))
        labels.append((label, "" if are_wide else summary))
        details |= texts if are_wide else {}
    axes.set_xlim(-margin, len(groups) - 1 + margin)
    _label_axis(axes, labels, details)
    axes.grid(axis="y")
    axes.set_ylim(bottom=0)


def _measure_width(axes: Axes) -> float:
    """Estimate the width of a panel before its layout. Unit: points."""
    figure, place = axes.get_figure(root=True), axes.get_subplotspec()
    assert figure is not None and place is not None
    return 72 * 0.85 * figure.get_figwidth() / place.get_gridspec().ncols


def _label_axis(axes: Axes, labels: Sequence[tuple[str, str]], details: Mapping[float, str]) -> None:
    from matplotlib.textpath import TextPath

    axes.set_xticks(list(details), list(details.values()), minor=True, rotation=90, fontsize=_DETAIL_SIZE)
    heights = [TextPath((0, 0), detail, size=_DETAIL_SIZE).get_extents().width for detail in details.values() if detail]
    room = count_characters(axes) // max(3, len(labels))
    words = [word for label, _ in labels for word in clean_text(label, 200).split()]
    fits = room >= min(12, max(map(len, words), default=0))
    texts = [
        "\n".join(filter(None, [wrap_lines(label, room if fits else 26, 5 if fits else 2), summary]))
        for label, summary in labels
    ]
    axes.set_xticks(range(len(labels)), texts)
    axes.tick_params(axis="x", which="minor", length=0, pad=3)
    axes.tick_params(
        axis="x", which="major", length=0, pad=7 + max(heights, default=0), labelrotation=0 if fits else 90
    )


def _one_bar(axes: Axes, bar: Bar, x_start: float, width: float) -> None:
    if bar.finding:
        _box(axes, bar, x_start, width)
        return
    part = width * 0.94 / len(bar.estimates)
    for number, estimate in enumerate(bar.estimates):
        if estimate is None:
            continue
        at = x_start + number * part + part / 2
        style: dict[str, Any] = make_bar_style(bar.sharing)
        if number:
            style |= {"facecolor": PAPER, "edgecolor": bar.sharing.colour, "hatch": "////", "linewidth": 0.9}
        if estimate.low is None:
            style |= {"facecolor": PAPER, "edgecolor": bar.sharing.colour, "linewidth": 1.4, "label": NO_INTERVAL}
        axes.bar(at, estimate.median, part, **style)
        below, above = error_bar(estimate)
        if below or above:
            axes.errorbar(at, estimate.median, [[below], [above]], color=INK, linewidth=0.9, capsize=1.8)


def _box(axes: Axes, bar: Bar, x_start: float, width: float) -> None:
    from matplotlib.patches import Rectangle

    edge, ink = (FAINT, FAINT) if bar.finding == NOT_MEASURED else (WARNING, INK)
    by_panel: dict[str, Any] = {"transform": axes.get_xaxis_transform()}  # y in panel units, x in data units
    dashed: dict[str, Any] = {"facecolor": "none", "edgecolor": edge, "linewidth": 0.8}
    axes.add_patch(Rectangle((x_start, 0), width * 0.94, _BOX_HEIGHT, linestyle="--", **dashed, **by_panel))
    axes.text(x_start + width * 0.47, 0.03, bar.finding, fontsize=7, color=ink, **_IN_BOX, **by_panel)
    strip: dict[str, Any] = {"facecolor": bar.sharing.colour, "clip_on": False}  # below the axis
    axes.add_patch(Rectangle((x_start, -0.018), width * 0.94, 0.018, **strip, **by_panel))


def make_legend(modes: Sequence[SharingMode], *, second: tuple[str, str] | None = None) -> list[Any]:
    """Return the handles of a legend: one for each mode and, with `second`, two for solid and hatched bars."""
    from matplotlib.patches import Patch

    handles = [Patch(label=clean_text(mode.label), **make_bar_style(mode)) for mode in modes]
    if second is not None:
        handles.append(Patch(facecolor=INK, edgecolor=INK, label=second[0]))
        handles.append(Patch(facecolor=PAPER, edgecolor=INK, hatch="////", label=second[1]))
    return handles


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
    metric_name = next((name for name in names if any(name in cell.estimates for cell in cells)), TOTAL_TIME)
    return list_metrics(cells)[metric_name]


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
    measured_cells = [cell for cell in cells if not cell.is_derived]
    has_activity, has_memory = _has(measured_cells, *_ACTIVITY), _has(measured_cells, MEMORY_PEAK)
    most_bars = num_bars(group_by_degree(measured_cells, make_bar))
    figure, panels = make_panels(1 + has_activity + has_memory, 2.5, most_bars=most_bars)
    time, *remaining = panels
    _draw_metric(time, measured_cells, _speed_metric(cells))
    if has_activity:
        activity = remaining.pop(0)
        grouped_bars(
            activity, group_by_degree(measured_cells, lambda cell: make_bar(cell, *map(cell.estimates.get, _ACTIVITY)))
        )
        activity.set_ylim(0, 1.05)
        activity.set_ylabel("share of the time / of the SMs")
        activity.set_title("GRACT and SMACT")
    for memory in remaining:
        _draw_metric(memory, measured_cells, METRICS[MEMORY_PEAK])
    add_legend(figure, make_legend(list_modes(measured_cells), second=("GRACT", "SMACT") if has_activity else None))
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
    measured_cells = [cell for cell in cells if cell.case in measured and not cell.is_derived]
    copies, mixes = ([cell for cell in measured_cells if cell.case.is_mix is is_mix] for is_mix in (False, True))
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
    ranked_estimates = [cell.estimates[name] for cell in cells if cell.is_ranked and name in cell.estimates]
    scale, prefix = choose_prefix((estimate.median for estimate in ranked_estimates), metric.unit)

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
