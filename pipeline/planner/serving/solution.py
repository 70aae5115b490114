"""The solution of a solver: GPUs with configurations in their slots, a lower bound on their number, and its plan."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.planner.deployment import Deployment, Gpu, Instance, Plan
from pipeline.planner.profile_table import PLANNED_AS, Profile
from pipeline.planner.serving.problem import Option, Partition, Problem, ServiceIndex

Status = Literal["optimal", "feasible", "infeasible", "unknown"]
# Relative tolerance of sums of throughputs.
_ROUNDING = 1e-9
# Added to the required rate of a service that is below its rate because of the solver's tolerance, 1e-6.
_MORE = 1e-5


@dataclass(frozen=True, slots=True)
class FilledGpu:
    """A partition with the configuration in each of its slots; `None` for a free slot."""

    partition: Partition
    options: tuple[Option | None, ...]

    @property
    def services(self) -> frozenset[ServiceIndex]:
        return frozenset(option.service for option in self.options if option is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """GPUs that serve all services.

    Attributes:
        gpus: GPUs of the plan; empty without a plan.
        bound: lower bound of the number of GPUs; `None` if unknown.
        status: `unknown` if the solver found neither a plan nor a proof that no plan exists.
        has_fewest_slices: whether the number of slices is proved minimal for this number of GPUs.
    """

    gpus: tuple[FilledGpu, ...]
    bound: int | None
    status: Status
    seconds: float = 0.0
    has_fewest_slices: bool = False

    @property
    def num_gpus(self) -> int:
        return len(self.gpus)

    @property
    def gap(self) -> float | None:
        """The relative gap between the number of GPUs and its lower bound."""
        if self.bound is None or not self.gpus:
            return None
        return (len(self.gpus) - self.bound) / len(self.gpus)


def judge(gpus: Sequence[FilledGpu], bound: int | None, seconds: float = 0.0) -> Solution:
    """Return GPUs as a solution, which is optimal if the number of GPUs reaches the bound."""
    status: Status = "optimal" if bound is not None and len(gpus) <= bound else "feasible"
    return Solution(gpus=tuple(gpus), bound=bound, status=status, seconds=seconds)


def shares(problem: Problem, gpus: Sequence[FilledGpu]) -> list[float]:
    """Return the throughput of each service divided by its rate."""
    totals = [0.0] * len(problem.services)
    for gpu in gpus:
        for option in gpu.options:
            if option is not None:
                totals[option.service] += problem.share(option)
    return totals


def is_enough(share: float) -> bool:
    """Return whether a service gets its full rate."""
    return share >= 1 - _ROUNDING


def prune(problem: Problem, gpus: Sequence[FilledGpu]) -> list[FilledGpu]:
    """Remove instances that their services do not need, the largest first, and empty GPUs."""
    totals = shares(problem, gpus)
    slots = [(number, slot) for number, gpu in enumerate(gpus) for slot, option in enumerate(gpu.options) if option]
    remaining = [list(gpu.options) for gpu in gpus]

    def share_at(place: tuple[int, int]) -> float:
        option = remaining[place[0]][place[1]]
        return problem.share(option) if option else 0.0

    for place in sorted(slots, key=share_at, reverse=True):
        option = remaining[place[0]][place[1]]
        if option is not None and is_enough(totals[option.service] - problem.share(option)):
            totals[option.service] -= problem.share(option)
            remaining[place[0]][place[1]] = None
    return [
        FilledGpu(gpu.partition, tuple(options))
        for gpu, options in zip(gpus, remaining, strict=True)
        if any(option is not None for option in options)
    ]


def raise_short(problem: Problem, gpus: Sequence[FilledGpu], rates: list[float]) -> bool:
    """Raise the required rates of services that are below their rate; return whether any rate was raised."""
    short = [number for number, share in enumerate(shares(problem, gpus)) if not is_enough(share)]
    for number in short:
        rates[number] += _MORE
    return bool(short)


def ceil(bound: float) -> int:
    """Round a bound up, with the solver's relative tolerance of a millionth."""
    return math.ceil(bound - 1e-6 * max(1.0, abs(bound)))


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


def build_gpu(
    problem: Problem, model: int, options: Iterable[tuple[Option, int | None]], name: str | None = None
) -> Gpu:
    """Return a GPU of a model with configurations at their starts; `name` is its id."""
    placed = sorted(options, key=lambda pair: pair[1] or 0)
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
