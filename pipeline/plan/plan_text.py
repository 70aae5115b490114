"""A plan as text or JSON, with the commands that change GPU settings; SharingError if their program is missing."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence

from pipeline.base.domain.precision_goal import MIN_BLOCKS, PrecisionGoal
from pipeline.base.domain.protocols import Profiler, Sharing
from pipeline.base.domain.records import CO_RUNNERS, Commands, Group, Plan
from pipeline.base.system.factory import build_object
from pipeline.base.system.words import format_count


def format_plan(plan: Plan) -> str:
    """Format a plan: warnings, one line for each group, notes, and the commands that change GPU settings."""
    devices = ", ".join(
        f"{'simulated ' if device.is_simulated else ''}{device.name} ({device.uuid})" for device in plan.devices
    )
    lines = list_warnings(plan)
    windows = {group.window.text for group in plan.groups}
    most = "" if plan.goal is None else "at most "
    window = "".join(f", {window}" for window in windows if len(windows) == 1)
    lines.append(f"{most}{format_count(len(plan.groups), 'group')} on {devices}{window}, plan {plan.digest[:12]}")
    names = [f"{group.display_name} run {group.run}" if group.run > 1 else group.display_name for group in plan.groups]
    width = max(map(len, names), default=0)
    several = len({device.name for device in plan.devices}) > 1
    for name, group in zip(names, plan.groups, strict=True):
        device = f"  {group.device.name}" if several else ""
        skip = f"  skipped: {group.skip_reason}" if group.skip_reason else ""
        shard = f"shard {group.shard}  " if group.case else ""
        window = f"{group.window.text:{max(map(len, windows))}s}  " if len(windows) > 1 else ""
        columns = f"{group.group_number:>5s}  block {group.block}  {shard}{name:{width}s}  {window}"
        lines.append(f"{columns}{group.digest[:12]}{device}{skip}")
    return "\n".join([*lines, *explain_numbers(plan.groups), *list_notes(plan), *list_commands(plan)])


def explain_numbers(groups: Sequence[Group]) -> list[str]:
    """Return a line with an example of the numbers of groups for `only`; none without two groups of a plan."""
    first, *following = dict.fromkeys(group.selector for group in groups) or [""]
    return [f"to run some of these groups, add only={first}+{following[0].partition(':')[2]}"] if following else []


def export_plan(
    plan: Plan, seconds: Mapping[int, float], memory_mib: Mapping[int, float] | None = None
) -> dict[str, object]:
    """Return a plan as JSON values, with the estimated seconds and memory of each group that has them, by number."""
    return {
        "experiment": plan.experiment,
        "precision_goal": None if plan.goal is None else dataclasses.asdict(plan.goal),
        "plan": plan.digest,
        "devices": [{"name": d.name, "uuid": d.uuid, "is_simulated": d.is_simulated} for d in plan.devices],
        "groups": [
            {
                "number": group.number,
                "block": group.block,
                "run": group.run,
                "shard": group.shard,
                "only": group.selector,
                "name": group.name,
                "scenario": group.scenario,
                "jobs": [job.size or job.workload.name for job in group.measured],
                "co_runners": group.settings[CO_RUNNERS],
                "window": group.window.text,
                "device": group.device.uuid,
                "digest": group.digest,
                "skip_reason": group.skip_reason,
                "seconds": seconds.get(group.number),
                "memory_mib": (memory_mib or {}).get(group.number),
            }
            for group in plan.groups
        ],
        "notes": plan.notes,
        "warnings": plan.warnings,
        "commands": [
            {"groups": [group.number for group in groups], "do": commands.do, "undo": commands.undo}
            for commands, groups in _sort_by_commands(plan).items()
        ],
    }


def list_warnings(plan: Plan) -> list[str]:
    """Return the warnings of a plan, one per line."""
    return [f"warning: {warning}" for warning in plan.warnings]


def list_notes(plan: Plan) -> list[str]:
    """Return the notes of a plan, one per line."""
    goal = [] if plan.goal is None else [f"note: {_describe_goal(plan.goal)}"]
    return [*goal, *(f"note: {note}" for note in plan.notes)]


def _describe_goal(goal: PrecisionGoal) -> str:
    return (
        f"repeats=auto: {MIN_BLOCKS} to {goal.max_blocks} blocks, until the interval of every speed-up over serial is "
        f"at most {goal.text} wide to each side"
    )


def list_commands(plan: Plan) -> list[str]:
    """Format the commands that change GPU settings, once for all groups with the same commands."""
    lines = []
    for commands, groups in _sort_by_commands(plan).items():
        numbers = dict.fromkeys(group.group_number for group in groups)
        lines.append(f"GPU settings are changed and restored by group {', '.join(numbers)}:")
        lines += [f"    {shlex.join(command)}" for command in (*commands.do, *commands.undo)]
    return lines or ["no GPU settings are changed"]


def _sort_by_commands(plan: Plan) -> dict[Commands, list[Group]]:
    groups_by_commands: dict[Commands, list[Group]] = {}
    for group in plan.groups:
        if group.skip_reason is None:
            sharing: Sharing = build_object(group.sharing)
            profiler: Profiler = build_object(group.profiler.build)
            commands = profiler.list_setting_commands(group).around(sharing.list_setting_commands(group))
            groups_by_commands.setdefault(commands, []).append(group)
    groups_by_commands.pop(Commands(), None)
    return groups_by_commands
