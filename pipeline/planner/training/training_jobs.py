"""Training jobs: the work of each job, and the time and energy of groups on one GPU.

A *composition* is the number of jobs of each kind in a group. The jobs of a group start together, and the next group
starts when the last job ends. Under naive sharing and MPS, a job speeds up when another job ends. Start-up is not
counted.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipeline.base.domain import mig_table
from pipeline.base.domain.sharing_modes import MIG, MIG_MPS, MPS, MPS_PERCENT, NAIVE, SERIAL
from pipeline.base.system.errors import ConfigError
from pipeline.planner import input_files
from pipeline.planner.profile_table import Profile as Table
from pipeline.planner.serving.problem import Model
from pipeline.planner.training.speed import Place, Program, Speed, Speeds
from pipeline.prepare.mig import layouts
from pipeline.prepare.mig.profiles import Profile

Objective = Literal["makespan", "completion", "energy"]
MODES = (SERIAL.name, NAIVE.name, MPS.name, MPS_PERCENT.name, MIG.name, MIG_MPS.name)
MOST_COMPOSITIONS = 3000
_MOST_TOGETHER = 7
_MOST_JOBS, _MOST_GPUS = 100_000, 4096
Composition = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Jobs of one kind.

    Attributes:
        work: work of each job, in work units.
        workload: name of the workload in the profile; `name` by default.
        batch: batch size; optional if the profile has only one batch size.
    """

    name: str
    work: float
    workload: str | None = None
    batch: int | None = None
    count: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _File:
    jobs: tuple[Job, ...]
    gpus: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProblem:
    """Jobs, the GPUs of one model for them, and their speeds."""

    jobs: tuple[Job, ...]
    programs: tuple[Program, ...]
    num_gpus: int
    model: Model
    speeds: Speeds
    memory_mib: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One job of a group.

    Attributes:
        kind: position of the job's kind in the file.
        instance: position of the job's instance in the group; `None` without instances.
        end_s: end of the job, since the start of the group.
        rate_per_s: rate at the start of the group, in work units.
        is_predicted: whether a speed of the job was predicted.
        error_ratio: largest known error of the predicted speeds.
    """

    kind: int
    place: Place
    instance: int | None
    end_s: float
    rate_per_s: float
    energy_j: float | None
    is_predicted: bool
    error_ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGroup:
    """Jobs that run together on one GPU; `instances` are the profiles of its GPU instances."""

    composition: Composition
    mode: str
    runs: tuple[Run, ...]
    instances: tuple[str, ...] = ()

    @property
    def duration_s(self) -> float:
        return max(run.end_s for run in self.runs)

    @property
    def ends_s(self) -> float:
        """The sum of the end times of the jobs."""
        return sum(run.end_s for run in self.runs)

    @property
    def energy_j(self) -> float | None:
        """The energy of the jobs; `None` if the energy of one job is unknown."""
        energies = [run.energy_j for run in self.runs if run.energy_j is not None]
        return sum(energies) if len(energies) == len(self.runs) else None

    def cost(self, objective: Objective) -> float | None:
        """Return the group's contribution to the objective; `None` if unknown."""
        if objective == "energy":
            return self.energy_j
        return self.duration_s if objective == "makespan" else self.ends_s


Groups = Mapping[Composition, Sequence[JobGroup]]
"""Groups by composition."""


