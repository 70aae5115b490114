"""The style of all figures, and functions that draw them as SVG and PDF.

Sharing modes have the colours of `pipeline.base.domain.sharing_modes`. Figures use only the colours of `THEME`, which
the page replaces on dark screens.
"""

from __future__ import annotations

import functools
import io
import itertools
import logging
import math
import re
import textwrap
import unicodedata
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.base.domain.sharing_modes import MODES, PROFILE_COLOURS, SPARE_COLOURS
from pipeline.report.evaluate.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

    from pipeline.base.domain.sharing_modes import SharingMode

logger = logging.getLogger(__name__)

STAMP = "simulated, no measurement of a real GPU"

INK, FAINT, PAPER, WARNING = "#1b1b1c", "#8f8f92", "#fefefe", "#a8231c"
SERIES_COLOURS = (("#1b1b1d", "#e8e8ea"), ("#2a8a86", "#4fc4be"), ("#7050b0", "#a98fe0"), ("#8a5a2b", "#c99a66"))
"""Colours of quantities over time, on light and on dark pages."""
COLOURS = (
    *((mode.colour, mode.dark_colour) for mode in MODES.values()),
    *SPARE_COLOURS,
    *SERIES_COLOURS,
    *PROFILE_COLOURS.values(),
)
"""All colours of data, on light and on dark pages."""

THEME = {INK: "ink", FAINT: "faint", PAPER: "paper", WARNING: "warning"} | {
    light: f"colour-{number}" for number, (light, _) in enumerate(COLOURS)
}
"""The CSS variable of each colour."""

