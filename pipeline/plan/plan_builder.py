"""Conversion of configurations to a `Plan`, an immutable object. Pure: nothing here accesses the machine.

A sweep is one study: in each block, a group or serial baseline that several configurations need runs only once. A
repeat is a complete block of all groups, in a separate random order. With `repeats=auto`, the number of blocks follows
from the precision goal.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from pipeline.base.domain import idle_measurements
from pipeline.base.domain.precision_goal import PrecisionGoal
from pipeline.base.domain.protocols import Profiler, Sharing
from pipeline.base.domain.records import DEVICE, Group, Job, Plan
from pipeline.base.domain.window import WindowKind
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.factory import build_object
from pipeline.base.system.words import group_by
from pipeline.plan import config_reader, shards
from pipeline.plan.config_schema import AUTO_REPEATS, Config, Order, ShardOf
from pipeline.plan.groups import make_digest, make_groups, name_groups
from pipeline.plan.inventory import Inventory

_PLAN_DIGITS = 6
_NUMBERS = re.compile(r"([0-9a-f]{6}:)?\d+(\+\d+)*")
"""The groups of a plan by number; a shell, a sweep (`-m`) and Hydra read it without quotes."""


def build_plan(configs: Sequence[Config], inventory: Inventory, *, is_sweep: bool) -> Plan:
    """Build the plan of a study, with all groups in their order, from one configuration per combination.

    `is_sweep` adds serial baselines with `baseline=auto`. Raise `ConfigError` for settings that cannot run.
    """
    blocks: dict[int, dict[str, Group]] = {}
    notes: list[str] = []
    for config in configs:
        config_reader.refuse_settings(config)
        groups = make_groups(config, inventory, notes, is_sweep=is_sweep)
        for block in range(1, count_blocks(config) + 1):
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
        if first.advise_minutes and block == 1:  # one job more after another, which need the memory of one alone
            launches.sort(key=_rank_of_search)
        elif first.order is Order.random:
            random.Random(f"{first.seed}-{block}").shuffle(launches)  # noqa: S311  an order, not a secret
            launches = join_cases(launches)
        ordered += chain.from_iterable(launches)
    by_case = first.shard_of is ShardOf.case
    named = name_groups(number_groups(ordered, blocks[1].values()))
    selected = shards.number_shards(select_groups(named, first.only), by_case=by_case)
    numbered = tuple(dataclasses.replace(group, number=n) for n, group in enumerate(selected, start=1))
    if first.pack.trials is not None:
        num_parts = len({config.pack.part for config in configs})
        if len(numbered) != num_parts:
            raise ConfigError(
                f"pack.trials={first.pack.trials} is one group, not {len(numbered)}; remove sweeps, repeats and "
                "baseline"
            )
        numbered = tuple(dataclasses.replace(group, shard=group.number) for group in numbered)
    if first.advise_minutes and not select_compared(numbered):
        raise ConfigError(
            "advise_minutes needs groups with a speed-up over one job alone, but every group is serial, has no "
            "baseline, has co-runners or a set rate, or is skipped; remove these settings"
        )
    return Plan(
        experiment=first.tracking.experiment,
        groups=numbered,
        devices=tuple(dict.fromkeys(group.device for group in numbered)),
        notes=tuple(dict.fromkeys(notes)),
        goal=make_goal(configs, numbered),
        **_identify(numbered),
    )


def _rank_of_search(launch: Sequence[Group]) -> tuple[bool, int]:
    """Rank the launches of a search: the job alone, then few jobs in every mode before more jobs in any.

    Launches that measure several numbers of jobs stay in the order of their modes.
    """
    first = launch[0]
    return not first.sequential, 0 if first.launch else len(first.jobs)


def cut_plan(plan: Plan, is_kept: Callable[[Group], bool]) -> Plan:
    """Return the plan of some of the groups; of the first blocks, it equals the plan with this number of repeats."""
    groups = tuple(filter(is_kept, plan.groups))
    return dataclasses.replace(plan, groups=groups, goal=None, **_identify(groups))


def _identify(groups: Sequence[Group]) -> dict[str, Any]:
    order = ["by case"] if any(group.case for group in groups) else []
    return {
        "digest": make_digest([group.digest for group in groups], *order),
        "any_gpu_digest": make_digest([group.any_gpu_digest for group in groups], *order),
        "shard_sizes": tuple(len(members) for members in shards.group_by_shard(groups).values()),
    }


def _list_runs(groups: Sequence[Group], baseline_runs: int) -> Iterator[tuple[Group, int]]:
    """Yield each group with the number of each of its runs in a block: several runs only of a job alone."""
    for group in groups:
        is_solo = group.sequential and len(group.jobs) == 1
        yield from ((group, run) for run in range(1, 1 + (baseline_runs if is_solo else 1)))


def number_groups(groups: Sequence[Group], first_block: Iterable[Group]) -> list[Group]:
    """Set the selector of each group; numbers follow the order of the configuration and are equal in all blocks.

    The digest beside the numbers covers the groups, but not their repeats and order, the GPU model and the packages.
    """
    facts: dict[str, object] = {}
    for group in first_block:
        settings = {name: text for name, text in group.settings.items() if name != DEVICE}
        facts[group.key] = group.scenario, _list_programs(group), settings, group.options
    plan = make_digest(list(facts.values()))[:_PLAN_DIGITS]
    selectors = {key: f"{plan}:{number}" for number, key in enumerate(facts, start=1)}
    return [dataclasses.replace(group, selector=selectors[group.key]) for group in groups]


def select_groups(groups: Sequence[Group], only: Any) -> list[Group]:
    """Select groups by names or by `PLAN:NUMBER+NUMBER`, and the baselines of their jobs; `None` selects all groups.

    Raises:
        ConfigError: `only` is empty, has an unknown name or number, or its numbers are of another plan.
    """
    if only is None:
        return list(groups)
    selectors = {group.selector: group.name for group in groups}
    available = {name: group.name for group in groups for name in (group.name, group.display_name)}
    words = list(map(str, only if isinstance(only, list) else [only]))
    names = set[str]()
    for word in words:
        if _NUMBERS.fullmatch(word):
            names.update(_find_numbered(word, selectors))
        elif word in available:
            names.add(available[word])
        else:
            near = difflib.get_close_matches(word, available, n=3, cutoff=0.3) or list(available)[:3]
            raise ConfigError(f"only={word} is not a group of the plan; choose a group, such as {', '.join(near)}")
    if not names:
        raise ConfigError(f"only=[] names no group; write only={next(iter(selectors))}")
    selected = [(_list_digests(group), group.shared_settings) for group in groups if group.name in names]

    def is_baseline(group: Group) -> bool:
        workloads = _list_digests(group)  # of one job alone or several in turn
        alike = [jobs for jobs, settings in selected if settings == group.shared_settings]
        return group.sequential and any(
            workloads == jobs or (len(workloads) == 1 and workloads[0] in jobs) for jobs in alike
        )

    return [group for group in groups if group.name in names or is_baseline(group)]


def _find_numbered(word: str, names: Mapping[str, str]) -> Iterator[str]:
    """Yield the names of the groups with these numbers; `names` has the names by selector."""
    plan = next(iter(names)).partition(":")[0]
    prefix, _, numbers = word.rpartition(":")
    if prefix != plan:
        raise ConfigError(
            f"only={word} has no numbers of this plan, {plan}; see them with dry_run=true, and write only={plan}:NUMBER"
        )
    for number in numbers.split("+"):
        if f"{plan}:{number}" not in names:
            raise ConfigError(f"only={word}: the plan has no group {number}; choose from 1 to {len(names)}")
        yield names[f"{plan}:{number}"]


def _list_programs(group: Group) -> list[str]:
    return [job.workload.program_digest for job in group.jobs]


def _list_digests(group: Group) -> tuple[str, ...]:
    return tuple(job.workload.digest for job in group.measured)


def _refuse_same_digest(group: Group, duplicate: Group) -> None:
    words = {"jobs": "paths", "device": "the GPU", "profiler": "the profiler's path", "sharing": "a program's path"}
    names = [field.name for field in dataclasses.fields(Group) if field.compare]
    if differing := [words.get(name, name) for name in names if getattr(group, name) != getattr(duplicate, name)]:
        raise ConfigError(
            "two combinations of the sweep have the same digest, because they differ only in "
            f"{' and '.join(differing)} (group {name_groups([group])[0].name}); run two studies, each with its own "
            "tracking.experiment=NAME"
        )


def number_sequences(jobs: Sequence[Job], block: int) -> tuple[Job, ...]:
    """Give each copy of a workload another arrival sequence.

    A job alone has sequence 0. Of several copies, another one has sequence 0 in each block, so that over the blocks
    every copy is compared with the run alone. Co-runners follow the measured copies.
    """
    measured = Counter(job.workload.digest for job in jobs if not job.is_co_runner)
    before = Counter[str]()
    numbered = []
    for job in jobs:
        digest = job.workload.digest
        copies = measured[digest]
        number = before[digest] if job.is_co_runner else (before[digest] + block - 1) % copies
        numbered.append(dataclasses.replace(job, arrivals=number))
        before[digest] += 1
    return tuple(numbered)


def count_blocks(config: Config) -> int:
    """Return the number of blocks of a configuration; with `repeats=auto`, the largest number."""
    return config.repeats_max if config.repeats == AUTO_REPEATS else int(config.repeats)


def make_goal(configs: Sequence[Config], groups: Sequence[Group]) -> PrecisionGoal | None:
    """Return the precision goal of a study; `None` if its number of blocks is fixed.

    Raises:
        ConfigError: only some configurations have `repeats=auto`, or no group has a speed-up.
    """
    fixed = [config.repeats for config in configs if config.repeats != AUTO_REPEATS]
    if len(fixed) == len(configs):
        return None
    if fixed:
        raise ConfigError(f"repeats={fixed[0]} conflicts with repeats=auto in the same study; set repeats to one value")
    if not select_compared(groups):
        raise ConfigError(
            "repeats=auto needs a group with a speed-up, but every group is serial, has no baseline, has co-runners "
            "or a set rate, or is skipped; set repeats=NUMBER"
        )
    return PrecisionGoal(pct=configs[0].precision_goal_pct, max_blocks=configs[0].repeats_max)


def select_compared(groups: Sequence[Group]) -> list[Group]:
    """Select the groups of the first block that can have a speed-up over their serial baseline."""
    first = [group for group in groups if group.block == 1 and group.skip_reason is None]
    baselines = {key for group in first if group.sequential for key in _list_baseline_keys(group)}
    return [
        group
        for group in first
        if not group.sequential
        and not group.has_co_runners
        and not any(job.workload.is_rate_given for job in group.jobs)
        and baselines.issuperset(_list_baseline_keys(group))
    ]


def _list_baseline_keys(group: Group) -> list[tuple[object, ...]]:
    """Return the key that each job shares with its runs alone."""
    settings = tuple(sorted(group.shared_settings.items()))
    return [(job.workload.digest, settings, group.profiler) for job in group.measured]


def group_by_launch(groups: Sequence[Group]) -> list[list[Group]]:
    """Return the groups of each launch, those with most jobs first; launches keep the order of their first groups."""
    launches = []
    for members in group_by(groups, _make_launch_key).values():
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


def _make_launch_key(group: Group) -> tuple[str, ...]:
    if group.window.kind is not WindowKind.INTERLEAVED or group.skip_reason is not None:
        return (group.digest,)
    # One job without MPS is launched by itself: while other contexts wait, its CUDA graph runs 5 % faster (measured).
    is_alone = len(group.jobs) == 1 and group.scenario not in ("mps", "streams")
    mode = "serial" if is_alone else group.scenario
    return (mode, str(group.run), group.jobs[0].workload.digest, *group.settings.values(), str(group.options))


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
