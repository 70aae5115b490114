"""Conversion of configurations to a `Plan`, an immutable object. Pure: nothing here accesses the machine.

A sweep is one study: in each block, a group or serial baseline that several configurations need runs only once. A
repeat is a complete block of all groups, in a separate random order.
"""

from __future__ import annotations

import dataclasses
import difflib
import random
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from pipeline.base.domain.records import Group, Plan
from pipeline.base.system.errors import ConfigError
from pipeline.plan import automatic_repeats, setting_checks, shards
from pipeline.plan.arrival_sequences import number_sequences
from pipeline.plan.config_schema import Config, Order, ShardOf
from pipeline.plan.groups import make_digest, make_groups, name_groups
from pipeline.plan.inventory import Inventory
from pipeline.plan.launches import group_by_launch, join_cases


def build_plan(configs: Sequence[Config], inventory: Inventory, *, is_sweep: bool) -> Plan:
    """Build the plan of a study, with all groups in their order, from one configuration per combination.

    `is_sweep` adds serial baselines with `baseline=auto`. Raise `ConfigError` for settings that cannot run.
    """
    blocks: dict[int, dict[str, Group]] = {}
    notes: list[str] = []
    for config in configs:
        setting_checks.refuse_settings(config)
        groups = make_groups(config, inventory, notes, is_sweep=is_sweep)
        for block in range(1, automatic_repeats.count_blocks(config) + 1):
            for group, run in _list_runs(groups, config.baseline_runs):
                numbers = (block,) if run == 1 else (block, run)
                placed = dataclasses.replace(
                    group,
                    block=block,
                    run=run,
                    jobs=number_sequences(group.jobs, block),
                    digest=make_digest(group.key, *numbers),
                    any_gpu_digest=make_digest(group.any_gpu_digest, *numbers),
                    program_digest=make_digest(group.program_digest, *numbers),
                )
                same = blocks.setdefault(block, {}).setdefault(placed.digest, placed)
                _refuse_same_digest(same, placed)
    first = configs[0]
    ordered: list[Group] = []
    for block, by_digest in sorted(blocks.items()):
        launches = group_by_launch(list(by_digest.values()))
        if first.order is Order.random:
            random.Random(f"{first.seed}-{block}").shuffle(launches)  # noqa: S311  an order, not a secret
            launches = join_cases(launches)
        ordered += chain.from_iterable(launches)
    by_case = first.shard_of is ShardOf.case
    chosen = shards.number_shards(select_named(name_groups(ordered), first.only), by_case=by_case)
    numbered = tuple(dataclasses.replace(group, number=n) for n, group in enumerate(chosen, start=1))
    return Plan(
        experiment=first.tracking.experiment,
        groups=numbered,
        devices=tuple(dict.fromkeys(group.device for group in numbered)),
        notes=tuple(dict.fromkeys(notes)),
        goal=automatic_repeats.make_goal(configs, numbered),
        **_identify(numbered),
    )


def cut_plan(plan: Plan, num_blocks: int) -> Plan:
    """Return the plan of the first blocks, which equals the plan of a study with this number of repeats."""
    groups = tuple(group for group in plan.groups if group.block <= num_blocks)
    return dataclasses.replace(plan, groups=groups, goal=None, **_identify(groups))


def _identify(groups: Sequence[Group]) -> dict[str, Any]:
    how = ["by case"] if any(group.case for group in groups) else []
    return {
        "digest": make_digest([group.digest for group in groups], *how),
        "any_gpu_digest": make_digest([group.any_gpu_digest for group in groups], *how),
        "shard_sizes": tuple(len(members) for members in shards.group_by_shard(groups).values()),
    }


def _list_runs(groups: Sequence[Group], baseline_runs: int) -> Iterator[tuple[Group, int]]:
    """Yield each group with the number of each of its runs in a block: several runs only of a job alone."""
    for group in groups:
        is_solo = group.sequential and len(group.jobs) == 1
        yield from ((group, run) for run in range(1, 1 + (baseline_runs if is_solo else 1)))


def select_named(groups: Sequence[Group], names: Sequence[str] | None) -> list[Group]:
    """Select the named groups and the baselines of their jobs; `None` selects all groups.

    Raises:
        ConfigError: `names` is empty or contains an unknown name.
    """
    if names is None:
        return list(groups)
    known = list(dict.fromkeys(group.name for group in groups))
    if not names:
        raise ConfigError(f"only=[] names no group; add a name, as in only=[{known[0]}]")
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3, cutoff=0.3) or known[:3]
            raise ConfigError(f"only={name} is not a group of the plan; choose a group, such as {', '.join(near)}")
    chosen = [(_list_digests(group), group.shared_settings) for group in groups if group.name in names]

    def is_baseline(group: Group) -> bool:
        workloads = _list_digests(group)  # of one job alone or several in turn
        alike = [jobs for jobs, settings in chosen if settings == group.shared_settings]
        return group.sequential and any(
            workloads == jobs or (len(workloads) == 1 and workloads[0] in jobs) for jobs in alike
        )

    return [group for group in groups if group.name in names or is_baseline(group)]


def _list_digests(group: Group) -> tuple[str, ...]:
    return tuple(job.workload.digest for job in group.measured)


def _refuse_same_digest(group: Group, again: Group) -> None:
    words = {"jobs": "paths", "device": "the GPU", "profiler": "the profiler's path", "sharing": "a program's path"}
    names = [field.name for field in dataclasses.fields(Group) if field.compare]
    if differing := [words.get(name, name) for name in names if getattr(group, name) != getattr(again, name)]:
        raise ConfigError(
            "two combinations of the sweep have the same digest, because they differ only in "
            f"{' and '.join(differing)} (group {name_groups([group])[0].name}); run two studies, each with its own "
            "tracking.experiment=NAME"
        )
