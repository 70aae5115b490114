"""Printing of the plan of a dry run, with an estimate of its duration."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence

from pipeline.base.domain.records import Plan, Resume
from pipeline.observe.group_result import GroupResult
from pipeline.observe.study_progress import MemoryForecast, forecast
from pipeline.plan import config_schema, plan_builder, plan_text
from pipeline.plan.inventory import Inventory
from pipeline.study import stored_results
from pipeline.study.stopping_rule import StoppingRule
from pipeline.study.study_request import StudyRequest


def preview(*planned: tuple[StudyRequest, Inventory, Plan]) -> int:
    """Print each plan, or with `resume` its remaining groups, with an estimate of its duration."""
    plans = [_format(*parts) for parts in planned]
    if planned[0][0].config.dry_run == config_schema.JSON:
        sys.stdout.write(f"{json.dumps(plans if len(plans) > 1 else plans[0], indent=2)}\n")
    else:
        sys.stdout.writelines(f"{text}\n" for text in plans)
    return 0


def _format(request: StudyRequest, inventory: Inventory, plan: Plan) -> dict[str, object] | str:
    finished_rows: Sequence[GroupResult] = ()
    if request.config.resume != Resume.NO:
        groups, finished_rows = stored_results.divide(request, plan, inventory)
        plan = dataclasses.replace(plan, groups=groups)
    if (minutes := request.config.advise_minutes) is not None and request.config.dry_run != config_schema.JSON:
        first = plan_builder.cut_plan(plan, lambda group: group.block == 1)
        return f"{plan_text.format_plan(first)}\nmeasures some of these groups repeatedly, for at most {minutes:g} min"
    past = stored_results.find_past_groups(request)
    estimate = forecast(plan.groups, past)
    memory = MemoryForecast(plan.groups, past)
    needs = {group.number: need for group in plan.groups if (need := memory.forecast(group)) is not None}
    if request.config.dry_run == config_schema.JSON:
        bounds = {"at_least": estimate.least_s, "at_most": estimate.most_s, "num_unknown_groups": estimate.num_unknown}
        loosely = {"num_other_packages": estimate.num_other_packages, "other_programs": estimate.other_programs}
        packages_of_others = {key: value for key, value in loosely.items() if value}
        memory_mib = {number: need.needed_mib for number, need in needs.items()}
        return plan_text.export_plan(plan, estimate.of_each, memory_mib) | {"seconds": bounds | packages_of_others}
    of_memory = (
        f"memory of {group.display_name}: {needs[group.number].words}" for group in plan.groups if group.number in needs
    )
    text = "\n".join([plan_text.format_plan(plan), *dict.fromkeys(of_memory)])  # once for all blocks
    if plan.goal is None:
        return f"{text}\n{estimate.words}"
    rule, finished_rows = (
        StoppingRule(plan.experiment, plan.goal, num_compared=0),
        finished_rows or stored_results.find_known(request, plan),
    )
    return "\n".join([text, *rule.forecast(plan.groups, finished_rows, past, only_known=False)])
