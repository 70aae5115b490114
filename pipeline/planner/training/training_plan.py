"""The plan of training jobs: its file, and its conversion to a deployment plan with a GPU for each group.

With the conversion, `export` and `check` support both kinds of plans.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pipeline.base.system.errors import ConfigError
from pipeline.planner import deployment, input_files
from pipeline.planner.deployment import Deployment, Gpu, Instance, Plan
from pipeline.planner.profile_table import PLANNED_AS
from pipeline.planner.training.training_jobs import Group, Problem
from pipeline.prepare.mig import layouts, profiles
from pipeline.prepare.mig.layouts import Instance as PlacedInstance

VERSION = 1
_OBJECTIVE = "objective"
"""A key that only training plans have."""


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


def plan_gpu(problem: Problem, groups: Sequence[Group]) -> PlannedGpu:
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


def read(path: Path) -> tuple[Plan, bool]:
    """Return the plan in a file, and whether the plan is for training jobs.

    Raises:
        ConfigError: the file is invalid, or a group has different workloads in one instance.
    """
    content = input_files.read_json(path)
    if _OBJECTIVE not in content:
        return deployment.from_json(content, str(path)), False
    return _read_training(content, str(path)), True


def _read_training(content: Mapping[str, Any], where: str) -> Plan:
    if (version := content.get("version")) != VERSION:
        raise ConfigError(f"{where}: version is {version!r}, not {VERSION}; make the plan again")
    gpus = input_files.decode(tuple[PlannedGpu, ...], content.get("gpus"), f"{where}: gpus")
    plan = Plan(
        deployment=Deployment(
            gpus=tuple(
                _as_gpu(gpu.model, group, f"{where}: gpus[{number}].groups[{position}]")
                for number, gpu in enumerate(gpus)
                for position, group in enumerate(gpu.groups)
            )
        ),
        profile_digest=input_files.decode(
            cast(Any, str | None), content.get("profile_digest"), f"{where}: profile_digest"
        ),
        is_simulated=input_files.decode(bool, content.get("is_simulated", False), f"{where}: is_simulated"),
    )
    deployment.check(plan.deployment, where)
    return plan


def _as_gpu(model: str, group: PlannedGroup, where: str) -> Gpu:
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
                f"{where}: instance {number} has {names}, but only copies of one workload can be exported; "
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
