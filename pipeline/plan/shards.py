"""The shards of a plan, which workers on several GPUs run in parallel. Pure.

A shard is a block or one case of a block: all groups that have a program in common, directly or through other groups.
Groups that are compared with the same baselines are thus in one shard, and no ratio is computed across GPUs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from pipeline.base.domain.records import Group, Plan
from pipeline.base.system.errors import ConfigError


def number_shards(groups: Sequence[Group], *, by_case: bool) -> tuple[Group, ...]:
    """Assign a shard number to each group of a plan."""
    if not by_case:
        return tuple(dataclasses.replace(group, shard=group.block) for group in groups)
    cases = _number_cases(groups)
    places = [(group.block, cases[group.jobs[0].workload.digest]) for group in groups]
    numbers = {place: number for number, place in enumerate(sorted(set(places)), start=1)}  # a block may lack cases
    return tuple(
        dataclasses.replace(group, shard=numbers[place], case=place[1])
        for group, place in zip(groups, places, strict=True)
    )


def group_by_shard(groups: Sequence[Group]) -> Mapping[int, Sequence[Group]]:
    """Return the groups of each shard, by its number, in the order of the plan."""
    groups_by_shard: dict[int, list[Group]] = {number: [] for number in sorted({group.shard for group in groups})}
    for group in groups:
        groups_by_shard[group.shard].append(group)
    return groups_by_shard


def select_shard(plan: Plan, number: int | None) -> Plan:
    """Reduce a plan to one shard, with the digest of the whole plan; without a number, return the plan unchanged.

    Raises:
        ConfigError: the plan does not have the shard.
    """
    if number is None:
        return plan
    shards = group_by_shard(plan.groups)
    if number not in shards:
        raise ConfigError(f"shard={number} does not exist in this plan; choose a shard from 1 to {len(shards)}")
    groups = tuple(shards[number])
    return dataclasses.replace(plan, groups=groups, devices=tuple(dict.fromkeys(group.device for group in groups)))


def _number_cases(groups: Sequence[Group]) -> Mapping[str, int]:
    """Return the case number of each program; cases are numbered in the order of their first groups."""
    cases: list[set[str]] = []
    for group in groups:
        programs = {job.workload.digest for job in group.jobs}
        joined = [case for case in cases if case & programs]
        cases = [case for case in cases if not case & programs]
        cases.append(programs.union(*joined))
    first_group = {job.workload.digest: place for place, group in reversed([*enumerate(groups)]) for job in group.jobs}
    in_order = sorted(cases, key=lambda case: min(first_group[program] for program in case))
    return {program: number for number, case in enumerate(in_order, start=1) for program in case}
