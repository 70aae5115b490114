"""Every figure of a report, in the order of the page."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pipeline.report import figure_energy, figure_mixes, figure_workloads, gain, timeline_figure
from pipeline.report.drawing import Drawn, draw
from pipeline.report.records import Study
from pipeline.report.series import GroupSeries
from pipeline.report.tables import Cell

FIGURES = (
    figure_workloads.sketches,
    figure_mixes.sketches,
    gain.sketches,
    figure_energy.sketches,
    timeline_figure.sketches,
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
