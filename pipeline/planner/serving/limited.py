"""The fewest GPUs where limits say who may share one: an integer programme over configurations of whole GPUs.

Few services have few configurations, and all of them make the plan a proved one. Of many services only those count that
a linear programme asks for, one after another; its plan is held against the bound of the problem without such limits.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, combinations_with_replacement, product
from typing import Any

from pipeline.planner.serving import exact, greedy
from pipeline.planner.serving.candidates import FREE, Candidates, Configuration
from pipeline.planner.serving.exact import Rows
from pipeline.planner.serving.problem import Option, Pair, Problem, ServiceIndex
from pipeline.planner.serving.solution import Filled, Solution, Status, judged, pruned, shares, suffices

_EVERY = 20_000
"""As many configurations are solved at once."""
# Part of the time limit for finding configurations; the rest is for choosing among them.
_FINDING = 0.5
_NO_WORTH = 1e-6


@dataclass(frozen=True, slots=True)
class _Chosen:
    gpus: list[Configuration] | None
    bound: int | None
    status: Status


def solve(problem: Problem, *, time_limit_s: float = 60.0) -> Solution:
    """The fewest GPUs that serve everybody within all limits, as far as that can be proved within the time limit."""
    begin = time.monotonic()
    free = exact.solve(problem, time_limit_s=time_limit_s / 2)
    if not free.gpus:
        return free
    candidates = Candidates(problem)
    if all(candidates.is_allowed(gpu.services) for gpu in free.gpus):
        return free
    every = list(_first(_every(candidates), _EVERY + 1))
    is_every = len(every) <= _EVERY
    if not is_every:
        every = _asked_for(candidates, begin + time_limit_s * _FINDING)
    chosen = _fewest(candidates, every, max(begin + time_limit_s - time.monotonic(), 1.0))
    seconds = time.monotonic() - begin
    bounds = [each for each in (free.bound, chosen.bound if is_every else None) if each is not None]
    bound = max(bounds, default=None)
    if chosen.gpus is None:
        status: Status = chosen.status if is_every else "unknown"
        return Solution(gpus=(), bound=bound, status=status, seconds=seconds)
    return judged(pruned(problem, [candidates.filled(each) for each in chosen.gpus]), bound, seconds)


def fewest_slices(
    problem: Problem, gpus: Sequence[Filled], weights: Sequence[float], *, time_limit_s: float
) -> tuple[list[Filled], bool]:
    """Serve everybody within all limits on no more GPUs than these by instances of the least weight.

    Args:
        problem: that the GPUs solve.
        gpus: a plan within the limits. Where there are too many configurations, only those with the services of one of
            its GPUs count.
        weights: of an instance of each kind.
        time_limit_s: for the search.

    Returns:
        The GPUs, none if none were found in time, and whether no plan weighs less.
    """
    end = time.monotonic() + time_limit_s
    candidates = Candidates(problem)
    every = list(_first(_every(candidates), _EVERY + 1))
    is_every = len(every) <= _EVERY
    if not is_every:
        groups = dict.fromkeys(gpu.services for gpu in gpus)
        every = list(_first((each for group in groups for each in _of(candidates, sorted(group))), _EVERY))
    rates = [1.0] * len(problem.services)
    while True:
        lightest, is_proved = _lightest(candidates, every, weights, len(gpus), rates, max(end - time.monotonic(), 0.1))
        short = [number for number, share in enumerate(shares(problem, lightest)) if not suffices(share)]
        if not short or not lightest:
            return lightest, is_every and is_proved
        for number in short:
            rates[number] += exact.MORE


def _lightest(
    candidates: Candidates,
    every: Sequence[Configuration],
    weights: Sequence[float],
    most_gpus: int,
    rates: Sequence[float],
    time_limit_s: float,
) -> tuple[list[Filled], bool]:
    """The lightest instances that give each service so much of its rate, within the slots of some configurations."""
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint

    problem, width = candidates.problem, len(every)
    column_of = {pair: column for column, pair in enumerate(problem.pairs, width)}
    table = Rows()
    for service, own in enumerate(problem.options):
        row = {
            column_of[ServiceIndex(service), kind]: exact.counted(problem.share(own[kind]), rates[service])
            for kind in own
        }
        table.add(row, low=rates[service])
    slots: list[Counter[Pair]] = [
        Counter(zip(each.services, candidates.slots[each.partition], strict=True)) for each in every
    ]
    for pair, column in column_of.items():
        table.add({number: -own[pair] for number, own in enumerate(slots) if pair in own} | {column: 1}, high=0)
    for number, model in enumerate(problem.models):
        if model.limit is not None:
            mine = [place for place, each in enumerate(every) if problem.partitions[each.partition].model == number]
            table.add(dict.fromkeys(mine, 1), high=model.limit)
    table.add(dict.fromkeys(range(width), 1), high=most_gpus)
    cost = np.array([0.0] * width + [weights[kind] for _, kind in column_of])
    limits = LinearConstraint(*table.matrix(len(cost)))
    found = exact.milp(cost, Bounds(0, np.inf), limits, time_limit_s)
    if found.counts is None:
        return [], False
    left = {pair: found.counts[column] for pair, column in column_of.items()}
    chosen = (each for each, count in zip(every, found.counts, strict=False) for _ in range(count))
    gpus = [_without_free(candidates.filled(each), left) for each in chosen]
    return pruned(problem, gpus), found.status == "optimal"


def _without_free(gpu: Filled, left: dict[Pair, int]) -> Filled:
    """The GPU with those of its instances that are still wanted, which are then wanted no longer."""
    options: list[Option | None] = []
    for option in gpu.options:
        is_wanted = option is not None and left[option.service, option.kind] > 0
        if option is not None and is_wanted:
            left[option.service, option.kind] -= 1
        options.append(option if is_wanted else None)
    return Filled(gpu.partition, tuple(options))


def _every(candidates: Candidates) -> Iterator[Configuration]:
    """Each configuration that is allowed; a slot is free only if nobody of its GPU can use it."""
    services = [ServiceIndex(number) for number in range(len(candidates.problem.services))]
    most = max(map(len, candidates.slots), default=0)
    for size in range(1, most + 1):
        for group in combinations(services, size):
            if candidates.is_allowed(frozenset(group)):
                yield from _of(candidates, group)


def _of(candidates: Candidates, group: Collection[ServiceIndex]) -> Iterator[Configuration]:
    """Those in which exactly these services are."""
    for number, partition in enumerate(candidates.problem.partitions):
        if len(candidates.slots[number]) < len(group):
            continue
        ways = []
        for kind, count in partition.counts.items():
            users = [service for service in group if candidates.utility[service, kind] > 0] or [FREE]
            ways.append(list(combinations_with_replacement(users, count)))
        for way in product(*ways):
            services = tuple(chain.from_iterable(way))
            if set(services) - {FREE} == set(group):
                yield Configuration(number, services)


def _first(items: Iterator[Configuration], count: int) -> Iterator[Configuration]:
    for _, item in zip(range(count), items, strict=False):
        yield item


def _asked_for(candidates: Candidates, end: float) -> list[Configuration]:
    """Configurations that lower the cost of a linear programme over those before, until none does or time is up."""
    import numpy as np

    there = greedy.gpus_left(candidates, [])
    found = dict.fromkeys(greedy.complete(candidates, []) or [])
    for service in range(len(candidates.problem.services)):
        lack = np.zeros(len(candidates.problem.services))
        lack[service] = 1
        found |= dict.fromkeys(candidates.best(lack, there))
    while time.monotonic() < end:
        price = _prices(candidates, list(found))
        if price is None:
            break
        better = [
            each
            for each in candidates.of_prices(price, there)
            if each not in found and _worth(candidates, each, price) > 1 + _NO_WORTH
        ]
        if not better:
            break
        found |= dict.fromkeys(better)
    return list(found)


def _worth(candidates: Candidates, configuration: Configuration, price: Any) -> float:
    return sum(float(price[service]) * min(1.0, share) for service, share in candidates.given(configuration).items())


def _prices(candidates: Candidates, every: Sequence[Configuration]) -> Any:
    """`[service]`: how many GPUs its rate costs, of a linear programme; `None` if that has no solution."""
    import numpy as np
    from scipy.optimize import linprog

    matrix, low, high = _covered(candidates, every).matrix(len(every))
    num_services = len(candidates.problem.services)
    limits = np.concatenate([-np.array(low[:num_services]), np.array(high[num_services:])])
    signs = np.where(np.arange(len(limits)) < num_services, -1.0, 1.0)
    found = linprog(np.ones(len(every)), A_ub=matrix.multiply(signs[:, None]).tocsr(), b_ub=limits, method="highs")
    return None if found.x is None else -found.ineqlin.marginals[:num_services]


def _fewest(candidates: Candidates, every: Sequence[Configuration], time_limit_s: float) -> _Chosen:
    """The fewest GPUs that serve everybody, all of them of these configurations."""
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint

    matrix, low, high = _covered(candidates, every).matrix(len(every))
    width = len(every)
    found = exact.milp(np.ones(width), Bounds(0, np.inf), LinearConstraint(matrix, low, high), time_limit_s)
    if found.counts is None:
        return _Chosen(None, found.bound, found.status)
    return _Chosen(
        [each for each, count in zip(every, found.counts, strict=True) for _ in range(count)], found.bound, found.status
    )


def _covered(candidates: Candidates, every: Sequence[Configuration]) -> Rows:
    """Rates are met, a row each, then the limits on the number of GPUs of a model. A column is a configuration."""
    rates: list[dict[int, float]] = [{} for _ in candidates.problem.services]
    for column, configuration in enumerate(every):
        for service, share in candidates.given(configuration).items():
            rates[service][column] = exact.counted(share)
    table = Rows()
    for row in rates:
        table.add(row, low=1)
    partitions = candidates.problem.partitions
    for number, model in enumerate(candidates.problem.models):
        if model.limit is not None:
            own = [column for column, each in enumerate(every) if partitions[each.partition].model == number]
            table.add(dict.fromkeys(own, 1), high=model.limit)
    return table
