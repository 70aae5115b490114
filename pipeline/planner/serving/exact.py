"""The fewest GPUs, by an integer programme: how many of each partition, how many instances of each service and kind.

GPUs of a model are alike and instances do not influence each other, so that counts say all there is to say, unless
limits say who may share a GPU (`limited`). Solved by HiGHS through SciPy, which proves its bound.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

from pipeline.planner.serving.problem import KindIndex, Pair, Problem, ServiceIndex
from pipeline.planner.serving.solution import Filled, Solution, Status, ceil, filled, judged, pruned, shares, suffices

MORE = 1e-5
"""Added to the rate of a service that got less than it by what the solver takes for rounding, 1e-6 of it."""
# Part of the time limit for the whole programme; the rest is for a solution near that of the linear one.
_PROVING = 0.5
# What the solver takes for a whole number.
_WHOLE = 1e-6
# Of `scipy.optimize.milp`.
_OPTIMAL, _INFEASIBLE = 0, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many GPUs of each partition, and how many instances of each (service, kind).

    Attributes:
        partitions: empty where there is no solution.
        left_out: services that get nothing.
        bound: fewest GPUs that any solution has; `None` if the solver found nothing out.
    """

    partitions: tuple[int, ...]
    instances: dict[Pair, int]
    left_out: tuple[ServiceIndex, ...]
    bound: int | None
    status: Status


def solve(problem: Problem, *, time_limit_s: float = 60.0) -> Solution:
    """The fewest GPUs that serve everybody, as far as that can be proved within the time limit.

    Limits on who may share a GPU are left aside: `bound` holds with them too, but the GPUs may break them.
    """
    begin = time.monotonic()
    if problem.unmet:
        return Solution(gpus=(), bound=None, status="infeasible")
    counts = _solved(problem, [1.0] * len(problem.services), time_limit_s * _PROVING)
    bound = counts.bound
    found = [] if not counts.partitions else _served(problem, counts, begin + time_limit_s)
    if counts.status in ("feasible", "unknown"):
        near = _near(problem, begin + time_limit_s - time.monotonic())
        other = [] if not near.partitions else _served(problem, near, begin + time_limit_s)
        found = min([each for each in (found, other) if each], key=len, default=[])
        bound = max((each for each in (bound, near.bound) if each is not None), default=None)
    seconds = time.monotonic() - begin
    if not found:
        status: Status = "infeasible" if counts.status == "infeasible" else "unknown"
        return Solution(gpus=(), bound=bound, status=status, seconds=seconds)
    return judged(found, bound, seconds)


def fewest_slices(
    problem: Problem, most_gpus: int, weights: Sequence[float], *, time_limit_s: float
) -> tuple[list[Filled], bool]:
    """Serve everybody on at most so many GPUs by instances of the least weight; limits on sharing are left aside.

    Args:
        problem: that has a plan with so few GPUs.
        most_gpus: that the plan may have.
        weights: of an instance of each kind.
        time_limit_s: for the search.

    Returns:
        The GPUs, none if none were found in time, and whether no plan weighs less.
    """
    end = time.monotonic() + time_limit_s
    rates = [1.0] * len(problem.services)
    solve_again = partial(_solved, weights=weights, most_gpus=most_gpus)
    counts = solve_again(problem, rates, time_limit_s)
    return _served(problem, counts, end, solve_again), counts.status == "optimal"


def _served(
    problem: Problem, counts: Counts, end: float, solve_again: Callable[..., Counts] | None = None
) -> list[Filled]:
    """The GPUs of a solution; one that is short of a rate by what the solver takes for rounding is found anew."""
    rates = [1.0] * len(problem.services)
    while counts.partitions:
        gpus = filled(problem, counts.partitions, counts.instances)
        short = [number for number, share in enumerate(shares(problem, gpus)) if not suffices(share)]
        if not short:
            return pruned(problem, gpus)
        for number in short:
            rates[number] += MORE
        counts = (solve_again or _solved)(problem, rates, max(end - time.monotonic(), 0.1))
    return []


def _near(problem: Problem, time_limit_s: float) -> Counts:
    """A solution close to that of the linear programme, which is much easier to find where there are many services.

    Of a thousand services, the linear programme leaves about one instance each in parts: only these are decided. The
    bound is that of the linear programme, which holds for all solutions.
    """
    import numpy as np
    from scipy import optimize

    instances, constraints = _programme(problem, [1.0] * len(problem.services))
    width = constraints.A.shape[1]
    cost, lowest, highest = np.zeros(width), np.zeros(width), np.full(width, np.inf)
    cost[: len(problem.partitions)] = 1
    relaxed = optimize.milp(cost, constraints=constraints, options={"time_limit": max(time_limit_s, 0.1)})
    if relaxed.status != _OPTIMAL:
        return Counts(partitions=(), instances={}, left_out=(), bound=None, status="unknown")
    first = len(problem.partitions)
    lowest[first:] = np.floor(relaxed.x[first:] + _WHOLE)
    highest[first:] = lowest[first:] + 1
    found = milp(cost, optimize.Bounds(lowest, highest), constraints, max(time_limit_s, 0.1))
    return replace(_counts(problem, found, instances), bound=ceil(relaxed.fun))


def left_out(problem: Problem, *, time_limit_s: float = 60.0) -> tuple[ServiceIndex, ...]:
    """The fewest services, by position, without which the others can be served; none if that was not found out."""
    return _solved(problem, [1.0] * len(problem.services), time_limit_s, may_leave_out=True).left_out


