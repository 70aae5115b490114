"""The methods that solve a problem, behind one interface; among plans with equally many GPUs, the fewest slices.

Compute slices count first, then memory slices. An undivided GPU counts as all slices of its model. A GPU without MIG
counts as the model with the most slices.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipeline.base.system.errors import ConfigError
from pipeline.planner.profile_table import Row
from pipeline.planner.serving import integer_programme, mig_serving
from pipeline.planner.serving.mig_serving import Candidates, Configuration, Cost
from pipeline.planner.serving.problem import Problem, Unmet
from pipeline.planner.serving.solution import FilledGpu, Solution, judge, prune

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
_SEARCHES = {TREE: mig_serving.grow_tree, GENETIC: mig_serving.evolve}


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
    return minimise_slices(problem, solution, time_limit_s=left_s)


def _search(
    problem: Problem, method: str, *, seed: int, time_limit_s: float, bound: int | None, cost: Cost
) -> Solution:
    begin = time.monotonic()
    if problem.unmet:
        return Solution(gpus=(), bound=None, status="infeasible")
    _check_size(problem)
    if method == EXACT:
        solution = integer_programme.solve(problem, time_limit_s=time_limit_s)
        if solution.status == "infeasible" or (solution.gap is not None and solution.gap <= _NEAR):
            return solution
        other = _search(problem, GREEDY, seed=seed, time_limit_s=time_limit_s, bound=solution.bound, cost=len)
        is_better = other.gpus and (not solution.gpus or other.num_gpus < solution.num_gpus)
        return replace(other if is_better else solution, seconds=time.monotonic() - begin)
    candidates = Candidates(problem)
    configurations: list[Configuration] | None = mig_serving.complete_greedily(candidates, [])
    if configurations is None:
        return Solution(gpus=(), bound=bound, status="unknown", seconds=time.monotonic() - begin)
    if method in _SEARCHES:
        left_s = time_limit_s - (time.monotonic() - begin)
        lowest = bound if cost is len and bound is not None else 0
        configurations = mig_serving.search(
            candidates, configurations, _SEARCHES[method], seed=seed, time_limit_s=left_s, bound=lowest, cost=cost
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


def explain_infeasibility(
    problem: Problem, solution: Solution, time_limit_s: float
) -> list[tuple[str, dict[str, Any]]]:
    """Return the reasons why no plan exists; a reason about an unmet service comes with its figures."""
    if problem.unmet:
        return [(describe_unmet(unmet), _list_figures(unmet)) for unmet in problem.unmet]
    if solution.status == "unknown":
        return [(f"the search ended after {time_limit_s:g} s without a plan; raise --time-limit-s", {})]
    limits = ", ".join(f"{model.limit} of {model.name}" for model in problem.models if model.limit is not None)
    names = [
        problem.services[number].name
        for number in integer_programme.find_unservable(problem, time_limit_s=time_limit_s)
    ]
    without = f"; without {', '.join(names)} the others can be served" if names else ""
    return [(f"limits.gpus ({limits}) allows too few GPUs for these rates and objectives{without}", {})]


def _list_figures(unmet: Unmet) -> dict[str, Any]:
    return {
        "service": unmet.service.name,
        "objective_ms": unmet.service.objective_ms,
        "latency_share": unmet.service.latency_share,
        "best_latency_ms": unmet.latency_ms,
        "would_meet_objective_above_ms": unmet.objective_above_ms,
    }


def describe_unmet(unmet: Unmet) -> str:
    """Describe why a service has no configuration."""
    service = unmet.service
    admitted = f"{service.objective_ms:g} ms"
    if service.latency_share != 1:
        admitted = (
            f"{service.latency_share:g} x {admitted} = {service.latency_share * (service.objective_ms or 0):g} ms"
        )
    if unmet.row is None or unmet.latency_ms is None:
        return f"{service.name}: its memory is larger than every profiled instance and GPU"
    return (
        f"{service.name}: no latency is below {admitted}; the best is {unmet.latency_ms:g} ms "
        f"({_describe_configuration(unmet.row)}), which meets an objective above {unmet.objective_above_ms:g} ms"
    )


def _describe_configuration(row: Row) -> str:
    batch = "" if row.batch is None else f", batch {row.batch}"
    share = "" if row.share_percent is None else f" at {row.share_percent:g} %"
    processes = "1 process" if row.processes == 1 else f"{row.processes} processes"
    return f"{row.instance_profile or 'undivided'} of {row.gpu_model}, {processes}{share}{batch}"


def count_slices(problem: Problem, gpus: Sequence[FilledGpu]) -> tuple[int, int]:
    """Return the compute and memory slices of all instances."""
    used = [problem.kinds[option.kind].slices for gpu in gpus for option in gpu.options if option is not None]
    return sum(compute for compute, _ in used), sum(memory for _, memory in used)


def weigh_kinds(problem: Problem, num_gpus: int) -> list[float]:
    """Return weights of the kinds; the sum of weights orders plans by compute slices, then by memory slices."""
    heaviest = 1 + num_gpus * max(kind.slices[1] for kind in problem.kinds)
    return [float(heaviest * compute + memory) for compute, memory in (kind.slices for kind in problem.kinds)]


def minimise_slices(problem: Problem, solution: Solution, *, time_limit_s: float) -> Solution:
    """Return the solution with the fewest slices found in time, on no more GPUs and with the same bound."""
    if not solution.gpus:
        return solution
    begin = time.monotonic()
    weights = weigh_kinds(problem, solution.num_gpus)
    gpus, is_fewest = integer_programme.minimise_weight(problem, solution.gpus, weights, time_limit_s=time_limit_s)
    seconds = solution.seconds + time.monotonic() - begin
    if not gpus or count_slices(problem, gpus) > count_slices(problem, solution.gpus):
        return replace(solution, seconds=seconds)
    return replace(judge(gpus, solution.bound, seconds), has_fewest_slices=is_fewest)
