"""The plan on a given number of GPUs with the fewest changes from today's plan, then with the fewest slices.

An instance is kept if its service, GPU, start and configuration stay the same; other instances are removed and created.
Under limits on sharing, the GPUs of a plan are matched with today's GPUs, and the number of changes is not proved.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.planner.deployment import Deployment
from pipeline.planner.serving import slices
from pipeline.planner.serving.change_programme import PlacementProgramme, count_fewest_changes
from pipeline.planner.serving.matching import match_gpus
from pipeline.planner.serving.problem import Problem
from pipeline.planner.serving.solution import FilledGpu, judge
from pipeline.planner.serving.targets import Target, count_kept, find_kept_options, list_layouts

# Shares of the remaining time for counting the changes and for placing the instances.
_COUNTING, _PLACING = 0.4, 0.6
# Share and upper limit of the remaining time for the fewest slices.
_SLIMMING, _MOST_SLICING_S = 0.1, 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A deployment and its difference from today's deployment, in instances.

    Attributes:
        gpus: GPUs of the deployment, in its order.
        at_least: proved lower bound of created plus removed instances on this number of GPUs; `None` if unknown.
        has_fewest_slices: whether the number of slices is proved minimal for this number of GPUs and changes.
    """

    deployment: Deployment
    gpus: tuple[FilledGpu, ...]
    num_kept: int
    num_created: int
    num_removed: int
    at_least: int | None
    has_fewest_slices: bool = False

    @property
    def is_least(self) -> bool:
        """True if the number of changes is proved minimal for this number of GPUs."""
        return self.at_least is not None and self.num_created + self.num_removed <= self.at_least


def find_least_change(problem: Problem, gpus: Sequence[FilledGpu], today: Deployment, *, time_limit_s: float) -> Change:
    """Find the plan with the fewest changes on at most as many GPUs as `gpus`, within the time limit."""
    end = time.monotonic() + time_limit_s
    layouts = list_layouts(problem)
    current = [find_kept_options(problem, gpu) for gpu in today.gpus]

    def num_changes(targets: Sequence[Target]) -> int:
        """Return created minus kept instances, which equals the changes minus today's instances."""
        return sum(len(target.taken) for target in targets) - 2 * count_kept(targets, current)

    def remaining_s() -> float:
        return max(end - time.monotonic(), 0.1)

    def weigh(targets: Sequence[Target]) -> tuple[int, tuple[int, int]]:
        return num_changes(targets), slices.count_slices(problem, [target.filled for target in targets])

    slim = slices.minimise_slices(problem, judge(gpus, None), time_limit_s=remaining_s() * _SLIMMING)
    chosen, lowest = min((match_gpus(solution, current, layouts) for solution in (gpus, slim.gpus)), key=weigh), None
    has_fewest = False
    if not problem.limits.concern_sharing:
        counts = count_fewest_changes(problem, len(gpus), current, remaining_s() * _COUNTING)
        lowest = None if counts is None else counts.changes
        for fixed in (counts, None):
            if lowest is not None and num_changes(chosen) <= lowest:
                break
            part = _PLACING if fixed else 1
            better, is_proved = PlacementProgramme(problem, len(gpus), current, layouts, fixed).solve(
                remaining_s() * part
            )
            if better is not None and num_changes(better) < num_changes(chosen):
                chosen = better
            if better is not None and is_proved and fixed is None:
                lowest = num_changes(better)
        weights = slices.weigh_kinds(problem, len(gpus))
        programme = PlacementProgramme(problem, len(gpus), current, layouts)
        better, is_fewest = programme.find_lightest(weights, num_changes(chosen), min(remaining_s(), _MOST_SLICING_S))
        if better is not None and weigh(better) <= weigh(chosen):
            chosen, has_fewest = better, is_fewest and num_changes(better) == lowest
    num_today = sum(len(gpu.instances) for gpu in today.gpus)
    num_kept = count_kept(chosen, current)
    return Change(
        deployment=Deployment(gpus=tuple(target.to_gpu(problem, today) for target in chosen)),
        gpus=tuple(target.filled for target in chosen),
        num_kept=num_kept,
        num_created=sum(len(target.taken) for target in chosen) - num_kept,
        num_removed=num_today - num_kept,
        at_least=None if lowest is None else lowest + num_today,
        has_fewest_slices=has_fewest,
    )