def _solved(
    problem: Problem,
    rates: Sequence[float],
    time_limit_s: float,
    *,
    may_leave_out: bool = False,
    weights: Sequence[float] | None = None,
    most_gpus: int | None = None,
) -> Counts:
    """The fewest GPUs that give each service so much of its rate, or the fewest services that get nothing.

    With weights of the kinds it is the lightest instances, on no more than so many GPUs.
    """
    import numpy as np
    from scipy.optimize import Bounds

    instances, constraints = _programme(problem, rates, may_leave_out=may_leave_out, most_gpus=most_gpus)
    width = constraints.A.shape[1]
    first_left_out = len(problem.partitions) + len(instances)
    cost, highest = np.zeros(width), np.full(width, np.inf)
    if may_leave_out:
        cost[first_left_out:], highest[first_left_out:] = 1, 1
    elif weights is not None:
        for (_, kind), column in instances.items():
            cost[column] = weights[kind]
    else:
        cost[: len(problem.partitions)] = 1
    return _counts(problem, milp(cost, Bounds(0, highest), constraints, time_limit_s), instances)


def _counts(problem: Problem, found: Found, instances: Mapping[Pair, int]) -> Counts:
    """A solution of a programme, by what its columns stand for."""
    if found.counts is None:
        return Counts(partitions=(), instances={}, left_out=(), bound=found.bound, status=found.status)
    counts = found.counts
    return Counts(
        partitions=tuple(counts[: len(problem.partitions)]),
        instances={pair: counts[column] for pair, column in instances.items() if counts[column]},
        left_out=tuple(
            ServiceIndex(number)
            for number, count in enumerate(counts[len(problem.partitions) + len(instances) :])
            if count
        ),
        bound=found.bound,
        status=found.status,
    )


def _programme(
    problem: Problem, rates: Sequence[float], *, may_leave_out: bool = False, most_gpus: int | None = None
) -> tuple[dict[Pair, int], Any]:
    """The columns of instances, by (service, kind), and the constraints; partitions are the columns before these."""
    from scipy.optimize import LinearConstraint

    instances = {pair: column for column, pair in enumerate(problem.pairs, len(problem.partitions))}
    first_left_out = len(problem.partitions) + len(instances)
    width = first_left_out + (len(problem.services) if may_leave_out else 0)
    table = _constraints(problem, rates, instances, first_left_out)
    if most_gpus is not None:
        table.add(dict.fromkeys(range(len(problem.partitions)), 1), high=most_gpus)
    return instances, LinearConstraint(*table.matrix(width))


@dataclass(frozen=True, slots=True)
class Found:
    """What the solver found: a whole number a column, or none, and the least that the cost can be."""

    counts: list[int] | None
    bound: int | None
    status: Status


def milp(cost: Any, bounds: Any, constraints: Any, time_limit_s: float) -> Found:
    """Whole numbers of the least cost, which is a whole number too; arguments as of `scipy.optimize.milp`."""
    import numpy as np
    from scipy import optimize

    found = optimize.milp(
        cost,
        integrality=np.ones(len(cost)),
        bounds=bounds,
        constraints=constraints,
        options={"time_limit": time_limit_s, "mip_rel_gap": 0},
    )
    lowest = found.mip_dual_bound
    bound = ceil(lowest) if lowest is not None and math.isfinite(lowest) else None
    if found.x is None:
        return Found(None, bound, "infeasible" if found.status == _INFEASIBLE else "unknown")
    return Found(
        [int(count) for count in np.rint(found.x)], bound, "optimal" if found.status == _OPTIMAL else "feasible"
    )


def counted(share: float, rate: float = 1.0) -> float:
    """What a share of a rate counts in a programme: no more than all of it, which makes its bound a better one."""
    return min(rate, share)


def _constraints(problem: Problem, rates: Sequence[float], instances: dict[Pair, int], first_left_out: int) -> Rows:
    """Rates are met, or services left out; instances have slots; and there are no more GPUs than the limits allow."""
    table = Rows()
    for number, own in enumerate(problem.options):
        row = {
            instances[ServiceIndex(number), kind]: counted(problem.share(option), rates[number])
            for kind, option in own.items()
        }
        table.add(row | {first_left_out + number: 1}, low=rates[number])
    for kind in map(KindIndex, range(len(problem.kinds))):
        slots = {number: -each.counts[kind] for number, each in enumerate(problem.partitions) if kind in each.counts}
        users = {column: 1 for pair, column in instances.items() if pair[1] == kind}
        table.add(slots | users, high=0)
    for number, model in enumerate(problem.models):
        if model.limit is not None:
            mine = [position for position, each in enumerate(problem.partitions) if each.model == number]
            table.add(dict.fromkeys(mine, 1), high=model.limit)
    return table


class Rows:
    """Constraints of a linear programme, one a row, each with the columns that it names."""

    def __init__(self) -> None:
        self._rows: list[Mapping[int, float]] = []
        self._limits: list[tuple[float, float]] = []

    def add(self, row: Mapping[int, float], low: float = float("-inf"), high: float = float("inf")) -> None:
        """A weighted sum of columns between two limits."""
        self._rows.append(row)
        self._limits.append((low, high))

    def matrix(self, width: int) -> tuple[Any, list[float], list[float]]:
        """The rows as a sparse matrix `[row, column]`, without columns beyond the width, and their limits."""
        from scipy.sparse import csr_array

        kept = [[(column, value) for column, value in row.items() if column < width] for row in self._rows]
        values = [value for row in kept for _, value in row]
        columns = [column for row in kept for column, _ in row]
        ends = [0, *accumulate(map(len, kept))]
        low, high = ([each[side] for each in self._limits] for side in (0, 1))
        return csr_array((values, columns, ends), shape=(len(kept), width)), low, high