def read(path: Path, num_gpus: int | None, model: Model, table: Table) -> TrainingProblem:
    """Read a file of jobs for GPUs of a model; ConfigError if a job is invalid, or the profile lacks its rows."""
    content = input_files.decode(_File, input_files.read_mapping(path, "jobs"), str(path))
    if not content.jobs:
        raise ConfigError(f"{path}: jobs is empty; list at least one job")
    gpus = content.gpus if num_gpus is None else num_gpus
    if not 1 <= gpus <= _MOST_GPUS:
        origin = f"{path}: gpus:" if num_gpus is None else "--gpus"
        raise ConfigError(f"{origin} {gpus}: must be from 1 to {_MOST_GPUS}; correct the number")
    if (num_jobs := sum(job.count for job in content.jobs)) > _MOST_JOBS:
        raise ConfigError(f"{path}: jobs: {num_jobs} jobs are too many; plan at most {_MOST_JOBS}")
    if twice := [name for name, count in Counter(job.name for job in content.jobs).items() if count > 1]:
        raise ConfigError(f"{path}: jobs: {twice[0]} is listed twice; set its count instead")
    speeds = Speeds(model=model, rows=[row for row in table.rows if row.gpu_model == model.name])
    if not speeds.rows:
        raise ConfigError(
            f"{table.source}: has no row of {model.name}; choose --gpu {' or '.join(table.gpu_models)}, or measure the "
            f"jobs on {model.name}"
        )
    table_entry = mig_table.models().get(model.name)
    return TrainingProblem(
        jobs=content.jobs,
        programs=tuple(_program(f"{path}: jobs[{n}] {job.name}", job, speeds) for n, job in enumerate(content.jobs)),
        num_gpus=gpus,
        model=model,
        speeds=speeds,
        memory_mib=table_entry.capacity_mib if table_entry else None,
    )


def _program(origin: str, job: Job, speeds: Speeds) -> Program:
    for key in ("work", "count"):
        if getattr(job, key) == 0:
            raise ConfigError(f"{origin}, {key}: must be above 0; correct the number")
    name = job.workload or job.name
    batches = list(dict.fromkeys(row.batch for row in speeds.rows if row.workload == name))
    if not batches:
        workloads = ", ".join(sorted({row.workload for row in speeds.rows}))
        raise ConfigError(
            f"{origin}: the profile has no row of {name} on {speeds.model.name}; choose among {workloads}"
        )
    if job.batch is None and len(batches) > 1:
        raise ConfigError(
            f"{origin}, batch: the key is missing; choose a batch of the profile: {', '.join(map(str, batches))}"
        )
    if job.batch is not None and job.batch not in batches:
        raise ConfigError(
            f"{origin}, batch: the profile has no row of {name} at batch {job.batch}; choose {batches[0]}"
        )
    program = (name, batches[0] if job.batch is None else job.batch)
    if speeds.find_alone(program) is None:
        raise ConfigError(f"{origin}: the profile has no row of {name} alone on {speeds.model.name}; measure degree=1")
    return program


def compositions(problem: TrainingProblem) -> list[Composition]:
    """Return the compositions of all groups, by size, up to the size that would exceed `MOST_COMPOSITIONS`."""
    kinds, limits = range(len(problem.jobs)), [job.count for job in problem.jobs]
    found_compositions: list[Composition] = []
    for size in range(1, _MOST_TOGETHER + 1):
        combinations = itertools.combinations_with_replacement(kinds, size)
        counted = (tuple(map(combination.count, kinds)) for combination in combinations)
        new = [composition for composition in counted if all(map(operator.le, composition, limits))]
        if found_compositions and len(found_compositions) + len(new) > MOST_COMPOSITIONS:
            break
        found_compositions += new
    return found_compositions


def groups_of(problem: TrainingProblem, composition: Composition, modes: Sequence[str] = MODES) -> Iterator[JobGroup]:
    """Yield the groups of a composition whose speeds are known and whose memory fits."""
    kinds = [kind for kind, count in enumerate(composition) for _ in range(count)]
    for mode in (SERIAL.name,) if len(kinds) == 1 else (NAIVE.name, MPS.name):
        if mode in modes and (runs := _run_together(problem, kinds, mode)) is not None:
            yield JobGroup(composition=composition, mode=mode, runs=tuple(runs))
    if MPS_PERCENT.name in modes and len(kinds) > 1:
        yield from _with_shares(problem, composition, kinds)
    if problem.model.mig is not None and {MIG.name, MIG_MPS.name} & set(modes):
        yield from _on_instances(problem, composition, kinds, modes)


