"""The plan on a given number of GPUs with the fewest changes from today's plan, then with the fewest slices.

An instance is kept if its service, GPU, start and configuration stay the same; other instances are removed and created.
Under limits on sharing, the GPUs of a plan are matched with today's GPUs, and the number of changes is not proved.
Without limits, three integer programmes are used, because the complete programme is too slow for a hundred GPUs. The
first programme ignores GPUs and starts: its counts of reused and created instances bound the changes. The second
programme places these instances; if every reused instance keeps its GPU and start, the plan is proved. Otherwise the
third programme, which is the complete one, is solved.

For each set of equal GPUs of today, columns count the GPUs in each layout and the kept instances. Other columns count
the additional GPUs of each partition, and the new instances of each service and kind.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.base.domain.mig_table import find_model_name
from pipeline.planner.deployment import Deployment, Gpu
from pipeline.planner.profile_table import PLANNED_AS
from pipeline.planner.serving import solution, solvers
from pipeline.planner.serving.integer_programme import Programme
from pipeline.planner.serving.problem import WHOLE, KindIndex, Option, Pair, Partition, Problem
from pipeline.planner.serving.solution import FilledGpu, is_enough, judge
from pipeline.prepare.mig import layouts

Slot = tuple[KindIndex, int | None]
"""The position of the kind, and the start; the start is `None` for an undivided GPU."""
# Shares of the remaining time for counting the changes and for placing the instances.
_COUNTING, _PLACING = 0.4, 0.6
# Share and upper limit of the remaining time for the fewest slices.
_SLIMMING, _MOST_SLICING_S = 0.1, 3.0


@dataclass(frozen=True, slots=True)
class Layout:
    """A maximal partition of a GPU of a model, with starts."""

    model: int
    slots: tuple[Slot, ...]

    @property
    def counts(self) -> Counter[KindIndex]:
        """The number of slots of each kind."""
        return Counter(kind for kind, _ in self.slots)


@dataclass(frozen=True, slots=True)
class CurrentGpu:
    """A GPU of today's plan: its model (`None` outside the problem), and the configurations that may stay."""

    model: int | None
    options: Mapping[Slot, Option]


@dataclass(slots=True)
class Target:
    """A GPU of the new plan: its position among today's GPUs, if any, and the configurations in its slots."""

    layout: Layout
    today: int | None
    options: dict[Slot, Option]

    @property
    def filled(self) -> FilledGpu:
        """The GPU in the form of a solution."""
        partition = Partition(model=self.layout.model, counts=dict(sorted(self.layout.counts.items())))
        by_kind = sorted(self.layout.slots, key=lambda slot: (slot[0], slot[1] or 0))
        return FilledGpu(partition, tuple(map(self.options.get, by_kind)))

    def to_gpu(self, problem: Problem, today: Deployment) -> Gpu:
        """Return the GPU in the form of a deployment."""
        name = None if self.today is None else today.gpus[self.today].id
        instances = [(option, start) for (_, start), option in self.options.items()]
        return solution.build_gpu(problem, self.layout.model, instances, name)


def list_layouts(problem: Problem) -> list[Layout]:
    """Return all layouts of each model."""
    all_layouts = []
    for number, model in enumerate(problem.models):
        kinds = problem.kinds_of(number)
        if WHOLE in kinds:
            all_layouts.append(Layout(number, ((kinds[WHOLE], None),)))
        pool = [mig_profile for kind in kinds.values() if (mig_profile := problem.kinds[kind].mig_profile) is not None]
        if model.mig is not None and pool:
            for placed in layouts.list_maximal_layouts(model.mig, pool):
                all_layouts.append(Layout(number, tuple((kinds[profile.name], start) for profile, start in placed)))
    return all_layouts


def find_kept_options(problem: Problem, gpu: Gpu) -> CurrentGpu:
    """Return the instances of a GPU that may stay: services in the demand, with admitted configurations."""
    name = find_model_name(gpu.model)
    model = next((number for number, candidate in enumerate(problem.models) if candidate.name == name), None)
    # A plan puts one service on an undivided GPU, so several services on an undivided GPU cannot stay.
    if model is None or (gpu.mode != "mig" and len(gpu.instances) > 1):
        return CurrentGpu(model, {})
    kinds = problem.kinds_of(model)
    options = {}
    for instance in gpu.instances:
        place = (instance.service, kinds.get(instance.profile or WHOLE), gpu.mode)
        configuration = (instance.processes, instance.batch, instance.share_pct)
        for option in itertools.chain.from_iterable(problem.admitted):
            row = option.row
            if (row.workload, option.kind, PLANNED_AS[row.sharing_mode]) == place and (
                row.processes,
                row.batch,
                row.share_percent,
            ) == configuration:
                options[option.kind, instance.start] = option
                break
    return CurrentGpu(model, options)


