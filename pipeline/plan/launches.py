"""Launches: groups of a block that the same processes run and measure in turns (`WindowKind.INTERLEAVED`)."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

from pipeline.base.domain.records import Group
from pipeline.base.domain.window import WindowKind
from pipeline.base.system.grouping import group_by
from pipeline.plan.config_schema import Config
from pipeline.plan.workload_config import WorkloadConfig

_SHARED = ("serial", "naive", "mps", "streams")
"""Sharing modes in which the other jobs can use the share of a paused job."""


def explain_separate(config: Config, workloads: Iterable[WorkloadConfig]) -> str:
    """Return why groups of a configuration cannot be interleaved; empty if they can be interleaved."""
    if config.scenario.name not in _SHARED:
        return f"scenario={config.scenario.name} fixes each job's share of the GPU at its start"
    if config.mix is not None:
        return "the jobs of a mix run in no other group"
    if config.co_runners:
        return "co-runners cannot be paused"
    if config.pin_cpus:
        return "pin_cpus=true divides the CPUs among all launched jobs"
    if config.profiler.name != "none":
        return f"profiler={config.profiler.name} profiles jobs from start to end"
    for workload in workloads:
        if reason := workload.explain_own_launch():
            return f"workload {workload.name}: {reason}"
    return ""


def group_by_launch(groups: Sequence[Group]) -> list[list[Group]]:
    """Return the groups of each launch, those with most jobs first; launches keep the order of their first groups."""
    launches = []
    for members in group_by(groups, _make_key).values():
        in_order = sorted(members, key=lambda group: -len(group.jobs))
        launch = in_order[0].digest if in_order[0].window.kind is WindowKind.INTERLEAVED else ""
        launches.append([dataclasses.replace(group, launch=launch) for group in in_order])
    return launches


def join_cases(launches: Sequence[list[Group]]) -> list[list[Group]]:
    """Return the launches with interleaved ones of the same program side by side, so that the host drifts little."""

    def identify(launch: list[Group]) -> str:
        return launch[0].jobs[0].workload.digest if launch[0].launch else launch[0].digest

    return list(itertools.chain(*group_by(launches, identify).values()))


def split_by_launch(groups: Iterable[Group]) -> list[list[Group]]:
    """Split the groups of a plan by launch, in the order of the plan."""
    return [list(members) for _, members in itertools.groupby(groups, lambda group: group.launch or group.digest)]


def _make_key(group: Group) -> tuple[str, ...]:
    if group.window.kind is not WindowKind.INTERLEAVED or group.skip_reason is not None:
        return (group.digest,)
    # One job without MPS is launched by itself: while other contexts wait, its CUDA graph runs 5 % faster (measured).
    is_alone = len(group.jobs) == 1 and group.scenario not in ("mps", "streams")
    mode = "serial" if is_alone else group.scenario
    return (mode, str(group.run), group.jobs[0].workload.digest, *group.settings.values(), str(group.options))
