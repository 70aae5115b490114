"""Stored results of a study: finished, remaining and unused ones, and the groups that other workers ran."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipeline.base.domain.records import Group, Plan, Resume
from pipeline.base.system import words
from pipeline.base.system.errors import ConfigError, TrackingError
from pipeline.base.system.words import format_count
from pipeline.observe.baseline_comparison import Comparison
from pipeline.observe.group_result import GroupResult
from pipeline.observe.study_progress import PastGroup
from pipeline.plan.inventory import Inventory
from pipeline.record import resume
from pipeline.record.group_record import GroupRecord, Original
from pipeline.record.shards import overview
from pipeline.study import summary
from pipeline.study.reproduce import differences
from pipeline.study.study_request import StudyRequest


def open_store(request: StudyRequest, plan: Plan, inventory: Inventory) -> tuple[tuple[Group, ...], list[GroupResult]]:
    """Open the store, which is created if missing; return the groups to run and the rows of the finished groups."""
    assert request.sender is not None
    tracking = request.config.tracking
    request.sender.open(plan.experiment, request.root, tracking.uri, tracking.series_points)
    request.sender.wait_for_store()
    return (plan.groups, []) if request.config.resume == Resume.NO else divide(request, plan, inventory)


def divide(request: StudyRequest, plan: Plan, inventory: Inventory) -> tuple[tuple[Group, ...], list[GroupResult]]:
    """Return the groups to run and the rows of the finished groups; print their number, and why results are unused."""
    sender, store = request.sender, request.config.tracking.uri or str(request.root)
    assert sender is not None
    finished = sender.find_finished(plan.experiment, store if request.config.dry_run else None)
    groups, finished_rows = _find_remaining(request, plan, finished)
    words.say(f"resume: {len(finished_rows)} of {len(plan.groups)} groups are finished")
    for line in resume.describe_restarts(groups, finished, gpus=request.gpus):
        words.say(line)
    if not request.invocation.has_launcher_here:  # a launcher on this host would have printed these lines
        # Results of the same study on other GPU models or other GPUs belong to it if it requests several models.
        on_other_models = plan.any_gpu_digest if request.config.gpu.models > 1 else ""
        results = [
            group_run
            for group_run in finished
            if group_run.digest not in request.planned
            and all(facts.get("plan_any_gpu") != on_other_models for facts in group_run.plan_facts)
        ]
        for line in explain_unused_results(
            plan, groups, results, inventory, lambda run_id: sender.recall(run_id, store)
        ):
            words.say(line)
    if not request.config.dry_run:
        _take_over(request, plan, finished_rows, finished)
    return groups, finished_rows


def find_known(request: StudyRequest, plan: Plan) -> list[GroupResult]:
    """Return the stored rows of a plan's groups, for an estimate; empty without a readable store."""
    if request.sender is None:
        return []
    store = request.config.tracking.uri or str(request.root)
    try:
        finished = request.sender.find_finished(plan.experiment, store if request.config.dry_run else None)
    except TrackingError as error:
        words.say(f"no estimate from stored blocks: {error}")
        return []
    return _find_remaining(request, plan, finished)[1]


def find_past_groups(request: StudyRequest) -> Sequence[PastGroup]:
    """Return earlier groups of the store, for an estimate of durations; empty without a readable store."""
    if request.sender is None:
        return ()
    try:
        return request.sender.find_past_groups(request.config.tracking.uri or str(request.root))
    except TrackingError as error:
        words.say(f"no estimate from earlier groups: {error}")
        return ()


def assign_to_plan(request: StudyRequest, plan: Plan, rows: Sequence[GroupResult]) -> None:
    """Tag the rows of a study as results of the plan of its blocks, so that no reader expects later blocks."""
    assert request.sender is not None
    try:
        _take_over(request, plan, rows, request.sender.find_finished(plan.experiment))
    except TrackingError as error:
        words.say(f"warning: {error}; `tracking status` and the report will expect more blocks")


def _take_over(
    request: StudyRequest, plan: Plan, finished_rows: Sequence[GroupResult], finished: Sequence[GroupRecord]
) -> None:
    """Tag results that this plan has, and that ran in other plans, as results of this plan, too."""
    assert request.sender is not None
    of_others = {group.spool_id: group.run_id for group in finished if group.plan_facts[-1].get("plan") != plan.digest}
    shards_of_runs = {of_others[row.spool_id]: row.group.shard for row in finished_rows if row.spool_id in of_others}
    if shards_of_runs:
        facts = list_plan_facts(request, plan) | {"command_line": request.invocation.masked_command}
        request.sender.take_over(shards_of_runs, facts)


