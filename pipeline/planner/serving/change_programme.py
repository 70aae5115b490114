"""The fewest changes from today's GPUs, by integer programmes.

Three programmes are used, because the complete programme is too slow for a hundred GPUs. The first programme ignores
GPUs and starts: its counts of reused and created instances bound the changes. The second programme places these
instances; if every reused instance keeps its GPU and start, the plan is proved. Otherwise the third programme, which is
the complete one, is solved.

For each set of equal GPUs of today, columns count the GPUs in each layout and the kept instances. Other columns count
the additional GPUs of each partition, and the new instances of each service and kind.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.planner.serving.integer_programme import Programme
from pipeline.planner.serving.problem import KindIndex, Option, Pair, Problem
from pipeline.planner.serving.solution import is_enough
from pipeline.planner.serving.targets import CurrentGpu, Layout, Slot, Target


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
        chosen: Instances | None = None,
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
        self._moved = [] if chosen is None else [self._add_moved(*choice) for choice in chosen.reused]
        for pair, count in {} if chosen is None else chosen.created.items():
            self._programme.add_row({self._created[pair]: 1}, low=count, high=count)

    def solve(self, time_limit_s: float) -> tuple[list[Target] | None, bool]:
        """Return GPUs that serve all services with the fewest changes, or `None`, and whether a proof was found."""
        counts = self._programme.solve(time_limit_s)
        if counts.columns is None:
            return None, False
        targets = self._read_targets(counts.columns)
        shares = [0.0] * len(self._problem.services)
        for target in targets:
            for option in target.taken.values():
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
                if slot not in target.taken:
                    free[slot[0]].append((target, slot))
        created = [(self._problem.options[service][kind], column) for (service, kind), column in self._created.items()]
        for option, column in (*created, *self._moved):
            for _ in range(counts[column]):
                target, slot = free[option.kind].pop()
                target.taken[slot] = option
        return [target for target in targets if target.taken]

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
                        target.taken[slot] = group.today.options[slot]
                targets.append(target)
        return targets
