"""Feasibility of a plan: its classes are built and their checks are called; nothing is changed."""

from __future__ import annotations

import dataclasses

from pipeline.base.domain import idle_measurements
from pipeline.base.domain.protocols import Profiler, Sharing
from pipeline.base.domain.records import Group, Plan
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.factory import build_object


def check_plan(plan: Plan) -> Plan:
    """Check a plan: build each of its classes once and refuse settings that cannot run.

    A group that its sharing mode or environment cannot run is marked as skipped, with the reason, because this is a
    finding of the study. If no other group can run, the plan is refused. Each warning of a sharing mode appears once.
    """
    for listener in dict.fromkeys(spec for group in plan.groups for spec in group.listeners):
        build_object(listener.build, interval_ms=listener.interval_ms)
    groups: list[Group] = []
    warnings: dict[str, None] = {}
    refusal: ConfigError | None = None
    for group in plan.groups:
        profiler: Profiler = build_object(group.profiler.build)
        profiler.check(group)
        sharing: Sharing = build_object(group.sharing)
        try:
            planned = dataclasses.replace(group, layout=_check_group(sharing, group))
        except ConfigError as error:
            refusal = error
            groups.append(dataclasses.replace(group, skip_reason=str(error)))
            continue
        groups.append(planned)
        if group.block == 1:
            warnings.update(dict.fromkeys(sharing.warnings(planned)))
    if refusal is not None and all(group.skip_reason or group.sequential for group in groups):
        raise refusal  # a study of baselines alone compares nothing
    notes = (*plan.notes, *filter(None, [idle_measurements.describe(groups)]))
    return dataclasses.replace(plan, groups=tuple(groups), notes=notes, warnings=tuple(warnings))


def _check_group(sharing: Sharing, group: Group) -> object:
    if group.skip_reason is not None:
        raise ConfigError(group.skip_reason)
    return sharing.check(group)