def list_plan_facts(request: StudyRequest, plan: Plan) -> dict[str, str]:
    """Return the facts about the plan that each of its runs records."""
    goal = {} if plan.goal is None else {"precision_goal_pct": f"{plan.goal.pct:g}"}
    return goal | {
        "plan": plan.digest,
        "plan_groups": str(plan.num_planned),
        "plan_any_gpu": plan.any_gpu_digest,
        "plan_models": str(request.config.gpu.models),
        "plan_shards": overview.format_sizes(plan.shard_sizes),
    }


def _find_remaining(
    request: StudyRequest, plan: Plan, finished: Sequence[GroupRecord]
) -> tuple[tuple[Group, ...], list[GroupResult]]:
    accepts = request.config.resume == Resume.ACCEPT_ENVIRONMENT
    return resume.select_remaining(plan, finished, gpus=request.gpus, accept_environment=accepts)


def show_all(request: StudyRequest, plans: Sequence[Plan]) -> bool:
    """Print the stored results of plans that workers ran; return whether each group of the plans has a finding."""
    assert request.sender is not None
    experiment = plans[0].experiment
    try:
        finished = request.sender.find_finished(experiment, None)
    except TrackingError as error:
        words.say(
            f"error: {error}; unsent groups wait in the spool; to continue: {request.invocation.masked_resume_command}"
        )
        return False
    if request.config.resume == Resume.NO:
        finished = [group for group in finished if group.start_ms >= request.begin_ms]
    rows, num_left = [], 0
    comparison = Comparison()
    for plan in plans:
        remaining, finished_rows = _find_remaining(request, plan, finished)
        num_left += len(remaining)
        rows += [*finished_rows, *resume.select_latest(remaining, finished)]
    for row in rows:
        comparison.add(row)
    if rows:
        summary.show(experiment, [comparison.get_latest(row) for row in rows], request.invocation)
        summary.show_where(experiment, request.config.tracking, request.sender, request.root)
    if num_left:
        all_groups = format_count(sum(len(plan.groups) for plan in plans), "group")
        pronoun = "it" if num_left == 1 else "them"
        words.say(
            f"{num_left} of {all_groups} without a result; to run {pronoun}: {request.invocation.masked_resume_command}"
        )
    return not num_left


# Most groups that are compared, because each comparison reads a run with its artifacts.
_MOST_COMPARED = 4


def explain_unused_results(
    plan: Plan,
    groups: Sequence[Group],
    finished: Sequence[GroupRecord],
    inventory: Inventory,
    recall: Callable[[str], Original],
) -> list[str]:
    """Return lines with the number of results of other plans, and the changes since the newest; none without results.

    `groups` are the groups to run; `recall` reads the group of a run.
    """
    results = resume.find_unused(plan, groups, finished)
    if not results:
        return []
    lines = [
        f"resume: {format_count(len(results), 'result')} of another plan in experiment {plan.experiment!r} not used; "
        "to separate studies, set tracking.experiment=NAME"
    ]
    newest = {(group.name, group.block): group for group in reversed(results)}
    compared: set[str] = set()
    changes: dict[str, Group] = {}
    for group in groups:
        programs = {job.workload.digest for job in group.jobs}
        before = newest.get((group.name, group.block))
        if before is None or compared.issuperset(programs) or len(compared) >= _MOST_COMPARED:
            continue
        compared.update(programs)
        try:
            found_changes = differences.find_result_changes(recall(before.run_id), group, inventory)
        except (TrackingError, ConfigError) as error:
            return [*lines, f"    changes unknown: {error}"]
        for line in found_changes:
            changes.setdefault(line, group)
    lines += [f"    changed since {group.name}: {line}" for line, group in changes.items()]
    by_program = {group.program_digest for group in groups}
    if num := sum(group.program_digest in by_program for group in newest.values()):
        pronoun = "it" if num == 1 else "them"
        lines.append(f"resume: {num} of these differ only in the environment; resume=accept_environment uses {pronoun}")
    return lines
