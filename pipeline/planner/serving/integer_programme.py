"""The fewest GPUs by integer programmes, with a proved bound; solved by HiGHS.

A programme has columns of GPUs, which offer slots, and of instances, which occupy slots and serve. A column counts the
GPUs or instances of one sort, because GPUs of a model are equal and instances are independent. These counts determine
the plan unless limits restrict which services share a GPU; then the columns are configurations of whole GPUs. With few
services, all configurations are used, and the plan is proved. With many services, a linear programme generates
configurations (column generation), and the bound is that of the problem without limits.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, combinations, combinations_with_replacement, islice, product, repeat
from typing import Any

from pipeline.planner.serving import mig_serving
from pipeline.planner.serving.mig_serving import FREE, Candidates, Configuration
from pipeline.planner.serving.problem import KindIndex, Option, Pair, Problem, ServiceIndex
from pipeline.planner.serving.solution import FilledGpu, Solution, Status, ceil, judge, prune, raise_short

# Statuses of `scipy.optimize.milp`.
_OPTIMAL, _INFEASIBLE = 0, 2
_Fill = Callable[[Problem, Sequence[int]], list[FilledGpu]]
"""A function that turns the count of each column into GPUs."""
# Share of the time limit for the integer programme; the rest is for a solution near that of the linear programme.
_PROVING = 0.5
# Tolerance of the solver for whole numbers.
_WHOLE = 1e-6
_MOST_CONFIGURATIONS = 20_000
"""The largest number of configurations that are enumerated; above it, configurations are generated."""
# Share of the time limit for generating configurations.
_GENERATING = 0.5
_NO_WORTH = 1e-6


@dataclass(frozen=True, slots=True)
class Counts:
    """A solution: the count of each column (`None` without a solution), and the lower bound of the cost."""

    columns: list[int] | None
    bound: int | None
    status: Status


class Programme:
    """The integer programme that serves all services at the least cost, on at most `most_gpus` GPUs.

    Attributes:
        cost: cost of each column.
        rates: share of the service's rate that each column serves, for each service.
    """

    def __init__(self, problem: Problem, most_gpus: float = math.inf) -> None:
        self.cost: list[float] = []
        self.rates: list[dict[int, float]] = [{} for _ in problem.services]
        self.most_gpus = most_gpus
        self._limits = [model.limit for model in problem.models]
        self._share = problem.share
        self._most: list[float] = []
        self._gpus: list[dict[int, float]] = [{} for _ in problem.models]
        self._slots: dict[Hashable, dict[int, float]] = defaultdict(dict)
        self._rows: list[tuple[Mapping[int, float], float, float]] = []

    def add_column(self, cost: float, most: float = math.inf) -> int:
        """Add a column and return its position."""
        self.cost.append(cost)
        self._most.append(most)
        return len(self.cost) - 1

    def add_gpu(self, model: int, slots: Mapping[Any, int], cost: float = 0) -> int:
        """Add a column of GPUs of a model with their number of slots of each kind."""
        column = self.add_column(cost)
        self._gpus[model][column] = 1
        for kind, count in slots.items():
            self._slots[kind][column] = -count
        return column

    def add_instance(self, option: Option, cost: float = 0, most: float = math.inf, slot: Hashable = None) -> int:
        """Add a column of instances of a configuration; an instance occupies a slot of its kind, or `slot`."""
        column = self.add_column(cost, most)
        self.rates[option.service][column] = self._share(option)
        self._slots[option.kind if slot is None else slot][column] = 1
        return column

    def add_row(self, row: Mapping[int, float], low: float = -math.inf, high: float = math.inf) -> None:
        """Add a constraint: a weighted sum of columns between two limits."""
        self._rows.append((row, low, high))

    def build_constraints(self, rates: Sequence[float] | None = None) -> tuple[Any, Any, Any]:
        """Return a sparse matrix `[row, column]` and the limits of its rows; the first rows are the services.

        `rates` are the shares of the services' rates that are required (default 1). No column counts more than the
        required share, which improves the bound.
        """
        import numpy as np
        from scipy.sparse import csr_array

        required = rates or [1.0] * len(self.rates)
        rows: list[tuple[Mapping[int, float], float, float]] = [
            ({column: min(share, least) for column, share in row.items()}, least, math.inf)
            for row, least in zip(self.rates, required, strict=True)
        ]
        # Rows are in the order of the instances, because HiGHS takes a third longer in the order of the GPUs.
        rows += [(row, -math.inf, 0) for row in sorted(self._slots.values(), key=max)]
        limited = zip(self._gpus, self._limits, strict=True)
        rows += [(row, -math.inf, limit) for row, limit in limited if limit is not None]
        if self.most_gpus < math.inf:
            rows.append(({column: 1.0 for row in self._gpus for column in row}, -math.inf, self.most_gpus))
        rows += self._rows
        weights = [weight for row, _, _ in rows for weight in row.values()]
        columns = [column for row, _, _ in rows for column in row]
        ends = [0, *accumulate(len(row) for row, _, _ in rows)]
        matrix = csr_array((weights, columns, ends), shape=(len(rows), len(self.cost)))
        return matrix, np.array([low for _, low, _ in rows]), np.array([high for _, _, high in rows])

    def solve(self, time_limit_s: float, rates: Sequence[float] | None = None, bounds: Any = None) -> Counts:
        """Find the whole numbers with the least cost; the bound is valid if costs are whole numbers."""
        import numpy as np

        optimum = self.optimise(time_limit_s, rates, bounds, integrality=np.ones(len(self.cost)))
        lowest = optimum.mip_dual_bound
        bound = ceil(lowest) if lowest is not None and math.isfinite(lowest) else None
        if optimum.x is None:
            return Counts(None, bound, "infeasible" if optimum.status == _INFEASIBLE else "unknown")
        status: Status = "optimal" if optimum.status == _OPTIMAL else "feasible"
        return Counts([int(count) for count in np.rint(optimum.x)], bound, status)

    def optimise(
        self, time_limit_s: float, rates: Sequence[float] | None = None, bounds: Any = None, integrality: Any = None
    ) -> Any:
        """Return the result of `scipy.optimize.milp`; without `integrality`, solve the linear programme."""
        from scipy import optimize

        return optimize.milp(
            self.cost,
            integrality=integrality,
            bounds=bounds or optimize.Bounds(0, self._most),
            constraints=optimize.LinearConstraint(*self.build_constraints(rates)),
            options={"time_limit": max(time_limit_s, 0.1), "mip_rel_gap": 0},
        )


def solve(problem: Problem, *, time_limit_s: float = 60.0) -> Solution:
    """Find the fewest GPUs that serve all services within the limits, proved if the time suffices."""
    solver = _solve_within_limits if problem.limits.concern_sharing else _solve_freely
    return solver(problem, time_limit_s)


def minimise_weight(
    problem: Problem, gpus: Sequence[FilledGpu], weights: Sequence[float], *, time_limit_s: float
) -> tuple[list[FilledGpu], bool]:
    """Find the instances with the least total weight within the limits that fit on `len(gpus)` GPUs.

    Returns:
        The GPUs, empty if no solution was found in time, and whether the weight is proved minimal.
    """
    end, is_complete = time.monotonic() + time_limit_s, True
    if problem.limits.concern_sharing:
        programme, fill, is_complete = _build_within_limits(problem, gpus, weights)
    else:
        programme, fill = _build(problem, gpu_cost=0, weights=weights), _fill
    programme.most_gpus = len(gpus)
    lightest, counts = _serve(problem, programme, programme.solve(end - time.monotonic()), end, fill)
    return lightest, is_complete and counts.status == "optimal"


def _solve_freely(problem: Problem, time_limit_s: float) -> Solution:
    begin = time.monotonic()
    if problem.unmet:
        return Solution(gpus=(), bound=None, status="infeasible")
    end = begin + time_limit_s
    programme = _build(problem)
    counts = programme.solve(time_limit_s * _PROVING)
    gpus, bound = _serve(problem, programme, counts, end, _fill)[0], counts.bound
    if counts.status in ("feasible", "unknown"):
        near = _solve_near_relaxation(problem, programme, end - time.monotonic())
        gpus = min(filter(None, (gpus, _serve(problem, programme, near, end, _fill)[0])), key=len, default=[])
        bound = max((lower for lower in (bound, near.bound) if lower is not None), default=None)
    seconds = time.monotonic() - begin
    if not gpus:
        status: Status = "infeasible" if counts.status == "infeasible" else "unknown"
        return Solution(gpus=(), bound=bound, status=status, seconds=seconds)
    return judge(gpus, bound, seconds)


def find_unservable(problem: Problem, *, time_limit_s: float = 60.0) -> tuple[ServiceIndex, ...]:
    """Return the smallest set of services without which the others can be served; empty if unknown."""
    programme = _build(problem, gpu_cost=0)
    columns = [programme.add_column(1, most=1) for _ in problem.services]
    for row, column in zip(programme.rates, columns, strict=True):
        row[column] = 1
    counts = programme.solve(time_limit_s).columns
    return tuple(ServiceIndex(n) for n, column in enumerate(columns) if counts is not None and counts[column])


def _build(problem: Problem, gpu_cost: float = 1, weights: Sequence[float] | None = None) -> Programme:
    programme = Programme(problem)
    for partition in problem.partitions:
        programme.add_gpu(partition.model, partition.counts, gpu_cost)
    for service, kind in problem.pairs:
        programme.add_instance(problem.options[service][kind], 0 if weights is None else weights[kind])
    return programme


def _serve(
    problem: Problem, programme: Programme, counts: Counts, end: float, fill: _Fill
) -> tuple[list[FilledGpu], Counts]:
    """Fill the GPUs of a solution; solve again if the solver's tolerance leaves a service below its rate."""
    rates = [1.0] * len(problem.services)
    while counts.columns is not None:
        gpus = fill(problem, counts.columns)
        if not raise_short(problem, gpus, rates):
            return prune(problem, gpus), counts
        counts = programme.solve(end - time.monotonic(), rates)
    return [], counts


