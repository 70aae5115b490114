"""Jobs that are to be trained: how much work each has, and what it takes them together on one GPU.

A *composition* says how many jobs of each kind run together. They start at the same instant, and the GPU takes the next
ones when the last of them is done; under naive sharing and MPS, those that stay speed up as others end. Start-up is not
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
from pipeline.base.domain.modes import MIG, MIG_MPS, MPS, MPS_PERCENT, NAIVE, SERIAL
from pipeline.base.system.errors import ConfigError
from pipeline.planner import files
from pipeline.planner.profile import Profile as Table
from pipeline.planner.serving.problem import Model
from pipeline.planner.training.speed import Place, Program, Speed, Speeds
from pipeline.prepare.mig import partitions
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
        work: what each has to do, in items of its workload.
        workload: the name if not given.
        batch: as in the profile; may be left out where that has one only.
        count: how many there are.
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
class Problem:
    """Jobs, the GPUs of one model that they may use, and how fast they are there."""

    jobs: tuple[Job, ...]
    programs: tuple[Program, ...]
    num_gpus: int
    model: Model
    speeds: Speeds
    memory_mib: float | None

    def composition(self, kind: int) -> Composition:
        """One job of a kind, alone."""
        return tuple(int(other == kind) for other in range(len(self.jobs)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One job of a group.

    Attributes:
        kind: position of its job in the file.
        instance: position of its instance in the group; `None` without instances.
        end_s: since the group started.
        rate_per_s: when it starts, in items.
        is_predicted: whether any of its speeds was not measured as such.
        error_ratio: the largest known error of these predictions.
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
class Group:
    """Jobs together on one GPU; `instances` are the profiles of its GPU instances."""

    composition: Composition
    mode: str
    runs: tuple[Run, ...]
    instances: tuple[str, ...] = ()

    @property
    def duration_s(self) -> float:
        return max(run.end_s for run in self.runs)

    @property
    def ends_s(self) -> float:
        """The ends of all of its jobs, added up."""
        return sum(run.end_s for run in self.runs)

    @property
    def energy_j(self) -> float | None:
        """`None` where that of a job is not known."""
        found = [run.energy_j for run in self.runs if run.energy_j is not None]
        return sum(found) if len(found) == len(self.runs) else None

    def cost(self, objective: Objective) -> float | None:
        """What it adds to the objective, by which groups of equal jobs are compared; `None` if it is not known."""
        if objective == "energy":
            return self.energy_j
        return self.duration_s if objective == "makespan" else self.ends_s


Groups = Mapping[Composition, Sequence[Group]]
"""That may be used, by composition."""


def read(path: Path, num_gpus: int | None, model: Model, table: Table) -> Problem:
    """The problem that a file of jobs states on GPUs of a model.

    Raises:
        ConfigError: the file or a job cannot be used, or the profile says too little of a job.
    """
    content = files.decode(_File, files.read_mapping(path, "jobs"), str(path))
    if not content.jobs:
        raise ConfigError(f"{path}: jobs is empty: there is nothing to plan")
    gpus = content.gpus if num_gpus is None else num_gpus
    if not 1 <= gpus <= _MOST_GPUS:
        where = f"{path}: gpus:" if num_gpus is None else "--gpus"
        raise ConfigError(f"{where} {gpus}: must be from 1 to {_MOST_GPUS}")
    if (num_jobs := sum(job.count for job in content.jobs)) > _MOST_JOBS:
        raise ConfigError(f"{path}: jobs: {num_jobs} together, and a plan is made for {_MOST_JOBS} at most")
    if twice := [name for name, count in Counter(job.name for job in content.jobs).items() if count > 1]:
        raise ConfigError(f"{path}: jobs: {twice[0]} is there twice; give it a count")
    rows = [row for row in table.rows if row.gpu_model == model.name]
    speeds = Speeds(model=model, rows=rows)
    programs = tuple(
        _program(f"{path}: jobs[{number}] {job.name}", job, speeds) for number, job in enumerate(content.jobs)
    )
    return Problem(
        jobs=content.jobs,
        programs=programs,
        num_gpus=gpus,
        model=model,
        speeds=speeds,
        memory_mib=_memory_mib(model.name),
    )


def _program(where: str, job: Job, speeds: Speeds) -> Program:
    for key in ("work", "count"):
        if getattr(job, key) == 0:
            raise ConfigError(f"{where}, {key}: must be above 0")
    name = job.workload or job.name
    batches = list(dict.fromkeys(row.batch for row in speeds.rows if row.workload == name))
    if not batches:
        known = ", ".join(sorted({row.workload for row in speeds.rows})) or "no workload"
        raise ConfigError(f"{where}: the profile has no row of {name} on {speeds.model.name}; it has {known}")
    if job.batch is None and len(batches) > 1:
        raise ConfigError(f"{where}, batch: the profile has several: {', '.join(map(str, batches))}; choose one")
    if job.batch is not None and job.batch not in batches:
        raise ConfigError(f"{where}, batch: the profile has no row of {name} at {job.batch}, but at {batches[0]}")
    program = (name, batches[0] if job.batch is None else job.batch)
    if speeds.alone(program) is None:
        raise ConfigError(f"{where}: the profile does not say how fast one {name} is on {speeds.model.name}")
    return program


def _memory_mib(model: str) -> float | None:
    try:
        return mig_table.find(model).capacity_mib
    except ConfigError:
        return None


def compositions(problem: Problem) -> list[Composition]:
    """Every way in which some of the jobs can run together, the small ones first, as far as these are not too many."""
    found: list[Composition] = []
    there = [job.count for job in problem.jobs]
    for size in range(1, _MOST_TOGETHER + 1):
        combinations = itertools.combinations_with_replacement(range(len(problem.jobs)), size)
        every = (_counts(combination, len(problem.jobs)) for combination in combinations)
        here = [counts for counts in every if all(map(operator.le, counts, there))]
        if found and len(found) + len(here) > MOST_COMPOSITIONS:
            break
        found += here
    return found


def _counts(combination: Sequence[int], num_kinds: int) -> Composition:
    of_kind = Counter(combination)
    return tuple(of_kind[kind] for kind in range(num_kinds))


def groups_of(problem: Problem, composition: Composition, modes: Sequence[str] = MODES) -> Iterator[Group]:
    """Every way to run jobs together that is considered, as far as their speeds are known and their memory fits."""
    kinds = [kind for kind, count in enumerate(composition) for _ in range(count)]
    for mode in (SERIAL.name,) if len(kinds) == 1 else (NAIVE.name, MPS.name):
        if mode in modes:
            yield from _whole(problem, composition, kinds, mode)
    if MPS_PERCENT.name in modes and len(kinds) > 1:
        yield from _limited(problem, composition, kinds)
    if problem.model.mig is not None and {MIG.name, MIG_MPS.name} & set(modes):
        yield from _on_instances(problem, composition, kinds, modes)


def _whole(problem: Problem, composition: Composition, kinds: Sequence[int], mode: str) -> Iterator[Group]:
    """Jobs that share the whole GPU without limits."""
    runs = _together(problem, kinds, Place(mode=mode), None, problem.memory_mib)
    if runs is not None:
        yield Group(composition=composition, mode=mode, runs=tuple(runs))


def _limited(problem: Problem, composition: Composition, kinds: Sequence[int]) -> Iterator[Group]:
    """Jobs under MPS with shares: equal ones, and such as their work asks for."""
    alone = [_alone_s(problem, kind) for kind in kinds]
    for shares in {
        tuple(math.floor(10_000 / len(kinds)) / 100 for _ in kinds),
        tuple(max(5.0, 5 * round(20 * each / sum(alone))) for each in alone),
    }:
        if sum(shares) > 100 + 1e-6:
            continue
        places = [Place(mode=MPS_PERCENT.name, share_percent=share, processes=len(kinds)) for share in shares]
        is_mixed = len({problem.programs[kind] for kind in kinds}) > 1
        speeds = [
            problem.speeds.at(problem.programs[kind], place, is_mixed=is_mixed)
            for kind, place in zip(kinds, places, strict=True)
        ]
        known = [speed for speed in speeds if speed is not None]
        if len(known) == len(kinds) and _fits(known, problem.memory_mib):
            runs = [_run(problem, *each, None) for each in zip(kinds, places, known, strict=True)]
            yield Group(composition=composition, mode=MPS_PERCENT.name, runs=tuple(runs))


def _on_instances(
    problem: Problem, composition: Composition, kinds: Sequence[int], modes: Sequence[str]
) -> Iterator[Group]:
    """Jobs on the instances of each maximal partition: one each where there are enough, else several under MPS."""
    mig = problem.model.mig
    assert mig is not None
    for names in partitions.list_maximal_combinations(mig):
        used = sorted((partitions.resolve(mig, name) for name in names), key=lambda profile: profile.size, reverse=True)
        used = used[: len(kinds)]
        mode = MIG.name if len(used) == len(kinds) else MIG_MPS.name
        if mode not in modes:
            continue
        runs: list[Run] = []
        for number, (profile, mine) in enumerate(zip(used, _dealt(problem, kinds, used), strict=True)):
            place = Place(mode=mode, instance_profile=profile.name)
            found = _together(problem, mine, place, number, profile.memory_mib)
            if found is None:
                break
            runs += found
        else:
            instances = tuple(profile.name for profile in used)
            yield Group(composition=composition, mode=mode, runs=tuple(runs), instances=instances)


def _dealt(problem: Problem, kinds: Sequence[int], used: Sequence[Profile]) -> list[list[int]]:
    """Jobs on instances, each at least one: the longest first, to the instance that would be done with it first."""
    dealt: list[list[int]] = [[] for _ in used]
    longest_first = sorted(kinds, key=lambda kind: -_alone_s(problem, kind))
    for position, kind in enumerate(longest_first):
        empty = [place for place, mine in enumerate(dealt) if not mine]
        is_tight = len(empty) >= len(kinds) - position

        def load(place: int, kind: int = kind) -> float:
            work = sum(_alone_s(problem, other) for other in (*dealt[place], kind))
            return float(work / used[place].compute_slices)

        dealt[min(empty if is_tight else range(len(used)), key=load)].append(kind)
    return dealt


def _alone_s(problem: Problem, kind: int) -> float:
    speed = problem.speeds.alone(problem.programs[kind])
    assert speed is not None
    return problem.jobs[kind].work / speed.rate_per_s


def _together(
    problem: Problem, kinds: Sequence[int], place: Place, instance: int | None, capacity_mib: float | None
) -> list[Run] | None:
    """Jobs that share a place without limits, until each is done; `None` if a speed is unknown or they do not fit."""
    left = {position: problem.jobs[kind].work for position, kind in enumerate(kinds)}
    now_s = 0.0
    first: dict[int, Speed] = {}
    worst: dict[int, Speed] = {}
    energy: dict[int, float | None] = dict.fromkeys(left, 0.0)
    ends: dict[int, float] = {}
    place_of: dict[int, Place] = {}
    while left:
        here = Place(mode=place.mode, instance_profile=place.instance_profile, processes=len(left))
        is_mixed = len({problem.programs[kinds[position]] for position in left}) > 1
        now = {p: problem.speeds.at(problem.programs[kinds[p]], here, is_mixed=is_mixed) for p in left}
        speeds = {position: speed for position, speed in now.items() if speed is not None}
        if len(speeds) < len(left) or (not first and not _fits(list(speeds.values()), capacity_mib)):
            return None
        step_s = min(left[position] / speed.rate_per_s for position, speed in speeds.items())
        now_s += step_s
        for position, speed in speeds.items():
            first.setdefault(position, speed)
            place_of.setdefault(position, here)
            worst[position] = _more_doubtful(worst.get(position), speed)
            done = min(left[position], step_s * speed.rate_per_s)
            energy[position] = _added(energy[position], speed.energy_per_item_j, done)
            left[position] -= done
        for position in [p for p in left if left[p] <= 1e-9 * problem.jobs[kinds[p]].work]:
            ends[position] = now_s
            del left[position]
    return [
        Run(
            kind=kinds[position],
            place=place_of[position],
            instance=instance,
            end_s=ends[position],
            rate_per_s=first[position].rate_per_s,
            energy_j=energy[position],
            is_predicted=worst[position].is_predicted,
            error_ratio=worst[position].error_ratio,
        )
        for position in range(len(kinds))
    ]


def _more_doubtful(one: Speed | None, other: Speed) -> Speed:
    def doubt(speed: Speed) -> tuple[bool, bool, float]:
        return (speed.is_predicted, speed.is_predicted and speed.error_ratio is None, speed.error_ratio or 0.0)

    return other if one is None else max(one, other, key=doubt)


def _added(so_far: float | None, each_j: float | None, items: float) -> float | None:
    return None if so_far is None or each_j is None else so_far + each_j * items


def _fits(speeds: Sequence[Speed], capacity_mib: float | None) -> bool:
    return capacity_mib is None or sum(speed.memory_mib or 0.0 for speed in speeds) <= capacity_mib


def _run(problem: Problem, kind: int, place: Place, speed: Speed, instance: int | None) -> Run:
    work = problem.jobs[kind].work
    return Run(
        kind=kind,
        place=place,
        instance=instance,
        end_s=work / speed.rate_per_s,
        rate_per_s=speed.rate_per_s,
        energy_j=_added(0.0, speed.energy_per_item_j, work),
        is_predicted=speed.is_predicted,
        error_ratio=speed.error_ratio,
    )


def cheapest(
    problem: Problem, objective: Objective, modes: Sequence[str] = MODES, *, is_measured_only: bool = False
) -> Groups:
    """The groups of each composition that a best schedule may have.

    Of those that cost the least, the shortest, unless running its jobs one after another costs no more. For the mean
    completion, which depends on what comes behind a group as well: every one than which none has both a smaller sum of
    its ends and a shorter duration, the smallest sum first.

    Args:
        problem: the jobs and their speeds.
        objective: by which groups are compared.
        modes: that may be used.
        is_measured_only: whether to leave out groups with a speed that was predicted.
    """
    best: dict[Composition, tuple[Group, ...]] = {}
    for composition in compositions(problem):
        known = [
            (cost, group.duration_s, group)
            for group in groups_of(problem, composition, modes)
            if (cost := group.cost(objective)) is not None
            and not (is_measured_only and any(run.is_predicted for run in group.runs))
        ]
        known.sort(key=lambda each: each[:2])
        if objective == "completion":
            shortest_s = [math.inf, *itertools.accumulate((duration_s for _, duration_s, _ in known), min)]
            found = tuple(
                group for (_, _, group), before_s in zip(known, shortest_s, strict=False) if group.duration_s < before_s
            )
        else:
            in_turn = _in_turn(composition, best, objective)
            found = tuple(group for cost, _, group in known[:1] if in_turn is None or cost < in_turn)
        if found:
            best[composition] = found
    return best


def _in_turn(composition: Composition, best: Groups, objective: Objective) -> float | None:
    """The least cost of a composition as two groups one after the other; `None` if there are no such two."""
    found: list[float] = []
    for part in itertools.product(*(range(count + 1) for count in composition)):
        rest = tuple(map(operator.sub, composition, part))
        costs = [group.cost(objective) for each in (part, rest) for group in best.get(each, ())]
        known = [cost for cost in costs if cost is not None]
        if len(known) == 2:
            found.append(sum(known))
    return min(found, default=None)
