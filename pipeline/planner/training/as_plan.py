"""A file of a plan as a plan: one of services as it is, one of training jobs with each of its groups as a GPU.

So training plans are exported and checked like others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pipeline.base.system.errors import ConfigError
from pipeline.planner import deployment, files
from pipeline.planner.deployment import Deployment, Gpu, Instance, Plan
from pipeline.planner.profile import PLANNED_AS
from pipeline.prepare.mig import partitions, profiles

VERSION = 1
"""Of the file that `train` writes."""
_OF_TRAINING = "objective"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
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
class _Group:
    start_s: float
    end_s: float
    mode: str
    instances: tuple[str, ...]
    jobs: tuple[_Job, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gpu:
    model: str
    groups: tuple[_Group, ...]


def read(path: Path) -> tuple[Plan, bool]:
    """The plan in a file, and whether it is one of training jobs.

    Raises:
        ConfigError: there is none that can be used; or a group has different workloads in one instance, which a GPU of
            a plan cannot have.
    """
    content = files.read_json(path)
    if _OF_TRAINING not in content:
        return deployment.from_json(content, str(path)), False
    return _of_training(content, str(path)), True


def _of_training(content: Mapping[str, Any], where: str) -> Plan:
    if (version := content.get("version")) != VERSION:
        raise ConfigError(f"{where}: version is {version!r}, but this program reads version {VERSION}; plan again")
    gpus: tuple[_Gpu, ...] = files.decode(tuple[_Gpu, ...], content.get("gpus"), f"{where}: gpus")
    made = []
    for number, gpu in enumerate(gpus):
        for position, group in enumerate(gpu.groups):
            made.append(_gpu(gpu.model, group, f"{where}: gpus[{number}].groups[{position}]"))
    plan = Plan(
        deployment=Deployment(gpus=tuple(made)),
        profile_digest=files.decode(cast(Any, str | None), content.get("profile_digest"), f"{where}: profile_digest"),
        is_simulated=files.decode(bool, content.get("is_simulated", False), f"{where}: is_simulated"),
    )
    deployment.check(plan.deployment, where)
    return plan


def _gpu(model: str, group: _Group, where: str) -> Gpu:
    mode = PLANNED_AS.get(group.mode, "naive")
    if mode != "mig":
        alike = Counter((job.workload, job.batch, job.share_percent) for job in group.jobs)
        rates: dict[tuple[str, int | None, float | None], float] = defaultdict(float)
        for job in group.jobs:
            rates[job.workload, job.batch, job.share_percent] += job.rate_per_s
        instances = [_instance(None, None, *key, count, rates[key]) for key, count in alike.items()]
        return Gpu(model=model, mode=mode, instances=tuple(instances))
    mig = profiles.load_model(model)
    layout = partitions.plan_layout(mig, [partitions.resolve(mig, name) for name in group.instances])
    instances = []
    for number, placed in enumerate(layout.instances):
        jobs = [job for job in group.jobs if job.instance == number]
        if len({(job.workload, job.batch) for job in jobs}) != 1:
            names = ", ".join(sorted({job.workload for job in jobs})) or "no job"
            raise ConfigError(
                f"{where}: instance {number} has {names}; only copies of one workload can be exported on an instance, "
                "plan with --modes naive,mps,mps_percent,mig"
            )
        rate = sum(job.rate_per_s for job in jobs)
        first = jobs[0]
        instances.append(
            _instance(placed.profile.name, placed.start, first.workload, first.batch, None, len(jobs), rate)
        )
    return Gpu(model=model, instances=tuple(sorted(instances, key=lambda each: each.start or 0)))


def _instance(
    profile: str | None,
    start: int | None,
    workload: str,
    batch: int | None,
    share_percent: float | None,
    processes: int,
    rate_per_s: float,
) -> Instance:
    return Instance(
        profile=profile,
        start=start,
        service=workload,
        processes=processes,
        batch=batch,
        share_pct=share_percent,
        throughput_per_s=rate_per_s,
    )
