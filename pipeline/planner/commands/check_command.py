"""`python -m pipeline.planner check`: the predictions of a plan, compared with the measurements of its experiment."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from pipeline.base.system.command_parser import CommandAnswer
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import align_table
from pipeline.planner import profile_table
from pipeline.planner.deployment import Plan
from pipeline.planner.pictures import gpu_picture
from pipeline.planner.results import plan_check
from pipeline.planner.results.plan_check import Check
from pipeline.planner.training import training_plan
from pipeline.report import publish
from pipeline.report.figures.drawing import draw
from pipeline.report.page.page import make_content
from pipeline.report.page.table_format import Table, format_value
from pipeline.report.read import rows
from pipeline.report.read.stores import add_store_arguments, named_stores
from pipeline.report.read.study_records import Study


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the plan, its experiment, the profile and the report."""
    parser.add_argument("plan", type=Path, help="plan of `serve` or `train`, in JSON")
    add_store_arguments(parser)
    parser.add_argument(
        "--profile",
        type=Path,
        action="append",
        metavar="FILE",
        help="profile of the plan, for energy and the intervals of predictions; may be repeated",
    )
    parser.add_argument("--report", action="store_true", help="write the experiment's report with this comparison")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the report (default reports/NAME)")


def answer(arguments: argparse.Namespace) -> CommandAnswer:
    """Compare plan and experiment; status 1 if a GPU was not measured or a requirement was not met."""
    if arguments.out is not None and not arguments.report:
        raise ConfigError("--out has no effect without --report; add --report")
    plan, is_training = training_plan.read(arguments.plan)
    table = profile_table.read(arguments.profile) if arguments.profile else None
    study = rows.read(named_stores(arguments), arguments.experiment)
    outcome = plan_check.check(plan, study, table, arguments.plan.name, by_group=is_training)
    planned = plan_check.build_table(outcome, arguments.plan.name)
    text = describe_check(outcome, planned)
    if plan.is_simulated:
        text += f"\nplanned: {profile_table.SIMULATED}"
    if arguments.report:
        folder = arguments.out or publish.default_folder(arguments.experiment)
        text += f"\nreport: {_report(study, planned, None if is_training else plan, folder).absolute()}"
    return CommandAnswer(data=_to_json(outcome), text=text, status=0 if outcome.holds else 1)


def describe_check(check: Check, table: Table) -> str:
    """Format the table, and list GPUs without measurement and requirements that were not met or not checked."""
    lines = align_table(
        [list(table.columns), *([format_value(cell) for cell in row] for row in table.rows)], left_columns=(0, 1, 2, 3)
    )
    lines += [f"not measured: {gap}" for gap in check.missing]
    lines += [f"not met: {fault}" for fault in check.broken]
    lines += [f"not checked: {gap}" for gap in check.unchecked]
    lines += plan_check.describe_held_by_mean(check)
    if check.is_simulated:
        lines.append(profile_table.MEASURED_SIMULATED)
    return "\n".join(lines)


def _report(study: Study, table: Table, plan: Plan | None, folder: Path) -> Path:
    content = make_content(study)
    figures = list(content.figures)
    if plan is not None:
        sketch = gpu_picture.sketch(plan, "planned-gpus")
        figures.append(draw(sketch, sketch.name, is_simulated=plan.is_simulated, has_columns=True))
    added = dataclasses.replace(content, tables=[table, *content.tables], figures=figures)
    return publish.write(added, folder).page


def _to_json(check: Check) -> dict[str, Any]:
    return {
        "holds": check.holds,
        "is_simulated": check.is_simulated,
        "not_measured": list(check.missing),
        "not_kept": list(check.broken),
        "not_checked": list(check.unchecked),
        "held_by_mean": list(check.held_by_mean),
        "compared": [
            {
                "service": compared.service,
                "quantity": compared.quantity,
                "predicted": compared.predicted,
                "predicted_low": compared.low,
                "predicted_high": compared.high,
                "measured": getattr(compared.measured, "median", None),
                "measured_low": getattr(compared.measured, "low", None),
                "measured_high": getattr(compared.measured, "high", None),
                "num_blocks": getattr(compared.measured, "n", None),
                "error_ratio": compared.error_ratio,
                "is_within": compared.is_within,
            }
            for compared in check.compared
        ],
    }
