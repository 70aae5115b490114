"""All of a report but its page, from rows made by hand."""

from __future__ import annotations

from pipeline.report.evaluate import cells as evaluated
from pipeline.report.evaluate import paper, verdicts
from pipeline.report.figures import every as figures
from pipeline.report.page import tables as report_tables
from pipeline.report.page.page import Content
from pipeline.report.read.records import Study
from pipeline.report.read.samples import GroupSeries


def content_of(found: Study, timeline: GroupSeries | None = None) -> Content:
    cells = evaluated.cells(found)
    claims = verdicts.verdicts(cells)
    winners = verdicts.winners(cells, claims)
    every = report_tables.every_table(found, cells, claims, winners, paper.compare(cells, winners))
    drawn = figures.every_figure(found, cells, timeline)
    return Content(study=found, cells=cells, verdicts=claims, winners=winners, tables=every, figures=drawn)
