"""From configurations to a `Plan`: pure, frozen, printable. Nothing here touches the machine.

A sweep is one study: groups that several configurations ask for run once a block, each serial baseline once a block,
and a repeat is a complete block of all groups in an order of its own.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Sequence

from pipeline.base.errors import ConfigError
from pipeline.base.records import Group, Plan
from pipeline.plan import check, units
from pipeline.plan.groups import digest_of, groups_of, named
from pipeline.plan.inventory import Inventory
from pipeline.plan.schema import Config, Order


def build_plan(configs: Sequence[Config], inventory: Inventory, *, is_sweep: bool) -> Plan:
    """The plan of a study, from one configuration a combination: every group, in the order in which it will run.

    `is_sweep` adds serial baselines where `baseline` is `auto`. What cannot be run is a ConfigError.
    """
    blocks: dict[int, dict[str, Group]] = {}
    notes: list[str] = []
    for config in configs:
        check.settings(config)
        groups = groups_of(config, inventory, notes, is_sweep=is_sweep)
        for block in range(1, config.repeats + 1):
            for group in groups:
                placed = dataclasses.replace(
                    group,
                    block=block,
                    digest=digest_of(group.key, block),
                    program_digest=digest_of(group.program_digest, block),
                )
                same = blocks.setdefault(block, {}).setdefault(placed.digest, placed)
                _refuse_other(same, placed)
    first = configs[0]
    ordered: list[Group] = []
    for block, by_digest in sorted(blocks.items()):
        members = list(by_digest.values())
        if first.order is Order.random:
            random.Random(f"{first.seed}-{block}").shuffle(members)  # noqa: S311  an order, not a secret
        ordered += members
    numbered = tuple(dataclasses.replace(group, number=n) for n, group in enumerate(named(ordered), start=1))
    return Plan(
        experiment=first.tracking.experiment,
        groups=numbered,
        devices=tuple(dict.fromkeys(group.device for group in numbered)),
        digest=digest_of([group.digest for group in numbered]),
        unit_sizes=tuple(len(groups) for groups in units.of(numbered).values()),
        notes=tuple(dict.fromkeys(notes)),
    )


def _refuse_other(group: Group, again: Group) -> None:
    """Reject sweep variants that differ but share a digest."""
    words = {"jobs": "paths", "device": "the GPU", "profiler": "the profiler's place", "sharing": "a program's place"}
    names = [field.name for field in dataclasses.fields(Group) if field.compare]
    if differing := [words.get(name, name) for name in names if getattr(group, name) != getattr(again, name)]:
        raise ConfigError(
            f"two combinations of the sweep differ only in {' and '.join(differing)} ({named([group])[0].name}), which "
            "does not tell their results apart; run them as two studies, with tracking.experiment=NAME for each"
        )