def _with_shares(problem: TrainingProblem, composition: Composition, kinds: Sequence[int]) -> Iterator[JobGroup]:
    alone = [_alone_s(problem, kind) for kind in kinds]
    for shares in {
        tuple(math.floor(10_000 / len(kinds)) / 100 for _ in kinds),
        tuple(max(5.0, 5 * round(20 * seconds / sum(alone))) for seconds in alone),
    }:
        if sum(shares) > 100 + 1e-6:
            continue
        if (runs := _run_together(problem, kinds, MPS_PERCENT.name, shares=shares)) is not None:
            yield JobGroup(composition=composition, mode=MPS_PERCENT.name, runs=tuple(runs))


def _on_instances(
    problem: TrainingProblem, composition: Composition, kinds: Sequence[int], modes: Sequence[str]
) -> Iterator[JobGroup]:
    """Yield groups on each maximal partition: one job per instance if possible, else several under MPS."""
    mig = problem.model.mig
    assert mig is not None
    for names in layouts.list_maximal_combinations(mig):
        used = sorted((layouts.resolve(mig, name) for name in names), key=lambda profile: profile.size, reverse=True)
        used = used[: len(kinds)]
        mode = MIG.name if len(used) == len(kinds) else MIG_MPS.name
        if mode not in modes:
            continue
        runs: list[Run] = []
        for number, (profile, dealt) in enumerate(zip(used, _deal(problem, kinds, used), strict=True)):
            placed = _run_together(problem, dealt, mode, instance=(number, profile))
            if placed is None:
                break
            runs += placed
        else:
            instances = tuple(profile.name for profile in used)
            yield JobGroup(composition=composition, mode=mode, runs=tuple(runs), instances=instances)


def _deal(problem: TrainingProblem, kinds: Sequence[int], used: Sequence[Profile]) -> list[list[int]]:
    """Assign jobs to instances, at least one job each: the longest job first, to the instance that ends it first."""
    dealt: list[list[int]] = [[] for _ in used]
    longest_first = sorted(kinds, key=lambda kind: -_alone_s(problem, kind))
    for position, kind in enumerate(longest_first):
        empty = [place for place, jobs in enumerate(dealt) if not jobs]
        is_tight = len(empty) >= len(kinds) - position

        def load(place: int, kind: int = kind) -> float:
            work = sum(_alone_s(problem, other) for other in (*dealt[place], kind))
            return float(work / used[place].compute_slices)

        dealt[min(empty if is_tight else range(len(used)), key=load)].append(kind)
    return dealt


def _alone_s(problem: TrainingProblem, kind: int) -> float:
    speed = problem.speeds.find_alone(problem.programs[kind])
    assert speed is not None
    return problem.jobs[kind].work / speed.rate_per_s


