"""All of a report but its page, from rows made by hand."""

from __future__ import annotations

from pipeline.report import figures, paper, report_tables, tables, verdicts
from pipeline.report.page import Content
from pipeline.report.records import Study
from pipeline.report.series import GroupSeries


def content_of(found: Study, timeline: GroupSeries | None = None) -> Content:
    cells = tables.cells(found)
    claims = verdicts.verdicts(cells)
    winners = verdicts.winners(cells, claims)
    every = report_tables.every_table(found, cells, claims, winners, paper.compare(cells, winners))
    drawn = figures.every_figure(found, cells, timeline)
    return Content(study=found, cells=cells, verdicts=claims, winners=winners, tables=every, figures=drawn)
