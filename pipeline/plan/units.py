"""The units of a plan: what one worker runs on one GPU, so that many GPUs can share a study. Pure.

A unit is a block: every comparison is made within one, so no ratio is ever taken across GPUs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from pipeline.base.errors import ConfigError
from pipeline.base.records import Group, Plan
from pipeline.base.words import counted


def of(groups: Sequence[Group]) -> Mapping[int, Sequence[Group]]:
    """The groups of each unit, by its number, in the order of the plan."""
    found: dict[int, list[Group]] = {}
    for group in groups:
        found.setdefault(group.block, []).append(group)
    return found


def only(plan: Plan, number: int | None) -> Plan:
    """The plan with one unit of it left, or whole if none is asked for; the digest stays that of the whole.

    Raises:
        ConfigError: it has no such unit.
    """
    if number is None:
        return plan
    units = of(plan.groups)
    if number not in units:
        raise ConfigError(
            f"unit={number}: the plan has {counted(len(units), 'unit')}, numbered from 1; choose one of them"
        )
    groups = tuple(units[number])
    return dataclasses.replace(plan, groups=groups, devices=tuple(dict.fromkeys(group.device for group in groups)))
