"""The style of all figures, and their drawing as SVG and PDF.

Sharing modes have the colours of `pipeline.base.domain.sharing_modes`. A figure uses no colours but those of `THEME`,
which the page replaces on dark screens.
"""

from __future__ import annotations

import functools
import io
import logging
import re
import textwrap
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pipeline.base.domain.sharing_modes import MODES, SPARE_COLOURS
from pipeline.report.evaluate.statistics import Estimate
from pipeline.report.figures.parts import Part, split_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

logger = logging.getLogger(__name__)

STAMP = "simulated, says nothing about a real GPU"

INK, FAINT, PAPER, WARNING = "#1b1b1c", "#8f8f92", "#fefefe", "#a8231c"
SERIES_COLOURS = (("#1b1b1d", "#e8e8ea"), ("#2a8a86", "#4fc4be"), ("#7050b0", "#a98fe0"), ("#8a5a2b", "#c99a66"))
"""Colours of quantities over time, on light and on dark pages."""
COLOURS = (*((mode.colour, mode.dark_colour) for mode in MODES.values()), *SPARE_COLOURS, *SERIES_COLOURS)
"""On light and on dark pages."""

THEME = {INK: "ink", FAINT: "faint", PAPER: "paper", WARNING: "warning"} | {
    light: f"colour-{number}" for number, (light, _) in enumerate(COLOURS)
}
"""The CSS variable of each colour."""

_STYLE: dict[str, Any] = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK),
    **dict.fromkeys(("axes.edgecolor", "grid.color", "hatch.color", "xtick.color", "ytick.color"), FAINT),
    **dict.fromkeys(("axes.facecolor", "figure.facecolor", "savefig.facecolor"), "none"),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "axes.grid", "legend.frameon"), False),
    "font.size": 9,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "text.parse_math": False,  # a run may be named "$x"
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "grid.linewidth": 0.4,
    "grid.alpha": 0.5,
    "hatch.linewidth": 0.5,
    "svg.fonttype": "none",  # text stays text: it can be read aloud, searched, and takes the page's colours
    "pdf.fonttype": 42,
}
WIDEST = 9.6
"""Fits a printed page with readable text. Unit: inches."""
_PER_ROW = 3
_NO_GLYPH = r"Glyph \d+ .* missing from"
_NO_DATES = {"svg": {"Date": None, "Creator": None}, "pdf": {"CreationDate": None, "Producer": None, "Creator": None}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """A figure that can be drawn.

    Attributes:
        name: of its files, before characters are replaced.
        section: its heading on the page.
        paint: makes the figure in the current style.
    """

    name: str
    title: str
    caption: str
    section: str
    paint: Callable[[], Figure]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A sketch as SVG and PDF; `parts` are its title, panels and legend if panels stand beside each other."""

    name: str
    sketch: Sketch
    svg: str
    pdf: bytes
    parts: tuple[Part, ...] = ()


def draw(sketch: Sketch, name: str, *, is_simulated: bool) -> Drawn:
    """Paint a figure and write it as SVG and PDF; equal input gives equal bytes."""
    import matplotlib as mpl

    style: Any = _STYLE | {"svg.hashsalt": name}
    with mpl.rc_context(style), _warn_once_of_boxes():
        figure, title = sketch.paint(), []
        if is_simulated:
            title = [figure.suptitle(STAMP, color=WARNING, fontsize=10, fontweight="bold", x=0.01, ha="left")]
        engine = figure.get_layout_engine()
        if engine is not None:
            engine.execute(figure)
            figure.set_layout_engine(None)  # done: each format would repeat it
        parts = split_figure(figure, title)
        written = {kind: io.BytesIO() for kind in _NO_DATES}
        for kind, target in written.items():
            ground = PAPER if kind == "svg" else "none"
            figure.savefig(target, format=kind, metadata=_NO_DATES[kind], facecolor=ground)
    return Drawn(
        name=name,
        sketch=sketch,
        svg=written["svg"].getvalue().decode("utf-8"),
        pdf=written["pdf"].getvalue(),
        parts=parts,
    )


@contextmanager
def _warn_once_of_boxes() -> Iterator[None]:
    """Replace Matplotlib's warning for each missing letter by one for all figures."""
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
    logger.warning("some letters are not in DejaVu Sans and are boxes in the PDFs; the page and the SVGs show them")


def new_figure(width: float, height: float) -> Figure:
    """Make an empty figure that keeps its texts apart. Unit: inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def make_panels(number: int, height: float, *, most_bars: int = 0, columns: int = 0) -> tuple[Figure, list[Axes]]:
    """Make a figure with a grid of panels, fewer in a row if they have more bars; `columns` sets two or three.

    Unit of the height: inches for each row.
    """
    most = columns if columns in range(2, _PER_ROW + 1) else min(_PER_ROW, int(WIDEST / (0.6 + 0.13 * most_bars)))
    columns = max(1, min(number, most))
    rows = -(-number // columns) or 1
    figure = new_figure(WIDEST, height * rows + 0.5)
    panels = [axes for row in figure.subplots(rows, columns, squeeze=False) for axes in row]
    for axes in panels[number:]:
        axes.remove()
    return figure, panels[:number]


def count_characters(axes: Axes) -> int:
    """Count the characters of axis labels that fit into the width of a panel."""
    figure, place = axes.get_figure(root=True), axes.get_subplotspec()
    assert figure is not None and place is not None  # `make_panels` made it
    return int(72 * 0.85 * figure.get_figwidth() / place.get_gridspec().ncols / 5.5)


def set_title(axes: Axes, text: str) -> None:
    """Write the title of a panel above it, in as many lines as it takes."""
    axes.set_title(wrap_lines(text, count_characters(axes)), fontsize=8)


def add_legend(figure: Figure, handles: Sequence[Any], labels: Sequence[str] | None = None) -> None:
    """Add a legend below all panels, in as many columns as fit."""
    names = [handle.get_label() for handle in handles] if labels is None else labels
    columns = int(figure.get_figwidth() * 72 / (40 + 5 * max(map(len, names), default=0)))
    columns = max(1, min(columns, len(names)))
    figure.legend(handles=handles, labels=names, loc="outside lower left", ncols=columns, fontsize=8)


def error_bar(estimate: Estimate) -> tuple[float, float]:
    """Return the length of the error bar below and above an estimate; zero without an interval."""
    low, high = (estimate.median if end is None else end for end in (estimate.low, estimate.high))
    return max(0.0, estimate.median - low), max(0.0, high - estimate.median)


def clean_text(text: str, longest: int = 80) -> str:
    """Remove control characters and line ends from text, and cut it to a length."""
    printable = "".join(c if unicodedata.category(c)[0] != "C" else " " for c in text)
    printable = " ".join(printable.split())
    return printable if len(printable) <= longest else printable[: longest - 3] + "..."


def wrap_lines(text: str, width: int, most: int = 3) -> str:
    """Wrap text into a few lines; the last one ends in dots if text is cut off."""
    return "\n".join(textwrap.wrap(clean_text(text, 200), width, max_lines=most, placeholder=" ..."))


def say_missing(axes: Axes, text: str) -> None:
    """Write into an empty panel why it is empty."""
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color=FAINT, wrap=True)
    axes.tick_params(bottom=False, left=False, labelbottom=False, labelleft=False)  # panels may share their ticks
    for spine in axes.spines.values():
        spine.set_visible(False)
