"""Find, among plans with a given number of GPUs, the one with fewest changes from today's, then fewest slices.

An instance stays if its service, position and configuration stay; others are removed or created. If limits restrict who
may share a GPU, the GPUs of a plan are matched with today's, and the number of changes is not proved.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.planner.deployment import Deployment
from pipeline.planner.serving import slices
from pipeline.planner.serving import targets as of_targets
from pipeline.planner.serving.change_programme import PlacementProgramme, count_fewest_changes
from pipeline.planner.serving.matching import match_gpus
from pipeline.planner.serving.problem import Problem
from pipeline.planner.serving.solution import FilledGpu, judge
from pipeline.planner.serving.targets import Target

# Shares of the remaining time: for counting the changes, and for placing them.
_COUNTING, _PLACING = 0.4, 0.6
# For the fewest slices: share of the remaining time, and the maximum.
_SLIMMING, _MOST_SLICING_S = 0.1, 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A deployment and its difference from today's, in instances.

    Attributes:
        gpus: the GPUs of the deployment, in its order.
        at_least: the fewest instances that any plan with so few GPUs creates or removes; `None` if nothing is proved.
        has_fewest_slices: whether no plan with so few GPUs and changes has fewer slices, proved.
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
        """True if proved that no plan with so few GPUs changes less."""
        return self.at_least is not None and self.num_created + self.num_removed <= self.at_least


def find_least_change(problem: Problem, gpus: Sequence[FilledGpu], today: Deployment, *, time_limit_s: float) -> Change:
    """Serve all services on at most as many GPUs, with the fewest changes found within the time limit."""
    end = time.monotonic() + time_limit_s
    layouts = of_targets.list_layouts(problem)
    current = [of_targets.find_kept_options(problem, gpu) for gpu in today.gpus]

    def num_changes(targets: Sequence[Target]) -> int:
        """Count created minus kept instances, which is the number of changes minus that of today's instances."""
        return sum(len(target.taken) for target in targets) - 2 * of_targets.count_kept(targets, current)

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
    num_kept = of_targets.count_kept(chosen, current)
    return Change(
        deployment=Deployment(gpus=tuple(target.to_gpu(problem, today) for target in chosen)),
        gpus=tuple(target.filled for target in chosen),
        num_kept=num_kept,
        num_created=sum(len(target.taken) for target in chosen) - num_kept,
        num_removed=num_today - num_kept,
        at_least=None if lowest is None else lowest + num_today,
        has_fewest_slices=has_fewest,
    )
