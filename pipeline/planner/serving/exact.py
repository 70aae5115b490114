"""Find the fewest GPUs with an integer programme.

Its variables are the number of GPUs with each partition, and the number of instances of each kind for each service.
These numbers determine the plan unless limits restrict which services share a GPU (`sharing_limits`). HiGHS proves the
bound.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from pipeline.planner.serving.integer_programme import Counts, Programme
from pipeline.planner.serving.problem import KindIndex, Option, Problem, ServiceIndex
from pipeline.planner.serving.solution import FilledGpu, Solution, Status, ceil, judge, prune, raise_short

# Share of the time limit for the integer programme; the rest is for a solution near that of the linear programme.
_PROVING = 0.5
# Tolerance of the solver for whole numbers.
_WHOLE = 1e-6


def solve(problem: Problem, *, time_limit_s: float = 60.0) -> Solution:
    """Find the fewest GPUs that serve all services, proved if the time suffices; limits on sharing are ignored."""
    begin = time.monotonic()
    if problem.unmet:
        return Solution(gpus=(), bound=None, status="infeasible")
    end = begin + time_limit_s
    programme = _build(problem)
    counts = programme.solve(time_limit_s * _PROVING)
    gpus, bound = _serve(problem, programme, counts, end), counts.bound
    if counts.status in ("feasible", "unknown"):
        near = _solve_near_relaxation(problem, programme, end - time.monotonic())
        gpus = min(filter(None, (gpus, _serve(problem, programme, near, end))), key=len, default=[])
        bound = max((known for known in (bound, near.bound) if known is not None), default=None)
    seconds = time.monotonic() - begin
    if not gpus:
        status: Status = "infeasible" if counts.status == "infeasible" else "unknown"
        return Solution(gpus=(), bound=bound, status=status, seconds=seconds)
    return judge(gpus, bound, seconds)


def minimise_slices(
    problem: Problem, gpus: Sequence[FilledGpu], weights: Sequence[float], *, time_limit_s: float
) -> tuple[list[FilledGpu], bool]:
    """Find the instances with the least total weight that fit on `len(gpus)` GPUs; limits on sharing are ignored.

    Returns:
        The GPUs, empty if no solution was found in time, and whether the weight is proved minimal.
    """
    end = time.monotonic() + time_limit_s
    programme = _build(problem, gpu_cost=0, weights=weights)
    programme.most_gpus = len(gpus)
    counts = programme.solve(time_limit_s)
    return _serve(problem, programme, counts, end), counts.status == "optimal"


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


def _serve(problem: Problem, programme: Programme, counts: Counts, end: float) -> list[FilledGpu]:
    """Fill the GPUs of a solution; solve again if the solver's tolerance leaves a service below its rate."""
    rates = [1.0] * len(problem.services)
    while counts.columns is not None:
        gpus = _fill(problem, counts.columns)
        if not raise_short(problem, gpus, rates):
            return prune(problem, gpus)
        counts = programme.solve(end - time.monotonic(), rates)
    return []


def _fill(problem: Problem, columns: Sequence[int]) -> list[FilledGpu]:
    waiting: dict[KindIndex, list[Option]] = defaultdict(list)
    instances = zip(problem.pairs, columns[len(problem.partitions) :], strict=True)
    for (service, kind), count in sorted(instances, reverse=True):
        waiting[kind] += [problem.options[service][kind]] * count
    gpus = []
    for partition, count in zip(problem.partitions, columns, strict=False):
        for _ in range(count):
            taken = tuple(waiting[kind].pop() if waiting[kind] else None for kind in partition.slots)
            gpus.append(FilledGpu(partition, taken))
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