def _fill(problem: Problem, columns: Sequence[int]) -> list[FilledGpu]:
    waiting: dict[KindIndex, list[Option]] = defaultdict(list)
    instances = zip(problem.pairs, columns[len(problem.partitions) :], strict=True)
    for (service, kind), count in sorted(instances, reverse=True):
        waiting[kind] += [problem.options[service][kind]] * count
    gpus = []
    for partition, count in zip(problem.partitions, columns, strict=False):
        for _ in range(count):
            options = tuple(waiting[kind].pop() if waiting[kind] else None for kind in partition.slots)
            gpus.append(FilledGpu(partition, options))
    assert not any(waiting.values()), "instances without a slot"
    return gpus


def _solve_near_relaxation(problem: Problem, programme: Programme, time_limit_s: float) -> Counts:
    """Solve with each count of instances restricted to the linear programme's value, rounded down or up.

    With many services, this is much faster. The bound is the linear programme's optimum, which is valid for all
    solutions.
    """
    import numpy as np
    from scipy.optimize import Bounds

    relaxed = programme.optimise(time_limit_s)
    if relaxed.status != 0:
        return Counts(None, None, "unknown")
    lowest, highest = np.zeros(len(relaxed.x)), np.full(len(relaxed.x), np.inf)
    first = len(problem.partitions)
    lowest[first:] = np.floor(relaxed.x[first:] + _WHOLE)
    highest[first:] = lowest[first:] + 1
    counts = programme.solve(time_limit_s, bounds=Bounds(lowest, highest))
    return replace(counts, bound=ceil(relaxed.fun))


