"""Schedules: which jobs run together, on which GPU and when, for the least makespan, mean completion or energy.

An integer programme finds the groups with the least total duration or energy; HiGHS proves the optimum, which bounds
the makespan on several GPUs. The groups are assigned to GPUs by a search and, if the problem is small, by an integer
programme with variables for each GPU. The mean completion also depends on the order of the groups, so the search
minimises it without a proof.

The file of a schedule can be read as a deployment plan with a GPU for each group, for `export` and `check`.
"""

from __future__ import annotations

import heapq
import itertools
import random
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from pipeline.base.system.errors import ConfigError
from pipeline.planner import deployment, input_files
from pipeline.planner.deployment import Deployment, Gpu, Instance, Plan
from pipeline.planner.profile_table import PLANNED_AS
from pipeline.planner.training.training_jobs import Groups, JobGroup, Objective, TrainingProblem
from pipeline.prepare.mig import layouts, profiles
from pipeline.prepare.mig.layouts import Instance as PlacedInstance

_MOST_VARIABLES = 1500
_PROVED = 1e-6
_KICKS = 8
VERSION = 1
_OBJECTIVE = "objective"
"""A key that only training plans have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The groups of each GPU in their order; `bound` is a proved lower bound of the objective, if known."""

    gpus: tuple[tuple[JobGroup, ...], ...]
    bound: float | None = None

    @property
    def makespan_s(self) -> float:
        return max((sum(group.duration_s for group in gpu) for gpu in self.gpus), default=0.0)

    @property
    def mean_completion_s(self) -> float:
        total, count = 0.0, 0
        for gpu in self.gpus:
            start_s = 0.0
            for group in gpu:
                total += start_s * len(group.runs) + group.ends_s
                count += len(group.runs)
                start_s += group.duration_s
        return total / count

    @property
    def energy_j(self) -> float | None:
        """The energy of the GPUs while jobs run; `None` if unknown for a group."""
        energies = [group.energy_j for gpu in self.gpus for group in gpu]
        measured = [energy for energy in energies if energy is not None]
        return sum(measured) if len(measured) == len(energies) else None

    def cost(self, objective: Objective) -> float | None:
        """Return the quantity that is minimised under an objective."""
        if objective == "energy":
            return self.energy_j
        return self.makespan_s if objective == "makespan" else self.mean_completion_s


def solve(
    problem: TrainingProblem, groups: Groups, objective: Objective, *, seed: int, time_limit_s: float
) -> Schedule | None:
    """Return the best schedule of the groups; `None` if no schedule exists or was found in time."""
    until_s = time.monotonic() + time_limit_s
    if not groups:
        return None
    solution = _minimise_total(problem, groups, objective, time_limit_s / 2)
    if solution is None or objective == "energy" or _is_proved(solution, objective):
        return solution
    if objective == "makespan" and problem.num_gpus * len(groups) <= _MOST_VARIABLES:
        exact = _solve_by_gpu(problem, groups, max(0.1, (until_s - time.monotonic()) / 2))
        if exact is not None:
            best = min(solution, exact, key=lambda schedule: schedule.makespan_s)
            solution = replace(best, bound=max(solution.bound or 0.0, exact.bound or 0.0))
        if _is_proved(solution, objective):
            return solution
    bound = solution.bound if objective == "makespan" else None
    left_s = max(0.1, until_s - time.monotonic())
    return replace(_search(problem, groups, solution, objective, seed, left_s), bound=bound)


def _is_proved(schedule: Schedule, objective: Objective) -> bool:
    cost = schedule.cost(objective)
    return objective != "completion" and None not in (schedule.bound, cost) and cost <= schedule.bound * (1 + _PROVED)  # type: ignore[operator]