_STYLE: dict[str, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("axes.edgecolor", "grid.color", "hatch.color", "xtick.color", "ytick.color"), FAINT),
    **dict.fromkeys(("axes.facecolor", "figure.facecolor", "savefig.facecolor"), "none"),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "axes.grid", "legend.frameon"), False),
    "font.size": 8,
    **dict.fromkeys(("xtick.labelsize", "ytick.labelsize"), 7.5),
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "text.parse_math": False,  # the name of a run may contain "$"
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "grid.linewidth": 0.4,
    "grid.alpha": 0.5,
    "hatch.linewidth": 0.5,
    "svg.fonttype": "none",  # keep text as text, for screen readers, searches and the page's colours
    "pdf.fonttype": 42,  # embed fonts as TrueType, as publishers want them
}
WIDEST, COLUMN = 7.0, 3.3
"""The width of the text and of a column of a journal: a paper includes figures unscaled. Unit: inches."""
LEAST_FONT = 7
"""The smallest font size of a figure. Unit: points."""
_limit: ContextVar[float] = ContextVar("limit", default=math.inf)
"""The largest width of new figures. Unit: inches."""
NO_INTERVAL = "no interval"
"""The label of hollow points and bars."""
HOLLOW_CAPTION = "Hollow: no interval, which needs three blocks (with several GPUs, three GPUs)."
_PER_ROW = 3
_HANDLE = 3.2
"""The length of a line in a legend, in which two dashes are seen beside a marker. Unit: font size."""
_LEGEND_HEIGHT = 0.5
LEAST_CHARACTER = 0.062
"""Mean width of a character of the smallest font. Unit: inches."""
_CHARACTER_WIDTH = 5.0
"""Mean width of a character of axis labels. Unit: points."""
_LEVELS = (":", "-.", (0, (5, 1)))
_PAD = 3.0
"""Padding around a part, because browsers have different fonts. Unit: points."""
_NO_GLYPH = r"Glyph \d+ .* missing from"
_NO_DATES = {"svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None, "Producer": None, "Creator": None}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """A figure that can be drawn.

    Attributes:
        name: name of the figure's files, before characters are replaced.
        section: heading of the figure's section on the page.
        paint: function that makes the figure in the current style.
    """

    name: str
    title: str
    caption: str
    section: str
    paint: Callable[[], Figure]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A title, a panel or a legend in an SVG.

    Attributes:
        name: id of the SVG group.
        row: number of the part's row in the figure.
        x, y, width, height: box of the part. Unit: points.
    """

    name: str
    row: int
    x: float
    y: float
    width: float
    height: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A sketch as SVG and PDF.

    Attributes:
        parts: title, panels and legend, if a row has several panels.
        column_pdf: PDF with the width of a column, in which each panel is a page; empty if it was not drawn.
    """

    name: str
    sketch: Sketch
    svg: str
    pdf: bytes
    parts: tuple[Part, ...] = ()
    column_pdf: bytes = b""


def draw(sketch: Sketch, name: str, *, is_simulated: bool, has_columns: bool = False) -> Drawn:
    """Paint a figure and write it as SVG and PDF, with `has_columns` also as PDF with the width of a column.

    Equal input gives equal bytes.
    """
    import matplotlib as mpl

    style: Any = _STYLE | {"svg.hashsalt": name}
    with mpl.rc_context(style), _warn_once_of_boxes():
        figure = sketch.paint()
        title = _put_stamp(figure) if is_simulated else []
        _lay_out(figure)
        parts = _split_figure(figure, title)
        svg, pdf = _save(figure, "svg"), _save(figure, "pdf")
        column_pdf = _draw_column(sketch, is_split=bool(parts), is_simulated=is_simulated) if has_columns else b""
    return Drawn(name=name, sketch=sketch, svg=svg.decode("utf-8"), pdf=pdf, parts=parts, column_pdf=column_pdf)


def _split_figure(figure: Figure, title: Sequence[Artist]) -> tuple[Part, ...]:
    """Set ids for the parts of a figure after its layout; return the parts, none if each row has a single panel."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    rows: dict[int, list[Axes]] = defaultdict(list)
    for axes in figure.axes:
        place = axes.get_subplotspec()
        rows[0 if place is None else place.rowspan.start].append(axes)
    if all(len(members) == 1 for members in rows.values()):
        return ()
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    lines: list[Sequence[Artist]] = [title, *(rows[row] for row in sorted(rows)), figure.legends]
    parts: list[Part] = []
    for row, artists in enumerate(lines):
        boxes = [(artist, box) for artist in artists if (box := artist.get_tightbbox(renderer)) is not None]
        for artist, box in boxes:
            name = f"part-{len(parts)}"
            artist.set_gid(name)
            parts.append(_make_part(figure, name, row, box, [box for _, box in boxes]))
    return tuple(parts)


def _make_part(figure: Figure, name: str, row: int, box: Bbox, row_boxes: Sequence[Bbox]) -> Part:
    to_points = 72 / figure.dpi
    low, high = min(bounds.y0 for bounds in row_boxes), max(bounds.y1 for bounds in row_boxes)
    return Part(
        name=name,
        row=row,
        x=to_points * box.x0 - _PAD,
        y=72 * figure.get_figheight() - to_points * high - _PAD,
        width=to_points * box.width + 2 * _PAD,
        height=to_points * (high - low) + 2 * _PAD,
    )


def _draw_column(sketch: Sketch, *, is_split: bool, is_simulated: bool) -> bytes:
    """Paint a figure with the width of a column, or a page for each panel; leave out pages whose labels would overlap.

    The panels share a file because embedding the fonts takes most of the time.
    """
    from matplotlib.backends.backend_pdf import PdfPages

    token = _limit.set(COLUMN)
    try:
        figure = sketch.paint()
    finally:
        _limit.reset(token)
    if is_simulated:
        _put_stamp(figure)
    target, num_pages = io.BytesIO(), 0
    every_axes = list(figure.axes)
    height = (figure.get_figheight() - _LEGEND_HEIGHT) / len(every_axes) + _measure_legend(figure)
    with PdfPages(target, metadata=_NO_DATES["pdf"]) as pages:
        for axes in every_axes if is_split else every_axes[:1]:
            if is_split:
                _show_alone(axes, figure)
                figure.set_size_inches(COLUMN, height)
                figure.set_layout_engine("constrained")
            if _fits(figure):
                num_pages += 1
                pages.savefig(figure, facecolor="none")
    return target.getvalue() if num_pages else b""


def _fits(figure: Figure) -> bool:
    """Lay out a figure; return whether its panels have space and its labels do not overlap."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "constrained_layout not applied", UserWarning)
        try:
            _lay_out(figure)
        except UserWarning:
            return False
    return not has_overlaps(figure)


def _show_alone(axes: Axes, figure: Figure) -> None:
    from matplotlib.gridspec import GridSpec

    for other in list(figure.axes):
        figure.delaxes(other)
    figure.add_axes(axes)
    axes.set_subplotspec(GridSpec(1, 1, figure=figure)[0])


def _measure_legend(figure: Figure) -> float:
    """Return the height that the legend needs. Unit: inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    return 0.2 + sum(legend.get_window_extent(renderer).height / figure.dpi for legend in figure.legends)


def _put_stamp(figure: Figure) -> list[Artist]:
    size = 10 if figure.get_figwidth() > COLUMN else LEAST_FONT
    return [figure.suptitle(STAMP, color=WARNING, fontsize=size, fontweight="bold", x=0.01, ha="left")]


def _lay_out(figure: Figure) -> None:
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine(None)  # otherwise each format would repeat the layout


def _save(figure: Figure, kind: str) -> bytes:
    target = io.BytesIO()
    figure.savefig(target, format=kind, metadata=_NO_DATES[kind], facecolor=PAPER if kind == "svg" else "none")
    return target.getvalue()


def has_overlaps(figure: Figure) -> bool:
    """Return whether labels of an axis of a figure overlap after its layout."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    for axis in itertools.chain(*((axes.xaxis, axes.yaxis) for axes in figure.axes)):
        labels = [label for label in axis.get_ticklabels(which="both") if label.get_visible() and label.get_text()]
        boxes = [label.get_window_extent(renderer).padded(-0.5) for label in labels]
        if any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2)):
            return True
    return False


@contextmanager
def _warn_once_of_boxes() -> Iterator[None]:
    """Replace Matplotlib's warnings about missing letters by one warning for all figures."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", _NO_GLYPH, UserWarning)
        yield
    for warning in caught:
        if re.match(_NO_GLYPH, str(warning.message)):
            _say_boxes()
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)