def count_kept(targets: Sequence[Target], current: Sequence[CurrentGpu]) -> int:
    """Count the instances whose GPU, start and configuration stay the same."""
    return sum(
        current[target.today].options.get(slot) is option
        for target in targets
        if target.today is not None
        for slot, option in target.options.items()
    )


def match_gpus(gpus: Sequence[FilledGpu], current: Sequence[CurrentGpu], layouts: Sequence[Layout]) -> list[Target]:
    """Match each GPU with the GPU of today and the layout that keep most instances; return today's GPUs first."""
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    having: dict[int, set[int]] = defaultdict(set)
    for number, today in enumerate(current):
        for option in today.options.values():
            having[id(option)].add(number)
    choices: dict[tuple[int, int], Target] = {}
    num_kept = np.zeros((len(gpus), len(current)))
    for row, gpu in enumerate(gpus):
        fitting = [layout for layout in layouts if layout.counts == Counter(gpu.partition.slots)]
        for number in set().union(*(having[id(option)] for option in gpu.options)):
            targets_here = [_arrange(gpu, layout, number, current[number]) for layout in fitting]
            choices[row, number] = max(targets_here, key=lambda target: count_kept([target], current))
            num_kept[row, number] = count_kept([choices[row, number]], current)
    pairs = {int(row): int(number) for row, number in zip(*linear_sum_assignment(-num_kept), strict=True)}
    targets = []
    for row, gpu in enumerate(gpus):
        match = choices.get((row, pairs.get(row, -1)))
        if match is None:
            layout = next(candidate for candidate in layouts if candidate.counts == Counter(gpu.partition.slots))
            match = _arrange(gpu, layout, None, CurrentGpu(None, {}))
        targets.append(match)
    return sorted(targets, key=lambda target: (target.today is None, target.today or 0))


def _arrange(gpu: FilledGpu, layout: Layout, number: int | None, today: CurrentGpu) -> Target:
    target = Target(layout, number, {})
    waiting = [option for option in gpu.options if option is not None]
    for slot in layout.slots:
        same = next((option for option in waiting if today.options.get(slot) is option), None)
        if same is not None:
            waiting.remove(same)
            target.options[slot] = same
    for option in waiting:
        slot = next(slot for slot in layout.slots if slot[0] == option.kind and slot not in target.options)
        target.options[slot] = option
    return target


@dataclass(frozen=True, slots=True)
class _Group:
    """Equal GPUs of today: their positions, and the columns of their layouts and kept instances."""

    members: list[int]
    today: CurrentGpu
    layouts: dict[int, int]
    keeps: dict[Slot, int]


@dataclass(frozen=True, slots=True)
class Instances:
    """Counts of reused and created instances; `changes` is a lower bound of created minus kept instances, if known."""

    reused: list[tuple[Option, int]]
    created: dict[Pair, int]
    changes: int | None


def count_fewest_changes(
    problem: Problem, num_gpus: int, current: Sequence[CurrentGpu], time_limit_s: float
) -> Instances | None:
    """Find the fewest changes if every instance can keep its GPU and start; `None` if the time limit is too short."""
    running = [option for today in current for option in today.options.values()]
    options = {id(option): option for option in running}
    counts = Counter(map(id, running))
    programme = Programme(problem, num_gpus)
    for partition in problem.partitions:
        programme.add_gpu(partition.model, partition.counts)
    created = {(s, k): programme.add_instance(problem.options[s][k], cost=1) for s, k in problem.pairs}
    columns = {programme.add_instance(option, -1, counts[key]): option for key, option in options.items()}
    counted = programme.solve(time_limit_s)
    if counted.columns is None:
        return None
    return Instances(
        [(option, counted.columns[column]) for column, option in columns.items()],
        {pair: counted.columns[column] for pair, column in created.items()},
        counted.bound,
    )


