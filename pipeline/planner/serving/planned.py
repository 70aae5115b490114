"""From a solution to a plan: GPUs with explicit starts, and why each service is where it is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from pipeline.base.domain.modes import PlannedAs
from pipeline.planner.deployment import Deployment, Gpu, Instance, Plan
from pipeline.planner.profile import PLANNED_AS, Profile, Row
from pipeline.planner.serving import exact
from pipeline.planner.serving.problem import Model, Option, Problem, Unmet
from pipeline.planner.serving.solution import Filled, Solution


def plan_of(
    problem: Problem,
    solution: Solution,
    profile: Profile,
    details: dict[str, Any],
    deployment: Deployment | None = None,
) -> Plan:
    """The plan of a solution that has GPUs.

    Args:
        problem: what was solved.
        solution: its GPUs.
        profile: that the problem was built from.
        details: what else is known of how it was made.
        deployment: the GPUs with places, in the same order; on empty GPUs if not given.
    """
    assert solution.status in ("optimal", "feasible")
    return Plan(
        deployment=deployment or Deployment(gpus=tuple(gpu_of(problem, each) for each in solution.gpus)),
        services=problem.services,
        profile_digest=profile.digest,
        status=solution.status,
        bound=solution.bound,
        gap=solution.gap,
        is_simulated=profile.is_simulated,
        details=details | {"services": slacks(problem, solution.gpus)},
    )


def gpu_of(problem: Problem, filled: Filled) -> Gpu:
    """Place the instances of a GPU; slots that stay free are not among them."""
    model = problem.models[filled.partition.model]
    starts = problem.starts(filled.partition)
    placed = [
        instance(problem, option, start)
        for option, start in zip(filled.options, starts, strict=True)
        if option is not None
    ]
    (mode,) = {mode_of(option.row) for option in filled.options if option is not None}
    return gpu(model, placed, mode)


def gpu(model: Model, instances: Sequence[Instance], mode: PlannedAs, name: str | None = None) -> Gpu:
    """A GPU of a model with these instances, from the lowest start upwards; `name` says which GPU it is."""
    return Gpu(
        model=model.name,
        instances=tuple(sorted(instances, key=lambda each: each.start or 0)),
        id=name,
        mode=mode,
        driver_branch=model.mig.driver_branch if model.mig else None,
    )


def mode_of(row: Row) -> PlannedAs:
    """How those on a GPU share it, in the words of a deployment."""
    return PLANNED_AS[row.sharing_mode]


def instance(problem: Problem, option: Option, start: int | None) -> Instance:
    """Put a configuration in its place, with the figures that were measured of it."""
    row = option.row
    return Instance(
        profile=problem.kinds[option.kind].profile or None,
        start=start,
        service=row.workload,
        processes=row.processes,
        batch=row.batch,
        share_pct=row.share_percent,
        throughput_per_s=row.throughput_per_s,
        latency_mean_ms=row.latency_mean_ms,
        latency_p99_ms=row.latency_p99_ms,
        memory_mib=row.memory_mib,
    )


def slacks(problem: Problem, gpus: Sequence[Filled]) -> list[dict[str, Any]]:
    """For each service what it gets beside what it needs.

    `rate_slack_ratio` is the throughput beyond the rate as a share of the rate, `latency_slack_ratio` what is left of
    the latency that is admitted, as a share of that, in its slowest instance.
    """
    used: dict[int, list[Option]] = defaultdict(list)
    on: dict[int, list[int]] = defaultdict(list)
    for number, each in enumerate(gpus):
        for option in each.options:
            if option is not None:
                used[option.service].append(option)
                on[option.service].append(number)
    found = []
    for number, service in enumerate(problem.services):
        own = used[number]
        planned = sum(option.throughput_per_s for option in own)
        slowest = max(own, key=lambda option: option.latency_ms)
        admitted = service.latency_share * (service.objective_ms or 0)
        found.append(
            {
                "service": service.name,
                "rate_per_s": service.rate_per_s,
                "planned_throughput_per_s": planned,
                "rate_slack_ratio": planned / service.rate_per_s - 1,
                "objective_ms": service.objective_ms,
                "admitted_below_ms": admitted,
                "latency_ms": slowest.latency_ms,
                "latency_is": "p99" if slowest.row.latency_p99_ms is not None else "mean",
                "latency_slack_ratio": 1 - slowest.latency_ms / admitted,
                "num_instances": len(own),
                "gpus": sorted(set(on[number])),
            }
        )
    return found


def reasons(problem: Problem, solution: Solution, time_limit_s: float) -> list[tuple[str, dict[str, Any]]]:
    """Why there is no plan: each reason in words, and the figures of a service that has no place."""
    if problem.unmet:
        return [(refused(unmet), _facts(unmet)) for unmet in problem.unmet]
    if solution.status == "unknown":
        return [(f"none was found within {time_limit_s:g} s; give more time with --time-limit-s", {})]
    given = ", ".join(f"{model.limit} of {model.name}" for model in problem.models if model.limit is not None)
    names = [problem.services[number].name for number in exact.left_out(problem, time_limit_s=time_limit_s)]
    which = f"; without {', '.join(names)} the others can be served" if names else ""
    return [(f"the GPUs that limits.gpus allows, {given}, are too few for these rates and objectives{which}", {})]


def _facts(unmet: Unmet) -> dict[str, Any]:
    return {
        "service": unmet.service.name,
        "objective_ms": unmet.service.objective_ms,
        "latency_share": unmet.service.latency_share,
        "best_latency_ms": unmet.latency_ms,
        "would_meet_objective_above_ms": unmet.objective_above_ms,
    }


def refused(unmet: Unmet) -> str:
    """Why a service has no place, in words."""
    service = unmet.service
    admitted = f"{service.objective_ms:g} ms"
    if service.latency_share != 1:
        admitted = (
            f"{service.latency_share:g} x {admitted} = {service.latency_share * (service.objective_ms or 0):g} ms"
        )
    if unmet.row is None or unmet.latency_ms is None:
        return f"{service.name}: its memory fits on nothing that was profiled"
    return (
        f"{service.name}: no latency is below {admitted}; its best is {unmet.latency_ms:g} ms ({in_words(unmet.row)}), "
        f"which meets an objective above {unmet.objective_above_ms:g} ms"
    )


def in_words(row: Row) -> str:
    """A configuration: `3g.40gb of a100_80gb, 2 processes, batch 8`."""
    batch = "" if row.batch is None else f", batch {row.batch}"
    count = "1 process" if row.processes == 1 else f"{row.processes} processes"
    share = "" if row.share_percent is None else f" at {row.share_percent:g} %"
    return f"{row.instance_profile or 'undivided'} of {row.gpu_model}, {count}{share}{batch}"
