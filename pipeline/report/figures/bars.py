"""Bars in groups, coloured by sharing mode, with intervals; a labelled box replaces a missing figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.base.domain.sharing_modes import SharingMode
from pipeline.base.system.words import format_count
from pipeline.report.evaluate.cells import Cell, list_cases
from pipeline.report.evaluate.metrics import is_latency
from pipeline.report.evaluate.statistics import Estimate
from pipeline.report.evaluate.wording import absence_in_words
from pipeline.report.figures.drawing import (
    FAINT,
    HOLLOW_CAPTION,
    INK,
    NO_INTERVAL,
    PAPER,
    WARNING,
    clean_text,
    count_characters,
    error_bar,
    make_bar_style,
    wrap_lines,
)
from pipeline.report.read.labels import rank_profile

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
    known = tuple(estimates) if cell.is_ranked else tuple(None for _ in estimates)
    finding = "" if any(known) else absence_in_words(cell) or missing
    star = "*" if cell.marks else ""
    return Bar(sharing=cell.sharing, detail=f"{clean_text(cell.detail, 24)}{star}", estimates=known, finding=finding)


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
    beside = 0.55 + max(0, 3 - len(groups)) / 2  # a single group does not fill the panel
    are_wide = _measure_width(axes) * width / (len(groups) - 1 + 2 * beside) >= _DETAIL_SIZE
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
    axes.set_xlim(-beside, len(groups) - 1 + beside)
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
