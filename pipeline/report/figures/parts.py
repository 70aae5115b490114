"""Figures in parts; a page places their panels in rows, or below each other on a narrow screen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.transforms import Bbox

_PAD = 3.0
"""Padding around a part, because browsers have different fonts. Unit: points."""


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


def split_figure(figure: Figure, title: Sequence[Artist]) -> tuple[Part, ...]:
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
            parts.append(_part(figure, name, row, box, [box for _, box in boxes]))
    return tuple(parts)


def _part(figure: Figure, name: str, row: int, box: Bbox, beside: Sequence[Bbox]) -> Part:
    to_points = 72 / figure.dpi
    low, high = min(bounds.y0 for bounds in beside), max(bounds.y1 for bounds in beside)
    return Part(
        name=name,
        row=row,
        x=to_points * box.x0 - _PAD,
        y=72 * figure.get_figheight() - to_points * high - _PAD,
        width=to_points * box.width + 2 * _PAD,
        height=to_points * (high - low) + 2 * _PAD,
    )
