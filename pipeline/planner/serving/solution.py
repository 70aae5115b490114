"""The solution of a solver: GPUs with configurations in their slots, and a lower bound on their number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

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
