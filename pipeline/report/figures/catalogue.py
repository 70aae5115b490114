"""The figures of a report, in the order of the page."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from pipeline.base.system.words import announce
from pipeline.report.evaluate.cells import Cell
from pipeline.report.evaluate.stressors import list_effects
from pipeline.report.figures import bar_charts, curves, over_time, parameters
from pipeline.report.figures.drawing import Drawn, draw
from pipeline.report.read.group_series import GroupSeries
from pipeline.report.read.study_records import Study

FIGURES = (
    curves.sketch_fractions,
    curves.sketch_gains,
    bar_charts.sketch_mixes,
    bar_charts.sketch_copies,
    parameters.sketch_profiles,
    parameters.sketch_parameters,
    bar_charts.sketch_metrics,
    over_time.sketches,
)
"""The functions that yield the figures of cells without stressors; those of workloads beside stressors come first."""


@announce("drawing the figures")
def draw_figures(
    study: Study, cells: Sequence[Cell], timeline: GroupSeries | None, *, has_columns: bool = False
) -> list[Drawn]:
    """Draw all figures of the cells of a study and the samples of one group, with `has_columns` also for a column."""
    figures: list[Drawn] = []
    ordinary = [cell for cell in cells if not cell.has_stressor]
    without_stressors = [sketch for list_sketches in FIGURES for sketch in list_sketches(ordinary, timeline)]
    for sketch in (*curves.sketch_stressors(list_effects(study, cells)), *without_stressors):
        name = _file_name(sketch.name, {drawn.name for drawn in figures})
        figures.append(draw(sketch, name, is_simulated=study.is_simulated, has_columns=has_columns))
    return figures


def _file_name(text: str, used: Collection[str]) -> str:
    base = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:80] or "figure"
    name, number = base, 2
    while name in used:
        name, number = f"{base}-{number}", number + 1
    return name
