"""The methods that solve a problem, behind one interface."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from pipeline.base.system.errors import ConfigError
from pipeline.planner.serving import exact, genetic, greedy, sharing_limits, slices, tree
from pipeline.planner.serving.candidates import Candidates, Configuration
from pipeline.planner.serving.problem import Problem
from pipeline.planner.serving.solution import Solution, judge, prune
from pipeline.planner.serving.tree import Cost

EXACT, GREEDY, TREE, GENETIC = "exact", "greedy", "tree", "genetic"
METHODS: Mapping[str, str] = {
    EXACT: "integer programme, with a proof",
    GREEDY: "MIG-serving's greedy algorithm",
    TREE: "MIG-serving's tree search, which starts from the greedy plan",
    GENETIC: "MIG-serving's genetic algorithm, which starts from the greedy plan",
}
_MOST_INSTANCES = 100_000
# If the gap is smaller, the greedy plan is not computed, because it is hardly better.
_NEAR = 0.02
# Lower and upper limit of the time for the fewest slices; a hundred services take three seconds.
_LEAST_S, _MOST_S = 1.0, 5.0
_SEARCHES = {TREE: tree.search, GENETIC: genetic.search}


def solve(
    problem: Problem,
    method: str,
    *,
    seed: int = 0,
    time_limit_s: float,
    bound: int | None = None,
    cost: Cost = len,
    fewest_slices: bool = True,
) -> Solution:
    """Find the fewest GPUs with a method within the time limit; minimise the slices in the remaining time.

    The exact method returns the greedy plan if the greedy plan has fewer GPUs. Searches stop at `bound`, a proved lower
    bound, and minimise `cost`; with a cost other than `len`, slices are not minimised.

    Raises:
        ConfigError: a rate needs too many GPUs.
    """
    solution = _search(problem, method, seed=seed, time_limit_s=time_limit_s, bound=bound, cost=cost)
    if not fewest_slices or cost is not len:
        return solution
    left_s = min(max(time_limit_s - solution.seconds, _LEAST_S), _MOST_S)
    return slices.minimise_slices(problem, solution, time_limit_s=left_s)


def _search(
    problem: Problem, method: str, *, seed: int, time_limit_s: float, bound: int | None, cost: Cost
) -> Solution:
    begin = time.monotonic()
    if problem.unmet:
        return Solution(gpus=(), bound=None, status="infeasible")
    _check_size(problem)
    if method == EXACT:
        solve_exactly = sharing_limits.solve if problem.limits.concern_sharing else exact.solve
        solution = solve_exactly(problem, time_limit_s=time_limit_s)
        if solution.status == "infeasible" or (solution.gap is not None and solution.gap <= _NEAR):
            return solution
        other = _search(problem, GREEDY, seed=seed, time_limit_s=time_limit_s, bound=solution.bound, cost=len)
        is_better = other.gpus and (not solution.gpus or other.num_gpus < solution.num_gpus)
        return replace(other if is_better else solution, seconds=time.monotonic() - begin)
    candidates = Candidates(problem)
    configurations: list[Configuration] | None = greedy.complete(candidates, [])
    if configurations is None:
        return Solution(gpus=(), bound=bound, status="unknown", seconds=time.monotonic() - begin)
    if method in _SEARCHES:
        left_s = time_limit_s - (time.monotonic() - begin)
        lowest = bound if cost is len and bound is not None else 0
        configurations = _SEARCHES[method](
            candidates, configurations, seed=seed, time_limit_s=left_s, bound=lowest, cost=cost
        )
    gpus = prune(problem, [candidates.fill(configuration) for configuration in configurations])
    return judge(gpus, bound, time.monotonic() - begin)


def _check_size(problem: Problem) -> None:
    """Raise ConfigError for rates whose plans would exhaust the memory of this machine."""
    for service, options in zip(problem.services, problem.options, strict=True):
        if options and service.rate_per_s > _MOST_INSTANCES * max(
            option.throughput_per_s for option in options.values()
        ):
            raise ConfigError(
                f"service {service.name}: rate_per_s={service.rate_per_s:g} would need more than {_MOST_INSTANCES} "
                "instances, even of the fastest kind; check that the rate is in requests per second"
            )
