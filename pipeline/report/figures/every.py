"""Every figure of a report, in the order of the page."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pipeline.report.evaluate.cells import Cell
from pipeline.report.figures import energy, gain, mixes, over_time, workloads
from pipeline.report.figures.drawing import Drawn, draw
from pipeline.report.read.records import Study
from pipeline.report.read.samples import GroupSeries

FIGURES = (
    workloads.sketches,
    mixes.sketches,
    gain.sketches,
    energy.sketches,
    over_time.sketches,
)
"""Each is asked with the cells of a study and the samples of one group, and sketches what it has something for."""


def every_figure(study: Study, cells: Sequence[Cell], timeline: GroupSeries | None) -> list[Drawn]:
    """All figures that the study has something for.

    Args:
        study: for the stamp of a simulated one.
        cells: of the study.
        timeline: the samples of one group; `None` if there are none.
    """
    names = _Names()
    found = [sketch for sketches in FIGURES for sketch in sketches(cells, timeline)]
    return [draw(sketch, names.of(sketch.name), is_simulated=study.is_simulated) for sketch in found]


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
