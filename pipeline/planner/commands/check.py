"""`python -m pipeline.planner check`: what a plan predicted of each service beside what its experiment measured."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from pipeline.base.domain.answer import Answer
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import aligned
from pipeline.planner import profile
from pipeline.planner.deployment import Plan
from pipeline.planner.pictures import gpus
from pipeline.planner.results import against
from pipeline.planner.results.against import Check
from pipeline.planner.training import as_plan
from pipeline.report import publish
from pipeline.report.figures.drawing import draw
from pipeline.report.page.page import content_of
from pipeline.report.page.table_format import Table, format_value
from pipeline.report.read import rows
from pipeline.report.read.stores import add_store_arguments, named_stores
from pipeline.report.read.study_records import Study


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The plan, its experiment, the profile, and whether there is to be a report."""
    parser.add_argument("plan", type=Path, help="as `serve` or `train` wrote it, in JSON")
    add_store_arguments(parser)
    parser.add_argument(
        "--profile",
        type=Path,
        action="append",
        metavar="FILE",
        help="that the plan was made from: for energy and the intervals of predictions",
    )
    parser.add_argument(
        "--report", action="store_true", help="write the report of the experiment with this table in it"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the report; reports/NAME")


def answer(arguments: argparse.Namespace) -> Answer:
    """Compare; status 1 if something was not measured or a service did not get what it was promised."""
    if arguments.out is not None and not arguments.report:
        raise ConfigError("--out says where the report goes; add --report")
    plan, is_training = as_plan.read(arguments.plan)
    table = profile.read(arguments.profile) if arguments.profile else None
    study = rows.read(named_stores(arguments), arguments.experiment)
    found = against.check(plan, study, table, arguments.plan.name, by_group=is_training)
    shown_table = against.table_of(found, arguments.plan.name)
    text = in_words(found, shown_table)
    if plan.is_simulated:
        text += f"\nplanned: {profile.SIMULATED}"
    if arguments.report:
        written = _report(
            study,
            shown_table,
            None if is_training else plan,
            arguments.out or publish.default_folder(arguments.experiment),
        )
        text += f"\nreport: {written.absolute()}"
    return Answer(data=_data(found), text=text, status=0 if found.holds else 1)


def in_words(found: Check, table: Table) -> str:
    """The table, and what does not hold."""
    lines = aligned(
        [list(table.columns), *([format_value(value) for value in row] for row in table.rows)], left=(0, 1, 2, 3)
    )
    lines += [f"not measured: {why}" for why in found.missing]
    lines += [f"not kept: {what}" for what in found.broken]
    lines += [f"not checked: {what}" for what in found.unchecked]
    if found.held_by_mean:
        lines.append(against.held_by_mean(found))
    if found.is_simulated:
        lines.append("simulated: the measurements say nothing about a real GPU")
    return "\n".join(lines)


def _report(study: Study, table: Table, plan: Plan | None, folder: Path) -> Path:
    """Write the report of the experiment with the table before its others, and who is where by the plan; its page."""
    content = content_of(study)
    figures = list(content.figures)
    if plan is not None:
        figures.append(draw(gpus.sketch(plan, "planned-gpus"), "planned-gpus", is_simulated=plan.is_simulated))
    added = dataclasses.replace(content, tables=[table, *content.tables], figures=figures)
    return publish.write(added, folder).page


def _data(found: Check) -> dict[str, Any]:
    return {
        "holds": found.holds,
        "is_simulated": found.is_simulated,
        "not_measured": list(found.missing),
        "not_kept": list(found.broken),
        "not_checked": list(found.unchecked),
        "held_by_mean": list(found.held_by_mean),
        "compared": [
            {
                "service": each.service,
                "quantity": each.quantity,
                "predicted": each.predicted,
                "predicted_low": each.low,
                "predicted_high": each.high,
                "measured": each.measured and each.measured.median,
                "measured_low": each.measured and each.measured.low,
                "measured_high": each.measured and each.measured.high,
                "num_blocks": each.measured and each.measured.n,
                "error_ratio": each.error_ratio,
                "is_within": each.is_within,
            }
            for each in found.compared
        ],
    }