def _solve_within_limits(problem: Problem, time_limit_s: float) -> Solution:
    begin = time.monotonic()
    free = _solve_freely(problem, time_limit_s / 2)
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


def _build_within_limits(
    problem: Problem, gpus: Sequence[FilledGpu], weights: Sequence[float]
) -> tuple[Programme, _Fill, bool]:
    """Return the programme of the least weight, the function that fills its GPUs, and whether it is complete."""
    candidates = Candidates(problem)
    configurations = list(islice(_enumerate(candidates), _MOST_CONFIGURATIONS + 1))
    is_complete = len(configurations) <= _MOST_CONFIGURATIONS
    if not is_complete:
        groups = dict.fromkeys(gpu.services for gpu in gpus)  # too many to enumerate: use the plan's mixes
        mixes = chain.from_iterable(_enumerate_mixes(candidates, sorted(group)) for group in groups)
        configurations = list(islice(mixes, _MOST_CONFIGURATIONS))
    programme = Programme(problem)
    for configuration in configurations:
        slots = Counter(zip(configuration.services, candidates.slots[configuration.partition], strict=True))
        offered = {pair: count for pair, count in slots.items() if pair[0] != FREE}
        programme.add_gpu(problem.partitions[configuration.partition].model, offered)
    for pair in problem.pairs:
        programme.add_instance(problem.options[pair[0]][pair[1]], weights[pair[1]], slot=pair)

    def fill(problem: Problem, columns: Sequence[int]) -> list[FilledGpu]:
        num_left = dict(zip(problem.pairs, columns[len(configurations) :], strict=True))
        repeated = _repeat(configurations, columns)
        return [_drop_unneeded(candidates.fill(configuration), num_left) for configuration in repeated]

    return programme, fill, is_complete


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

    num_left = mig_serving.Selection(candidates).gpus_left
    columns = dict.fromkeys(mig_serving.complete_greedily(candidates, []) or [])
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
