"""The plan with the fewest slices among those with equally many GPUs.

Compute slices count first, then memory slices. An undivided GPU counts as all slices of its model. A GPU without MIG
counts as the model with the most slices.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from pipeline.planner.serving import exact, sharing_limits
from pipeline.planner.serving.problem import Problem
from pipeline.planner.serving.solution import FilledGpu, Solution, judge


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
    solver = sharing_limits if problem.limits.concern_sharing else exact
    gpus, is_fewest = solver.minimise_slices(problem, solution.gpus, weights, time_limit_s=time_limit_s)
    seconds = solution.seconds + time.monotonic() - begin
    if not gpus or count_slices(problem, gpus) > count_slices(problem, solution.gpus):
        return replace(solution, seconds=seconds)
    return replace(judge(gpus, solution.bound, seconds), has_fewest_slices=is_fewest)