def _minimise_total(
    problem: TrainingProblem, groups: Groups, objective: Objective, time_limit_s: float
) -> Schedule | None:
    import numpy as np

    candidates = list(itertools.chain.from_iterable(groups.values()))
    is_energy = objective == "energy"
    cost = [(group.energy_j if is_energy else group.duration_s) or 0.0 for group in candidates]
    counts = np.array([group.composition for group in candidates], float).T
    required = [job.count for job in problem.jobs]
    columns, bound = _minimise(cost, [(counts, required, required)], np.ones(len(candidates)), time_limit_s)
    if columns is None:
        return None
    selection = [group for group, number in zip(candidates, columns, strict=True) for _ in range(number)]
    if bound is not None and not is_energy:  # the makespan is at least the total over GPUs, and the longest job
        kinds = range(len(required))
        longest = [min(group.duration_s for group in candidates if group.composition[kind]) for kind in kinds]
        bound = max(bound / problem.num_gpus, *longest)
    return Schedule(
        gpus=tuple(map(_sort, _deal_groups(selection, problem.num_gpus, is_longest_first=True))), bound=bound
    )


def _solve_by_gpu(problem: TrainingProblem, groups: Groups, time_limit_s: float) -> Schedule | None:
    import numpy as np

    candidates, gpus = list(itertools.chain.from_iterable(groups.values())), range(problem.num_gpus)
    num_groups = len(candidates)
    # The variable at g * num_groups + c is the count of group c on GPU g; the last variable is the makespan.
    size = problem.num_gpus * num_groups + 1
    cost = np.zeros(size)
    cost[-1] = 1.0
    counts = np.zeros((len(problem.jobs), size))
    counts[:, :-1] = np.tile(np.array([group.composition for group in candidates], float).T, problem.num_gpus)
    busy = np.zeros((problem.num_gpus, size))
    for g in gpus:
        busy[g, g * num_groups : (g + 1) * num_groups] = [group.duration_s for group in candidates]
    busy[:, -1] = -1.0
    required = [job.count for job in problem.jobs]
    constraints: list[tuple[Any, Any, Any]] = [(counts, required, required), (busy, -np.inf, 0)]
    if len(gpus) > 1:  # GPUs are equal, so the first GPU may be the busiest
        constraints.append((busy[1:] - busy[:-1], -np.inf, 0))
    columns, bound = _minimise(cost, constraints, np.append(np.ones(size - 1), 0), time_limit_s)
    if columns is None:
        return None
    counts_by_gpu = np.reshape(columns[:-1], (problem.num_gpus, num_groups))
    placed = [[candidates[c] for c in range(num_groups) for _ in range(counts_by_gpu[g, c])] for g in gpus]
    return Schedule(gpus=tuple(map(_sort, placed)), bound=bound)


def _minimise(
    cost: Any, constraints: Sequence[tuple[Any, Any, Any]], integrality: Any, time_limit_s: float
) -> tuple[list[int] | None, float | None]:
    """Return the rounded columns with the least cost and the bound of the cost, each `None` if not found in time."""
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp

    optimum = milp(
        cost,
        constraints=[LinearConstraint(*constraint) for constraint in constraints],
        integrality=integrality,
        bounds=Bounds(0, np.inf),
        options={"time_limit": time_limit_s, "mip_rel_gap": 1e-6},
    )
    bound = None if optimum.mip_dual_bound is None else float(optimum.mip_dual_bound)
    return None if optimum.x is None else [int(count) for count in np.rint(optimum.x)], bound


def _deal_groups(groups: Sequence[JobGroup], num_gpus: int, *, is_longest_first: bool) -> list[list[JobGroup]]:
    placed: list[list[JobGroup]] = [[] for _ in range(num_gpus)]
    free = [(0.0, number) for number in range(num_gpus)]  # time at which each GPU is free
    for group in sorted(groups, key=lambda group: group.duration_s, reverse=is_longest_first):
        begin_s, number = free[0]
        placed[number].append(group)
        heapq.heapreplace(free, (begin_s + group.duration_s, number))
    return placed


def _sort(groups: Sequence[JobGroup]) -> tuple[JobGroup, ...]:
    """Sort the groups of a GPU for the least mean completion (Smith's rule)."""
    return tuple(sorted(groups, key=lambda group: (group.duration_s / len(group.runs), group.composition)))


