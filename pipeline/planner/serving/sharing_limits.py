"""The fewest GPUs under limits on sharing: an integer programme over configurations of whole GPUs.

With few services, all configurations are used, and the plan is proved. With many services, a linear programme generates
configurations (column generation), and the bound is that of the problem without limits.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from itertools import chain, combinations, combinations_with_replacement, islice, product, repeat
from typing import Any

from pipeline.planner.serving import exact, greedy
from pipeline.planner.serving.candidates import FREE, Candidates, Configuration
from pipeline.planner.serving.integer_programme import Programme
from pipeline.planner.serving.problem import Option, Pair, Problem, ServiceIndex
from pipeline.planner.serving.solution import FilledGpu, Solution, judge, prune, raise_short

_MOST_CONFIGURATIONS = 20_000
"""The largest number of configurations that are enumerated; above it, configurations are generated."""
# Share of the time limit for generating configurations.
_GENERATING = 0.5
_NO_WORTH = 1e-6


def solve(problem: Problem, *, time_limit_s: float = 60.0) -> Solution:
    """Find the fewest GPUs that serve all services within the limits, proved if the time suffices."""
    begin = time.monotonic()
    free = exact.solve(problem, time_limit_s=time_limit_s / 2)
    if not free.gpus:
        return free
    candidates = Candidates(problem)
    if all(candidates.is_allowed(gpu.services) for gpu in free.gpus):
        return free
    configurations = list(islice(_enumerate(candidates), _MOST_CONFIGURATIONS + 1))
    is_complete = len(configurations) <= _MOST_CONFIGURATIONS
    if not is_complete:
        configurations = _generate(candidates, begin + time_limit_s * _GENERATING)
    counts = _cover(candidates, configurations).solve(max(begin + time_limit_s - time.monotonic(), 1.0))
    seconds = time.monotonic() - begin
    bounds = [bound for bound in (free.bound, counts.bound if is_complete else None) if bound is not None]
    bound = max(bounds, default=None)
    if counts.columns is None:
        status = counts.status if is_complete else "unknown"
        return Solution(gpus=(), bound=bound, status=status, seconds=seconds)
    gpus = [candidates.fill(configuration) for configuration in _repeat(configurations, counts.columns)]
    return judge(prune(problem, gpus), bound, seconds)


def minimise_slices(
    problem: Problem, gpus: Sequence[FilledGpu], weights: Sequence[float], *, time_limit_s: float
) -> tuple[list[FilledGpu], bool]:
    """Find instances of the least weight within the limits on sharing; otherwise like `exact.minimise_slices`."""
    end = time.monotonic() + time_limit_s
    candidates = Candidates(problem)
    configurations = list(islice(_enumerate(candidates), _MOST_CONFIGURATIONS + 1))
    is_complete = len(configurations) <= _MOST_CONFIGURATIONS
    if not is_complete:
        groups = dict.fromkeys(gpu.services for gpu in gpus)  # too many to enumerate: use the plan's mixes
        mixes = chain.from_iterable(_enumerate_mixes(candidates, sorted(group)) for group in groups)
        configurations = list(islice(mixes, _MOST_CONFIGURATIONS))
    programme = Programme(problem, most_gpus=len(gpus))
    for configuration in configurations:
        slots = Counter(zip(configuration.services, candidates.slots[configuration.partition], strict=True))
        offered = {pair: count for pair, count in slots.items() if pair[0] != FREE}
        programme.add_gpu(problem.partitions[configuration.partition].model, offered)
    for pair in problem.pairs:
        programme.add_instance(problem.options[pair[0]][pair[1]], weights[pair[1]], slot=pair)
    rates = [1.0] * len(problem.services)
    while True:
        counts = programme.solve(end - time.monotonic(), rates)
        if counts.columns is None:
            return [], False
        num_left = dict(zip(problem.pairs, counts.columns[len(configurations) :], strict=True))
        chosen = _repeat(configurations, counts.columns)
        lightest = prune(
            problem, [_drop_unneeded(candidates.fill(configuration), num_left) for configuration in chosen]
        )
        if not raise_short(problem, lightest, rates):
            return lightest, is_complete and counts.status == "optimal"


def _repeat(configurations: Sequence[Configuration], counts: Sequence[int]) -> Iterator[Configuration]:
    return chain.from_iterable(map(repeat, configurations, counts))


def _drop_unneeded(gpu: FilledGpu, num_left: dict[Pair, int]) -> FilledGpu:
    """Keep the instances of a GPU that are still needed, and subtract them from `num_left`."""
    options: list[Option | None] = []
    for option in gpu.options:
        is_needed = option is not None and num_left[option.service, option.kind] > 0
        if option is not None and is_needed:
            num_left[option.service, option.kind] -= 1
        options.append(option if is_needed else None)
    return FilledGpu(gpu.partition, tuple(options))


def _enumerate(candidates: Candidates) -> Iterator[Configuration]:
    """Yield all allowed configurations; a slot is free only if no service of the GPU can use it."""
    services = [ServiceIndex(number) for number in range(len(candidates.problem.services))]
    most = max(map(len, candidates.slots), default=0)
    for size in range(1, most + 1):
        for group in combinations(services, size):
            if candidates.is_allowed(frozenset(group)):
                yield from _enumerate_mixes(candidates, group)


def _enumerate_mixes(candidates: Candidates, group: Collection[ServiceIndex]) -> Iterator[Configuration]:
    for number, partition in enumerate(candidates.problem.partitions):
        if len(candidates.slots[number]) < len(group):
            continue
        mixes = []
        for kind, count in partition.counts.items():
            users = [service for service in group if candidates.utility[service, kind] > 0] or [FREE]
            mixes.append(combinations_with_replacement(users, count))
        for mix in product(*mixes):
            services = tuple(chain.from_iterable(mix))
            if set(services) - {FREE} == set(group):
                yield Configuration(number, services)


def _generate(candidates: Candidates, end: float) -> list[Configuration]:
    """Add configurations while they lower the cost of the linear programme and time is left."""
    import numpy as np

    num_left = greedy.Selection(candidates).gpus_left
    columns = dict.fromkeys(greedy.complete(candidates, []) or [])
    for service in range(len(candidates.problem.services)):
        lack = np.zeros(len(candidates.problem.services))
        lack[service] = 1
        columns |= dict.fromkeys(candidates.find_best(lack, num_left))
    while time.monotonic() < end:
        prices = _price_services(candidates, list(columns))
        if prices is None:
            break
        better = [
            configuration
            for configuration in candidates.propose_by_price(prices, num_left)
            if configuration not in columns
            and sum(
                float(prices[service]) * min(1.0, share)
                for service, share in candidates.shares_of(configuration).items()
            )
            > 1 + _NO_WORTH
        ]
        if not better:
            break
        columns |= dict.fromkeys(better)
    return list(columns)


def _price_services(candidates: Candidates, configurations: Sequence[Configuration]) -> Any:
    """Return the price of each service's rate, in GPUs; `None` if the linear programme has no solution."""
    import numpy as np
    from scipy.optimize import linprog

    programme = _cover(candidates, configurations)
    matrix, low, high = programme.build_constraints()
    num_services = len(candidates.problem.services)
    limits = np.concatenate([-low[:num_services], high[num_services:]])
    signs = np.where(np.arange(len(limits)) < num_services, -1.0, 1.0)
    optimum = linprog(programme.cost, A_ub=matrix.multiply(signs[:, None]).tocsr(), b_ub=limits, method="highs")
    return None if optimum.x is None else -optimum.ineqlin.marginals[:num_services]


def _cover(candidates: Candidates, configurations: Sequence[Configuration]) -> Programme:
    programme = Programme(candidates.problem)
    for configuration in configurations:
        model = candidates.problem.partitions[configuration.partition].model
        column = programme.add_gpu(model, {}, cost=1)
        for service, share in candidates.shares_of(configuration).items():
            programme.rates[service][column] = share
    return programme
