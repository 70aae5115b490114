"""Explanations of stored results that a plan does not use."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pipeline.base.domain.records import Group, Plan
from pipeline.base.system.errors import ConfigError, TrackingError
from pipeline.base.system.words import format_count
from pipeline.plan.inventory import Inventory
from pipeline.record import resume
from pipeline.record.group_record import GroupRecord
from pipeline.record.stored_group import Original
from pipeline.study.reproduce import differences

# Most groups that are compared, because each comparison reads a run with its artifacts.
_MOST_COMPARED = 4


def explain(
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
        which = "it" if num == 1 else "them"
        lines.append(f"resume: {num} of these differ only in the environment; resume=accept_environment uses {which}")
    return lines