def _search(
    problem: TrainingProblem,
    groups: Groups,
    first: Schedule,
    objective: Objective,
    seed: int,
    time_limit_s: float,
) -> Schedule:
    rng = random.Random(seed)  # noqa: S311  a search, not a secret
    until_s = time.monotonic() + time_limit_s

    def cost(schedule: Schedule) -> tuple[float, float]:
        # Among schedules with equal makespans, prefer the least total duration.
        if objective == "completion":
            return (schedule.mean_completion_s, 0.0)
        return (schedule.makespan_s, sum(group.duration_s for gpu in schedule.gpus for group in gpu))

    singles = _spread_out(problem, groups)
    best = min([first, *([singles] if singles else [])], key=cost)
    current, steps_without = best, 0
    patience = 40 * max(10, sum(job.count for job in problem.jobs))
    while time.monotonic() < until_s and steps_without < _KICKS * patience:
        steps_without += 1
        if steps_without % patience == 0:  # no progress: make some random moves from the best schedule
            current = best
            for _ in range(rng.randrange(2, 6)):
                current = _move(problem, groups, current, rng) or current
        moved = _move(problem, groups, current, rng)
        if moved is not None and cost(moved) <= cost(current):
            if cost(moved)[0] < cost(best)[0] * (1 - 1e-9):
                best, steps_without = moved, 0
            current = moved
    return best


def _spread_out(problem: TrainingProblem, groups: Groups) -> Schedule | None:
    singles: list[JobGroup] = []
    for kind, job in enumerate(problem.jobs):
        options = groups.get(tuple(int(other == kind) for other in range(len(problem.jobs))))
        if options is None:
            return None
        singles += [options[0]] * job.count
    return Schedule(gpus=tuple(map(_sort, _deal_groups(singles, problem.num_gpus, is_longest_first=False))))


