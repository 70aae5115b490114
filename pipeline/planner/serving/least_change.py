"""The fewest changes from today's GPUs, by integer programmes.

Three, as the one that says all takes too long for a hundred GPUs. The first leaves places aside: how many instances of
today's go on, and what is created beside them. No plan changes less. The second finds places for these, and if each
that goes on can stay where it is, the plan is proved. If not, the third takes everything together.

Of today's GPUs, those that are alike are taken together: how many go into which layout, and how many keep which of
their instances. Beside them, how many other GPUs of each partition, and how many new instances of each service and
kind.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.planner.serving import exact
from pipeline.planner.serving.exact import Rows
from pipeline.planner.serving.problem import WHOLE, KindIndex, Option, Pair, Partition, Problem
from pipeline.planner.serving.solution import suffices
from pipeline.planner.serving.targets import Layout, Slot, Target, Today
from pipeline.prepare.mig import partitions


@dataclass(frozen=True, slots=True)
class _Group:
    """GPUs of today that are alike: their positions, and the columns of their layouts and of what they keep."""

    members: list[int]
    today: Today
    layouts: dict[int, int]
    keeps: dict[Slot, int]


@dataclass(frozen=True, slots=True)
class Chosen:
    """What is to be, wherever it is: how many of today's configurations go on, and how many of each pair are created.

    Attributes:
        kept: number by option.
        created: number by (service, kind).
        changes: instances created less those kept: no plan has less, as far as that is proved.
    """

    kept: list[tuple[Option, int]]
    created: dict[Pair, int]
    changes: int | None


def fewest(problem: Problem, num_gpus: int, there: Sequence[Today], time_limit_s: float) -> Chosen | None:
    """The fewest changes if an instance may stay wherever it is; `None` if that was not found in time."""
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint

    today = Counter(id(option) for each in there for option in each.options.values())
    options = list({id(option): option for each in there for option in each.options.values()}.values())
    created = [(pair, problem.options[pair[0]][pair[1]]) for pair in problem.pairs]
    first_created, first_kept = len(problem.partitions), len(problem.partitions) + len(created)
    columns = [*enumerate((option for _, option in created), first_created), *enumerate(options, first_kept)]
    table = Rows()
    rates: list[dict[int, float]] = [{} for _ in problem.services]
    slots: list[dict[int, float]] = [{} for _ in problem.kinds]
    for column, option in columns:
        rates[option.service][column] = exact.counted(problem.share(option))
        slots[option.kind][column] = 1
    for number, partition in enumerate(problem.partitions):
        for kind, count in partition.counts.items():
            slots[kind][number] = -count
    for row in rates:
        table.add(row, low=1)
    models: list[dict[int, float]] = [
        {column: 1 for column, each in enumerate(problem.partitions) if each.model == number}
        for number in range(len(problem.models))
    ]
    _add_limits(problem, table, slots, models, num_gpus)
    cost = np.array([0.0] * first_created + [1.0] * len(created) + [-1.0] * len(options))
    highest = np.full(len(cost), np.inf)
    highest[first_kept:] = [today[id(option)] for option in options]
    limits = LinearConstraint(*table.matrix(len(cost)))
    found = exact.milp(cost, Bounds(0, highest), limits, time_limit_s)
    if found.counts is None:
        return None
    return Chosen(
        [(option, found.counts[column]) for column, option in enumerate(options, first_kept)],
        {pair: found.counts[column] for column, (pair, _) in enumerate(created, first_created)},
        found.bound,
    )


def _add_limits(
    problem: Problem,
    table: Rows,
    slots: Sequence[dict[int, float]],
    models: Sequence[dict[int, float]],
    num_gpus: int,
) -> None:
    """Instances have slots, by kind; there are no more GPUs than given, by model and in all."""
    for row in slots:
        table.add(row, high=0)
    for model, row in zip(problem.models, models, strict=True):
        if model.limit is not None:
            table.add(row, high=model.limit)
    table.add({column: 1 for row in models for column in row}, high=num_gpus)


class Programme:
    """The programme of a problem, of today's GPUs, of a number of GPUs and, if given, of what is chosen already."""

    def __init__(
        self,
        problem: Problem,
        num_gpus: int,
        there: Sequence[Today],
        layouts: Sequence[Layout],
        chosen: Chosen | None = None,
    ) -> None:
        self._problem, self._num_gpus, self._layouts, self._chosen = problem, num_gpus, layouts, chosen
        self._cost: list[float] = []
        # So little that it only decides between plans of as many changes: a GPU of today's rather than another one.
        self._new = [self._column(0.5 / (num_gpus + 1)) for _ in problem.partitions]
        self._create = {pair: self._column(1) for pair in problem.pairs}
        # What goes on, but not where it is.
        self._moved = [] if chosen is None else [self._column(1) for _ in chosen.kept]
        alike: dict[Any, list[int]] = defaultdict(list)
        for number, today in enumerate(there):
            if today.model is not None:
                options = sorted((slot[0], slot[1] or 0, id(option)) for slot, option in today.options.items())
                alike[today.model, tuple(options)].append(number)
        self._groups = [self._group(members, there[members[0]]) for members in alike.values()]

    def solve(self, time_limit_s: float) -> tuple[list[Target] | None, bool]:
        """GPUs that serve everybody with the fewest changes, and whether that is proved; `None` if none were found."""
        return self._cheapest(self._cost, self._constraints(), time_limit_s)

    def lightest(
        self, weights: Sequence[float], num_changes: int, time_limit_s: float
    ) -> tuple[list[Target] | None, bool]:
        """Find GPUs as `solve` does, of the least weight, with so many instances created, less those kept, at most.

        Args:
            weights: of an instance of each kind, in whole numbers.
            num_changes: of a plan that is there.
            time_limit_s: for the search.
        """
        cost = list(self._cost)  # of which that of GPUs that are not today's stays: it is less than a slice
        changes: dict[int, float] = {}
        for (_, kind), column in self._create.items():
            cost[column], changes[column] = weights[kind], 1
        for group in self._groups:
            for (kind, _), column in group.keeps.items():
                cost[column], changes[column] = weights[kind], -1
        table = self._constraints()
        table.add(changes, high=num_changes)
        return self._cheapest(cost, table, time_limit_s)

    def _cheapest(self, cost: Sequence[float], table: Rows, time_limit_s: float) -> tuple[list[Target] | None, bool]:
        import numpy as np
        from scipy.optimize import Bounds, LinearConstraint

        matrix, low, high = table.matrix(len(cost))
        found = exact.milp(np.array(cost), Bounds(0, np.inf), LinearConstraint(matrix, low, high), time_limit_s)
        if found.counts is None:
            return None, False
        targets = self._targets(found.counts)
        given = [0.0] * len(self._problem.services)
        for target in targets:
            for option in target.taken.values():
                given[option.service] += self._problem.share(option)
        # What the solver takes for rounding may be too little for a service.
        return (targets, found.status == "optimal") if all(map(suffices, given)) else (None, False)

    def _column(self, cost: float) -> int:
        self._cost.append(cost)
        return len(self._cost) - 1

    def _group(self, members: list[int], today: Today) -> _Group:
        mine = [number for number, layout in enumerate(self._layouts) if layout.model == today.model]
        return _Group(
            members,
            today,
            {number: self._column(0) for number in mine},
            {slot: self._column(-1) for slot in today.options},
        )

    def _constraints(self) -> Rows:
        """Rates are met, instances have slots, what stays has its own, a GPU has one layout, and there are so many."""
        problem = self._problem
        rates: list[dict[int, float]] = [{} for _ in problem.services]
        slots: list[dict[int, float]] = [{} for _ in problem.kinds]
        models: list[dict[int, float]] = [{} for _ in problem.models]
        table = Rows()
        for (service, kind), column in self._create.items():
            rates[service][column] = exact.counted(problem.share(problem.options[service][kind]))
            slots[kind][column] = 1
        for partition, column in zip(problem.partitions, self._new, strict=True):
            models[partition.model][column] = 1
            for kind, count in partition.counts.items():
                slots[kind][column] = -count
        for group in self._groups:
            for number, column in group.layouts.items():
                models[self._layouts[number].model][column] = 1
                for kind, count in self._layouts[number].counts.items():
                    slots[kind][column] = -count
            for slot, column in group.keeps.items():
                option = group.today.options[slot]
                rates[option.service][column] = exact.counted(problem.share(option))
                slots[option.kind][column] = 1
                ways = {each: -1 for number, each in group.layouts.items() if slot in self._layouts[number].slots}
                table.add({column: 1, **ways}, high=0)
            table.add(dict.fromkeys(group.layouts.values(), 1), high=len(group.members))
        if self._chosen is None:
            for row in rates:
                table.add(row, low=1)
        else:
            self._add_chosen(self._chosen, table, slots)
        _add_limits(problem, table, slots, models, self._num_gpus)
        return table

    def _add_chosen(self, chosen: Chosen, table: Rows, slots: Sequence[dict[int, float]]) -> None:
        """What is chosen has a slot, where it is or elsewhere."""
        for pair, column in self._create.items():
            table.add({column: 1}, low=chosen.created[pair], high=chosen.created[pair])
        for column, (option, count) in zip(self._moved, chosen.kept, strict=True):
            slots[option.kind][column] = 1
            stays = [
                other
                for group in self._groups
                for slot, other in group.keeps.items()
                if group.today.options[slot] is option
            ]
            table.add(dict.fromkeys([column, *stays], 1), low=count, high=count)

    def _targets(self, counts: Sequence[int]) -> list[Target]:
        """The GPUs of a solution, today's first, in their order; those that nobody is on are left out."""
        targets = [target for group in self._groups for target in self._kept(group, counts)]
        targets.sort(key=lambda target: target.today or 0)
        for partition, column in zip(self._problem.partitions, self._new, strict=True):
            targets += [Target(self._placed(partition), None, {}) for _ in range(counts[column])]
        free: dict[KindIndex, list[tuple[Target, Slot]]] = defaultdict(list)
        for target in reversed(targets):
            for slot in target.layout.slots:
                if slot not in target.taken:
                    free[slot[0]].append((target, slot))
        new = [(self._problem.options[service][kind], column) for (service, kind), column in self._create.items()]
        if self._chosen is not None:
            new += [(option, column) for column, (option, _) in zip(self._moved, self._chosen.kept, strict=True)]
        for option, column in new:
            for _ in range(counts[column]):
                target, slot = free[option.kind].pop()
                target.taken[slot] = option
        return [target for target in targets if target.taken]

    def _kept(self, group: _Group, counts: Sequence[int]) -> list[Target]:
        """GPUs of a group in their new layouts, with what stays on them."""
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

    def _placed(self, partition: Partition) -> Layout:
        """A partition with the places that it gets on an empty GPU."""
        model = self._problem.models[partition.model]
        names = [self._problem.kinds[kind].profile for kind in partition.slots]
        if model.mig is None or names == [WHOLE]:
            return Layout(partition.model, ((partition.slots[0], None),))
        layout = partitions.plan_layout(model.mig, [partitions.resolve(model.mig, name) for name in names])
        starts = [each.start for each in layout.instances]
        return Layout(partition.model, tuple(zip(partition.slots, starts, strict=True)))