def _run_together(
    problem: TrainingProblem,
    kinds: Sequence[int],
    mode: str,
    *,
    shares: Sequence[float] | None = None,
    instance: tuple[int, Profile] | None = None,
) -> list[Run] | None:
    number, profile = instance or (None, None)
    capacity_mib = problem.memory_mib if profile is None else profile.memory_mib

    def place_at(position: int, num_left: int) -> Place:
        if shares is not None:
            return Place(mode=mode, share_percent=shares[position], processes=len(kinds))
        return Place(mode=mode, instance_profile=None if profile is None else profile.name, processes=num_left)

    is_mps = mode == MPS.name and shares is None and instance is None
    work_left = {position: problem.jobs[kind].work for position, kind in enumerate(kinds)}
    now_s = 0.0
    first: dict[int, Speed] = {}
    worst: dict[int, Speed] = {}
    energy_j: dict[int, float | None] = dict.fromkeys(work_left, 0.0)
    ends_s: dict[int, float] = {}
    while work_left:
        programs = [problem.programs[kinds[position]] for position in work_left]
        is_mixed = len(set(programs)) > 1
        mixed = problem.speeds.find_mixed(programs) if is_mixed and is_mps else None
        speeds: dict[int, Speed] = {} if mixed is None else dict(zip(work_left, mixed, strict=True))
        for position in work_left.keys() - speeds.keys():
            place = place_at(position, len(work_left))
            if (speed := problem.speeds.find(problem.programs[kinds[position]], place, is_mixed=is_mixed)) is None:
                return None
            speeds[position] = speed
        if not first and sum(speed.memory_mib or 0.0 for speed in speeds.values()) > (capacity_mib or math.inf):
            return None
        first = first or speeds
        step_s = min(work_left[position] / speed.rate_per_s for position, speed in speeds.items())
        now_s += step_s
        for position, speed in speeds.items():
            worst[position] = max(worst.get(position, speed), speed, key=_doubt)
            done, so_far_j = min(work_left[position], step_s * speed.rate_per_s), energy_j[position]
            is_known = so_far_j is not None and speed.energy_per_item_j is not None
            energy_j[position] = so_far_j + speed.energy_per_item_j * done if is_known else None  # type: ignore[operator]
            work_left[position] -= done
            if work_left[position] <= 1e-9 * problem.jobs[kinds[position]].work:
                ends_s[position] = now_s
                del work_left[position]
    return [
        Run(
            kind=kind,
            place=place_at(position, len(kinds)),
            instance=number,
            end_s=ends_s[position],
            rate_per_s=first[position].rate_per_s,
            energy_j=energy_j[position],
            is_predicted=worst[position].is_predicted,
            error_ratio=worst[position].error_ratio,
        )
        for position, kind in enumerate(kinds)
    ]


def _doubt(speed: Speed) -> tuple[bool, bool, float]:
    return (speed.is_predicted, speed.is_predicted and speed.error_ratio is None, speed.error_ratio or 0.0)


def find_cheapest(
    problem: TrainingProblem, objective: Objective, modes: Sequence[str] = MODES, *, is_measured_only: bool = False
) -> Groups:
    """Return the groups of each composition that an optimal schedule may have.

    For makespan and energy, this is the cheapest group (among equally cheap groups, the shortest), unless two smaller
    groups in sequence cost no more. For mean completion, the duration counts too, because later groups wait: these are
    all groups on the Pareto front of the sum of end times and the duration, sorted by the sum.
    """
    best: dict[Composition, tuple[JobGroup, ...]] = {}
    for composition in compositions(problem):
        candidates = [
            (cost, group.duration_s, group)
            for group in groups_of(problem, composition, modes)
            if (cost := group.cost(objective)) is not None
            and not (is_measured_only and any(run.is_predicted for run in group.runs))
        ]
        candidates.sort(key=lambda candidate: candidate[:2])
        if objective == "completion":
            shortest_s = [math.inf, *itertools.accumulate((duration_s for _, duration_s, _ in candidates), min)]
            groups = tuple(
                group
                for (_, _, group), before_s in zip(candidates, shortest_s, strict=False)
                if group.duration_s < before_s
            )
        else:
            in_turn = _cost_in_turn(composition, best, objective)
            groups = tuple(group for cost, _, group in candidates[:1] if in_turn is None or cost < in_turn)
        if groups:
            best[composition] = groups
    return best


def _cost_in_turn(composition: Composition, best: Groups, objective: Objective) -> float | None:
    """Return the least cost of a composition that is split into two groups in sequence; `None` without such groups."""
    totals: list[float] = []
    for part in itertools.product(*(range(count + 1) for count in composition)):
        remainder = tuple(map(operator.sub, composition, part))
        costs = [group.cost(objective) for part_or_rest in (part, remainder) for group in best.get(part_or_rest, ())]
        parts = [cost for cost in costs if cost is not None]
        if len(parts) == 2:
            totals.append(sum(parts))
    return min(totals, default=None)