class PlacementProgramme:
    """The programme that places instances on today's and additional GPUs; `chosen` fixes the counts of instances."""

    def __init__(
        self,
        problem: Problem,
        num_gpus: int,
        current: Sequence[CurrentGpu],
        layouts: Sequence[Layout],
        counts: Instances | None = None,
    ) -> None:
        self._problem, self._layouts = problem, layouts
        self._programme = Programme(problem, num_gpus)
        # Among plans with equally many changes, prefer today's GPUs.
        cost = 0.5 / (num_gpus + 1)
        self._new = [
            self._programme.add_gpu(partition.model, partition.counts, cost) for partition in problem.partitions
        ]
        self._created = {(s, k): self._programme.add_instance(problem.options[s][k], cost=1) for s, k in problem.pairs}
        alike: dict[Any, list[int]] = defaultdict(list)
        for number, today in enumerate(current):
            if today.model is not None:
                options = sorted((slot[0], slot[1] or 0, id(option)) for slot, option in today.options.items())
                alike[today.model, tuple(options)].append(number)
        self._groups = [self._add_group(members, current[members[0]]) for members in alike.values()]
        # Reused instances that move to another GPU or start.
        self._moved = [] if counts is None else [self._add_moved(*choice) for choice in counts.reused]
        for pair, count in {} if counts is None else counts.created.items():
            self._programme.add_row({self._created[pair]: 1}, low=count, high=count)

    def solve(self, time_limit_s: float) -> tuple[list[Target] | None, bool]:
        """Return GPUs that serve all services with the fewest changes, or `None`, and whether a proof was found."""
        counts = self._programme.solve(time_limit_s)
        if counts.columns is None:
            return None, False
        targets = self._read_targets(counts.columns)
        shares = [0.0] * len(self._problem.services)
        for target in targets:
            for option in target.options.values():
                shares[option.service] += self._problem.share(option)
        # The tolerance of the solver may leave a service below its rate.
        return (targets, counts.status == "optimal") if all(map(is_enough, shares)) else (None, False)

    def find_lightest(
        self, weights: Sequence[float], num_changes: int, time_limit_s: float
    ) -> tuple[list[Target] | None, bool]:
        """Return what `solve` returns, for the least weight and at most `num_changes` created minus kept instances."""
        cost = self._programme.cost  # The cost of additional GPUs stays, because it is below the weight of a slice.
        changes: dict[int, float] = {}
        for (_, kind), column in self._created.items():
            cost[column], changes[column] = weights[kind], 1
        for group in self._groups:
            for (kind, _), column in group.keeps.items():
                cost[column], changes[column] = weights[kind], -1
        self._programme.add_row(changes, high=num_changes)
        return self.solve(time_limit_s)

    def _add_group(self, members: list[int], today: CurrentGpu) -> _Group:
        """Add equal GPUs: each has one layout with a slot for every kept instance."""
        layouts = {
            number: self._programme.add_gpu(layout.model, layout.counts)
            for number, layout in enumerate(self._layouts)
            if layout.model == today.model
        }
        keeps = {slot: self._programme.add_instance(option, cost=-1) for slot, option in today.options.items()}
        for slot, column in keeps.items():
            having = {other: -1 for number, other in layouts.items() if slot in self._layouts[number].slots}
            self._programme.add_row({column: 1, **having}, high=0)
        self._programme.add_row(dict.fromkeys(layouts.values(), 1), high=len(members))
        return _Group(members, today, layouts, keeps)

    def _add_moved(self, option: Option, count: int) -> tuple[Option, int]:
        """Add today's instances that move; moved and unmoved instances add up to `count`."""
        column = self._programme.add_instance(option, cost=1)
        stays = [c for group in self._groups for slot, c in group.keeps.items() if group.today.options[slot] is option]
        self._programme.add_row(dict.fromkeys([column, *stays], 1), low=count, high=count)
        return option, column

    def _read_targets(self, counts: Sequence[int]) -> list[Target]:
        targets = [target for group in self._groups for target in self._read_group(group, counts)]
        targets.sort(key=lambda target: target.today or 0)
        for partition, column in zip(self._problem.partitions, self._new, strict=True):
            slots = tuple(zip(partition.slots, self._problem.starts(partition), strict=True))
            targets += [Target(Layout(partition.model, slots), None, {}) for _ in range(counts[column])]
        free: dict[KindIndex, list[tuple[Target, Slot]]] = defaultdict(list)
        for target in reversed(targets):
            for slot in target.layout.slots:
                if slot not in target.options:
                    free[slot[0]].append((target, slot))
        created = [(self._problem.options[service][kind], column) for (service, kind), column in self._created.items()]
        for option, column in (*created, *self._moved):
            for _ in range(counts[column]):
                target, slot = free[option.kind].pop()
                target.options[slot] = option
        return [target for target in targets if target.options]

    def _read_group(self, group: _Group, counts: Sequence[int]) -> list[Target]:
        waiting = list(group.members)
        stays = {slot: counts[column] for slot, column in group.keeps.items()}
        targets = []
        for number, column in group.layouts.items():
            for _ in range(counts[column]):
                target = Target(self._layouts[number], waiting.pop(0), {})
                for slot in target.layout.slots:
                    if stays.get(slot, 0) > 0:
                        stays[slot] -= 1
                        target.options[slot] = group.today.options[slot]
                targets.append(target)
        return targets


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A deployment and its difference from today's deployment, in instances.

    Attributes:
        gpus: GPUs of the deployment, in its order.
        at_least: proved lower bound of created plus removed instances on this number of GPUs; `None` if unknown.
        has_fewest_slices: whether the number of slices is proved minimal for this number of GPUs and changes.
    """

    deployment: Deployment
    gpus: tuple[FilledGpu, ...]
    num_kept: int
    num_created: int
    num_removed: int
    at_least: int | None
    has_fewest_slices: bool = False

    @property
    def is_least(self) -> bool:
        """True if the number of changes is proved minimal for this number of GPUs."""
        return self.at_least is not None and self.num_created + self.num_removed <= self.at_least


def find_least_change(problem: Problem, gpus: Sequence[FilledGpu], today: Deployment, *, time_limit_s: float) -> Change:
    """Find the plan with the fewest changes on at most as many GPUs as `gpus`, within the time limit."""
    end = time.monotonic() + time_limit_s
    layouts = list_layouts(problem)
    current = [find_kept_options(problem, gpu) for gpu in today.gpus]

    def num_changes(targets: Sequence[Target]) -> int:
        """Return created minus kept instances, which equals the changes minus today's instances."""
        return sum(len(target.options) for target in targets) - 2 * count_kept(targets, current)

    def remaining_s() -> float:
        return max(end - time.monotonic(), 0.1)

    def weigh(targets: Sequence[Target]) -> tuple[int, tuple[int, int]]:
        return num_changes(targets), solvers.count_slices(problem, [target.filled for target in targets])

    slim = solvers.minimise_slices(problem, judge(gpus, None), time_limit_s=remaining_s() * _SLIMMING)
    best, lowest = min((match_gpus(solution, current, layouts) for solution in (gpus, slim.gpus)), key=weigh), None
    has_fewest = False
    if not problem.limits.concern_sharing:
        counts = count_fewest_changes(problem, len(gpus), current, remaining_s() * _COUNTING)
        lowest = None if counts is None else counts.changes
        for fixed in (counts, None):
            if lowest is not None and num_changes(best) <= lowest:
                break
            part = _PLACING if fixed else 1
            better, is_proved = PlacementProgramme(problem, len(gpus), current, layouts, fixed).solve(
                remaining_s() * part
            )
            if better is not None and num_changes(better) < num_changes(best):
                best = better
            if better is not None and is_proved and fixed is None:
                lowest = num_changes(better)
        weights = solvers.weigh_kinds(problem, len(gpus))
        programme = PlacementProgramme(problem, len(gpus), current, layouts)
        better, is_fewest = programme.find_lightest(weights, num_changes(best), min(remaining_s(), _MOST_SLICING_S))
        if better is not None and weigh(better) <= weigh(best):
            best, has_fewest = better, is_fewest and num_changes(better) == lowest
    num_today = sum(len(gpu.instances) for gpu in today.gpus)
    num_kept = count_kept(best, current)
    return Change(
        deployment=Deployment(gpus=tuple(target.to_gpu(problem, today) for target in best)),
        gpus=tuple(target.filled for target in best),
        num_kept=num_kept,
        num_created=sum(len(target.options) for target in best) - num_kept,
        num_removed=num_today - num_kept,
        at_least=None if lowest is None else lowest + num_today,
        has_fewest_slices=has_fewest,
    )
