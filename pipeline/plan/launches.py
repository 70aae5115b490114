"""Launches: which groups of a block are measured by the same processes, in turns (`WindowKind.INTERLEAVED`)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

from pipeline.base.domain.records import Group, WindowKind
from pipeline.base.system.grouping import group_by
from pipeline.plan.config_schema import Config
from pipeline.plan.workload_config import WorkloadConfig

_SHARED = ("serial", "naive", "mps")
"""Sharing modes in which a held job only waits: its share of the GPU is not fixed when it starts."""


def explain_separate(config: Config, workloads: Iterable[WorkloadConfig]) -> str:
    """Return why groups of a configuration cannot be interleaved; empty if they can."""
    if config.scenario.name not in _SHARED:
        return f"scenario={config.scenario.name} fixes what each job gets when it starts"
    if config.mix is not None:
        return "a mix has jobs of its own"
    if config.co_runners:
        return "co-runners are not held"
    if config.pin_cpus:
        return "pin_cpus=true divides the CPUs among the jobs that are launched"
    if config.profiler.name != "none":
        return f"profiler={config.profiler.name} watches whole jobs"
    for workload in workloads:
        if not workload.can_be_held():
            return f"workload {workload.name} cannot be held at a step, or its data loader would go on"
    return ""


def group_by_launch(groups: Sequence[Group]) -> list[list[Group]]:
    """Return the groups of each launch, most jobs first, in the order of their first groups."""
    launches = []
    for members in group_by(groups, _make_key).values():
        in_order = sorted(members, key=lambda group: -len(group.jobs))
        launch = in_order[0].digest if in_order[0].window.kind is WindowKind.INTERLEAVED else ""
        launches.append([dataclasses.replace(group, launch=launch) for group in in_order])
    return launches


def split_by_launch(groups: Iterable[Group]) -> list[list[Group]]:
    """Return the groups of a plan, in its order, launch by launch."""
    return [list(members) for _, members in itertools.groupby(groups, lambda group: group.launch or group.digest)]


def _make_key(group: Group) -> tuple[str, ...]:
    if group.window.kind is not WindowKind.INTERLEAVED or group.skip_reason is not None:
        return (group.digest,)
    mode = "naive" if group.sequential else group.scenario  # one job without MPS is the same in both
    return (mode, group.jobs[0].workload.digest, *group.settings.values(), str(group.options))
