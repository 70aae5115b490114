"""The plan of a solution: GPUs with explicit starts, the slack of services, and the reasons if no plan exists."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from pipeline.planner.deployment import Deployment, Gpu, Instance, Plan
from pipeline.planner.profile_table import PLANNED_AS, Profile, Row
from pipeline.planner.serving import exact
from pipeline.planner.serving.problem import Option, Problem, Unmet
from pipeline.planner.serving.solution import FilledGpu, Solution


def build_plan(
    problem: Problem,
    solution: Solution,
    profile: Profile,
    details: dict[str, Any],
    deployment: Deployment | None = None,
) -> Plan:
    """Return the plan of a solution, with `deployment` if not `None`, else on empty GPUs."""
    assert solution.status in ("optimal", "feasible")
    return Plan(
        deployment=deployment or Deployment(gpus=tuple(_place(problem, gpu) for gpu in solution.gpus)),
        services=problem.services,
        profile_digest=profile.digest,
        status=solution.status,
        bound=solution.bound,
        gap=solution.gap,
        is_simulated=profile.is_simulated,
        details=details | {"services": measure_slack(problem, solution.gpus)},
    )


def _place(problem: Problem, gpu: FilledGpu) -> Gpu:
    starts = zip(gpu.options, problem.starts(gpu.partition), strict=True)
    return build_gpu(problem, gpu.partition.model, [(o, start) for o, start in starts if o is not None])


def build_gpu(problem: Problem, model: int, taken: Iterable[tuple[Option, int | None]], name: str | None = None) -> Gpu:
    """Return a GPU of a model with configurations at their starts; `name` is its id."""
    placed = sorted(taken, key=lambda pair: pair[1] or 0)
    mig = problem.models[model].mig
    return Gpu(
        model=problem.models[model].name,
        instances=tuple(_instance(problem, *pair) for pair in placed),
        id=name,
        mode=PLANNED_AS[placed[0][0].row.sharing_mode],
        driver_branch=mig.driver_branch if mig else None,
    )


def _instance(problem: Problem, option: Option, start: int | None) -> Instance:
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


def measure_slack(problem: Problem, gpus: Sequence[FilledGpu]) -> list[dict[str, Any]]:
    """Return throughput and latency of each service with their slack.

    `rate_slack_ratio` is the spare throughput divided by the rate; `latency_slack_ratio` is the spare latency of the
    slowest instance divided by the admitted latency.
    """
    used: dict[int, list[Option]] = defaultdict(list)
    on: dict[int, list[int]] = defaultdict(list)
    for number, gpu in enumerate(gpus):
        for option in gpu.options:
            if option is not None:
                used[option.service].append(option)
                on[option.service].append(number)
    rows = []
    for number, service in enumerate(problem.services):
        options = used[number]
        planned = sum(option.throughput_per_s for option in options)
        slowest = max(options, key=lambda option: option.latency_ms)
        admitted = service.latency_share * (service.objective_ms or 0)
        rows.append(
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
                "num_instances": len(options),
                "gpus": sorted(set(on[number])),
            }
        )
    return rows


def explain_infeasibility(
    problem: Problem, solution: Solution, time_limit_s: float
) -> list[tuple[str, dict[str, Any]]]:
    """Return the reasons why no plan exists; a reason about an unmet service comes with its figures."""
    if problem.unmet:
        return [(describe_unmet(unmet), _list_figures(unmet)) for unmet in problem.unmet]
    if solution.status == "unknown":
        return [(f"the search ended after {time_limit_s:g} s without a plan; raise --time-limit-s", {})]
    limits = ", ".join(f"{model.limit} of {model.name}" for model in problem.models if model.limit is not None)
    names = [problem.services[number].name for number in exact.find_unservable(problem, time_limit_s=time_limit_s)]
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
