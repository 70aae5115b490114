"""From a `_target_` to an object: the plan names classes as `Spec`s, the executor builds them here."""

from __future__ import annotations

import dataclasses
import shlex

from pipeline.errors import ConfigError
from pipeline.factory import instance
from pipeline.protocols import Profiler, Sharing
from pipeline.types import Commands, Plan


def checked(plan: Plan) -> Plan:
    """The plan, with every class that it names built once: what is wrong is refused before anything happens.

    A group that its sharing mode cannot hold is refused if it is alone; among others it is marked to be skipped, with
    the reason, because that is a finding of the study.

    Raises:
        ConfigError: a class or an option is wrong, or no group at all can run.
    """
    for listener in dict.fromkeys(spec for group in plan.groups for spec in group.listeners):
        instance(listener.build, interval_ms=listener.interval_ms)
    for group in plan.groups:
        profiler: Profiler = instance(group.profiler.build)
        profiler.check(group)
    groups = []
    refusal: ConfigError | None = None
    for group in plan.groups:
        sharing: Sharing = instance(group.sharing)
        try:
            sharing.check(group)
        except ConfigError as error:
            refusal = error
            groups.append(dataclasses.replace(group, skip_reason=str(error)))
        else:
            groups.append(group)
    if refusal is not None and all(group.skip_reason or group.sequential for group in groups):
        raise refusal  # baselines alone would answer nothing
    return dataclasses.replace(plan, groups=tuple(groups))


def describe_privileged(plan: Plan) -> str:
    """The commands that change settings of a GPU, as text: once for all groups that use the same ones.

    Raises:
        SharingError: a program that they need is not there.
    """
    groups_by_commands: dict[Commands, list[int]] = {}
    for group in plan.groups:
        if group.skip_reason is None:
            sharing: Sharing = instance(group.sharing)
            profiler: Profiler = instance(group.profiler.build)
            commands = profiler.privileged(group).around(sharing.privileged(group))
            groups_by_commands.setdefault(commands, []).append(group.number)
    groups_by_commands.pop(Commands(), None)
    if not groups_by_commands:
        return "no command changes the settings of a GPU"
    lines = []
    for commands, numbers in groups_by_commands.items():
        lines.append(f"settings of the GPU are changed, and put back, by group {', '.join(map(str, numbers))}:")
        lines += [f"    {shlex.join(command)}" for command in (*commands.do, *commands.undo)]
    return "\n".join(lines)