def _move(problem: TrainingProblem, groups: Groups, schedule: Schedule, rng: random.Random) -> Schedule | None:
    """Move a group to another GPU, or move or swap jobs between two groups; `None` if a new group is impossible."""
    placed = [list(gpu) for gpu in schedule.gpus]
    source = rng.choice([number for number, gpu in enumerate(placed) if gpu])
    group = placed[source].pop(rng.randrange(len(placed[source])))
    target = rng.randrange(len(placed))
    if rng.random() < 0.3:
        placed[target].append(group)
        return Schedule(gpus=tuple(map(_sort, placed)))
    into = rng.randrange(len(placed[target]) + 1)
    target_kinds = [run.kind for run in placed[target].pop(into).runs] if into < len(placed[target]) else []
    source_kinds = [run.kind for run in group.runs]
    rng.shuffle(source_kinds)
    rng.shuffle(target_kinds)
    num_given, back = rng.choice([(1, 0), (1, 0), (1, 1), (rng.randint(1, len(source_kinds)), 0)])
    for gpu, kinds in (
        (source, source_kinds[num_given:] + target_kinds[:back]),
        (target, target_kinds[back:] + source_kinds[:num_given]),
    ):
        if kinds:
            options = groups.get(tuple(kinds.count(kind) for kind in range(len(problem.jobs))))
            if options is None:
                return None
            placed[gpu].append(rng.choice(options))
    return Schedule(gpus=tuple(map(_sort, placed)))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedJob:
    """A job of a group; `instance` is the position of the job's GPU instance in the group."""

    name: str
    workload: str
    batch: int | None
    instance: int | None
    instance_profile: str | None
    share_percent: float | None
    end_s: float
    rate_per_s: float
    is_predicted: bool
    error_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGroup:
    """Jobs that start together; `instances` are the profiles of the jobs' GPU instances."""

    start_s: float
    end_s: float
    mode: str
    instances: tuple[str, ...]
    jobs: tuple[PlannedJob, ...]

    @property
    def is_predicted(self) -> bool:
        """True if the speed of a job was predicted."""
        return any(job.is_predicted for job in self.jobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedGpu:
    """The groups of a GPU, in order."""

    model: str
    groups: tuple[PlannedGroup, ...]


def plan_gpu(problem: TrainingProblem, groups: Sequence[JobGroup]) -> PlannedGpu:
    """Schedule the groups of a GPU in sequence."""
    start_s, planned = 0.0, []
    for group in groups:
        jobs = tuple(
            PlannedJob(
                name=problem.jobs[run.kind].name,
                workload=problem.programs[run.kind][0],
                batch=problem.programs[run.kind][1],
                instance=run.instance,
                instance_profile=run.place.instance_profile,
                share_percent=run.place.share_percent,
                end_s=start_s + run.end_s,
                rate_per_s=run.rate_per_s,
                is_predicted=run.is_predicted,
                error_ratio=run.error_ratio,
            )
            for run in group.runs
        )
        end_s = start_s + group.duration_s
        planned.append(
            PlannedGroup(start_s=start_s, end_s=end_s, mode=group.mode, instances=group.instances, jobs=jobs)
        )
        start_s = end_s
    return PlannedGpu(model=problem.model.name, groups=tuple(planned))


def read_plan(path: Path) -> tuple[Plan, bool]:
    """Return the plan in a file, and whether the plan is for training jobs.

    Raises:
        ConfigError: the file is invalid, or a group has different workloads in one instance.
    """
    content = input_files.read_json(path)
    if _OBJECTIVE not in content:
        return deployment.from_json(content, str(path)), False
    return _read_training(content, str(path)), True


def _read_training(content: Mapping[str, Any], origin: str) -> Plan:
    if (version := content.get("version")) != VERSION:
        raise ConfigError(f"{origin}: version is {version!r}, not {VERSION}; make the plan again")
    gpus = input_files.decode(tuple[PlannedGpu, ...], content.get("gpus"), f"{origin}: gpus")
    plan = Plan(
        deployment=Deployment(
            gpus=tuple(
                _as_gpu(gpu.model, group, f"{origin}: gpus[{number}].groups[{position}]")
                for number, gpu in enumerate(gpus)
                for position, group in enumerate(gpu.groups)
            )
        ),
        profile_digest=input_files.decode(
            cast(Any, str | None), content.get("profile_digest"), f"{origin}: profile_digest"
        ),
        is_simulated=input_files.decode(bool, content.get("is_simulated", False), f"{origin}: is_simulated"),
        details={deployment.GROUPS_PER_GPU: [len(gpu.groups) for gpu in gpus]},
    )
    deployment.check(plan.deployment, origin)
    return plan


def _as_gpu(model: str, group: PlannedGroup, origin: str) -> Gpu:
    mode = PLANNED_AS.get(group.mode, "naive")
    alike: dict[object, list[PlannedJob]] = defaultdict(list)
    if mode != "mig":
        for job in group.jobs:
            alike[job.workload, job.batch, job.share_percent].append(job)
        return Gpu(model=model, mode=mode, instances=tuple(map(_as_instance, alike.values())))
    for job in group.jobs:
        alike[job.instance].append(job)
    mig = profiles.load_model(model)
    layout = layouts.plan_layout(mig, [layouts.resolve(mig, name) for name in group.instances])
    for number in range(len(layout.instances)):
        if len({(job.workload, job.batch) for job in alike[number]}) != 1:
            names = ", ".join(sorted({job.workload for job in alike[number]})) or "no job"
            raise ConfigError(
                f"{origin}: instance {number} has {names}, but only copies of one workload can be exported; "
                "plan with --modes naive,mps,mps_percent,mig"
            )
    instances = [_as_instance(alike[number], placed) for number, placed in enumerate(layout.instances)]
    return Gpu(model=model, instances=tuple(sorted(instances, key=lambda instance: instance.start or 0)))


def _as_instance(jobs: Sequence[PlannedJob], placed: PlacedInstance | None = None) -> Instance:
    return Instance(
        profile=None if placed is None else placed.profile.name,
        start=None if placed is None else placed.start,
        service=jobs[0].workload,
        processes=len(jobs),
        batch=jobs[0].batch,
        share_pct=jobs[0].share_percent,
        throughput_per_s=sum(job.rate_per_s for job in jobs),
    )