@functools.cache
def _say_boxes() -> None:
    logger.warning("DejaVu Sans lacks some letters, which are boxes in the PDFs; use the page or the SVGs instead")


def find_widest() -> float:
    """Return the largest width of a new figure: that of the text, or of a column. Unit: inches."""
    return min(WIDEST, _limit.get())


def new_figure(width: float, height: float) -> Figure:
    """Make an empty figure with a layout without overlapping texts. Unit: inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(min(width, _limit.get()), height), layout="constrained")


def make_panels(number: int, height: float, *, most_bars: int = 0, columns: int = 0) -> tuple[Figure, list[Axes]]:
    """Make a figure with a grid of panels.

    Args:
        number: number of panels.
        height: height of a row. Unit: inches.
        most_bars: bars in the widest panel; more bars mean fewer panels in a row.
        columns: panels in a row, 2 or 3; other values are ignored.
    """
    most = columns if columns in range(2, _PER_ROW + 1) else min(_PER_ROW, int(WIDEST / (0.6 + 0.13 * most_bars)))
    columns = max(1, min(number, most)) if find_widest() > COLUMN else 1
    rows = -(-number // columns) or 1
    figure = new_figure(WIDEST, height * rows + _LEGEND_HEIGHT)
    panels = [axes for row in figure.subplots(rows, columns, squeeze=False) for axes in row]
    for axes in panels[number:]:
        axes.remove()
    return figure, panels[:number]


def count_characters(axes: Axes) -> int:
    """Count the characters of axis labels that fit into the width of a panel."""
    figure, place = axes.get_figure(root=True), axes.get_subplotspec()
    assert figure is not None and place is not None  # axes of `make_panels` have both
    return int(72 * 0.85 * figure.get_figwidth() / place.get_gridspec().ncols / _CHARACTER_WIDTH)


def set_title(axes: Axes, text: str) -> None:
    """Write the title of a panel above the panel, wrapped to its width."""
    axes.set_title(wrap_lines(text, count_characters(axes)), fontsize=8)


def add_legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str] | None = None) -> None:
    """Add a legend below all panels, in as many columns as fit; hollow points and bars get an entry of their own."""
    from matplotlib.lines import Line2D

    names = [handle.get_label() for handle in handles] if labels is None else list(labels)
    if any(NO_INTERVAL in axes.get_legend_handles_labels()[1] for axes in figure.axes):
        hollow: dict[str, Any] = {"marker": "s", "linestyle": "none", "markerfacecolor": PAPER, "color": INK}
        handles, names = [*handles, Line2D([], [], **hollow)], [*names, NO_INTERVAL]
    columns = int(figure.get_figwidth() * 72 / (21 + 7.5 * _HANDLE + 4.8 * max(map(len, names), default=0)))
    rows = -(-len(names) // max(1, min(columns, len(names)))) or 1
    columns = -(-len(names) // rows) or 1  # the legend is filled column by column, so its rows have equal lengths
    # A dashed line shows two dashes beside its marker.
    figure.legend(
        handles=handles, labels=names, loc="outside lower left", ncols=columns, fontsize=7.5, handlelength=_HANDLE
    )


def collect_handles(panels: Sequence[Axes]) -> dict[str, Any]:
    """Return the handles of the labelled lines of panels, by label."""
    handles: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            if label != NO_INTERVAL:
                handles.setdefault(label, handle)
    return handles


def hollow_points(axes: Axes, estimates: Mapping[float, Estimate], style: Mapping[str, Any]) -> None:
    """Draw the points without an interval again, hollow, with the marker and colour of a line."""
    without = {place: estimate.median for place, estimate in estimates.items() if estimate.low is None}
    if without:
        marker = {key: style[key] for key in ("color", "marker", "markersize")}
        axes.plot(*zip(*without.items(), strict=True), linestyle="none", markerfacecolor=PAPER, zorder=3,
                  label=NO_INTERVAL, **marker)  # fmt: skip


def draw_line(axes: Axes, estimates: Mapping[float, Estimate], style: Mapping[str, Any], label: str = "") -> Any:
    """Draw estimates, by place, as a line with error bars and hollow points; return its handle for a legend."""
    medians = [estimate.median for estimate in estimates.values()]
    errors = list(zip(*map(error_bar, estimates.values()), strict=True)) or None
    named = {**style, **({"label": label} if label else {})}
    handle = axes.errorbar(list(estimates), medians, errors, elinewidth=0.9, capsize=2, **named)
    hollow_points(axes, estimates, style)
    return handle


def draw_level(axes: Axes, label: str, estimate: Estimate) -> None:
    """Draw a figure that does not depend on the horizontal axis: a broken line, and its interval as a band."""
    dashes = _LEVELS[sum(line.get_color() == INK for line in axes.lines) % len(_LEVELS)]
    axes.axhline(estimate.median, color=INK, linewidth=1.1, linestyle=dashes, label=label)
    if estimate.low is not None and estimate.high is not None:
        axes.axhspan(estimate.low, estimate.high, facecolor=INK, alpha=0.12, linewidth=0)
    else:
        place: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "ha": "right", "va": "bottom"}
        place |= {"bbox": {"facecolor": PAPER, "edgecolor": "none", "pad": 0.4, "alpha": 0.85}}
        place |= {"zorder": 1.5}  # above bars, below lines
        axes.annotate(NO_INTERVAL, (0.995, estimate.median), fontsize=7, color=INK, **place)


def error_bar(estimate: Estimate) -> tuple[float, float]:
    """Return the length of the error bar below and above an estimate; zero without an interval."""
    low, high = (estimate.median if end is None else end for end in (estimate.low, estimate.high))
    return max(0.0, estimate.median - low), max(0.0, high - estimate.median)


def make_bar_style(mode: SharingMode) -> dict[str, Any]:
    """Return the colour, edge and hatch of the bars of a sharing mode; a hatch has the colour of the edge."""
    return {
        "facecolor": mode.colour,
        "edgecolor": INK if mode.hatch else FAINT,
        "hatch": mode.hatch or None,
        "linewidth": 0.6,
    }


def clean_text(text: str, longest: int = 80) -> str:
    """Remove control characters and line ends from text, and cut it to a length."""
    printable = "".join(c if unicodedata.category(c)[0] != "C" else " " for c in text)
    printable = " ".join(printable.split())
    return printable if len(printable) <= longest else printable[: longest - 3] + "..."


def wrap_lines(text: str, width: int, most: int = 3) -> str:
    """Wrap text into at most `most` lines; dots at the end show that text was cut off."""
    return "\n".join(textwrap.wrap(clean_text(text, 200), width, max_lines=most, placeholder=" ..."))


def say_missing(axes: Axes, text: str) -> None:
    """Write into an empty panel the reason why it is empty."""
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color=FAINT, wrap=True)
    axes.tick_params(bottom=False, left=False, labelbottom=False, labelleft=False)  # panels may share their ticks
    for spine in axes.spines.values():
        spine.set_visible(False)
