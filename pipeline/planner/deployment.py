"""Deployments (the services on each GPU), plans (a deployment with its services and its lower bound), and plan files.

A deployment is legal if every GPU supports its layout and the memory suffices. A start is the first memory slice of an
instance, as in `pipeline.prepare.mig.layouts`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pipeline.base.domain import mig_table
from pipeline.base.domain.sharing_modes import PlannedAs
from pipeline.base.system import entry_points, json_decoder
from pipeline.base.system.errors import ConfigError
from pipeline.planner import input_files
from pipeline.prepare.mig import layouts, profiles
from pipeline.prepare.mig.profiles import MigGpu

VERSION = 1
GROUPS_PER_GPU = "groups_per_gpu"
"""A detail of a training plan: the number of groups that each GPU runs in turn, of which each is a `Gpu`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A service on a GPU instance or an undivided GPU. Throughput and memory are totals of its processes.

    Attributes:
        profile: MIG profile, such as `3g.40gb`; `None` on a GPU without MIG.
        start: first memory slice; `None` on a GPU without MIG.
        processes: number of processes of the service; several processes share the instance through MPS.
        batch: requests or samples per batch.
        share_pct: MPS active thread percentage of each process; `None` without a limit.
    """

    profile: str | None
    start: int | None
    service: str
    processes: int = 1
    batch: int | None = None
    share_pct: float | None = None
    throughput_per_s: float | None = None
    latency_mean_ms: float | None = None
    latency_p99_ms: float | None = None
    memory_mib: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU and its services.

    Attributes:
        model: name in the table of MIG profiles (`a100_80gb`), or the name that the driver reports.
        id: index or UUID; `None` for any GPU of the model.
        mode: sharing mode of the services; only `mig` partitions the GPU.
        driver_branch: first number of the driver version; `None` for a current driver.
    """

    model: str
    instances: tuple[Instance, ...]
    id: str | None = None
    mode: PlannedAs = "mig"
    driver_branch: int | None = None


def total_per_s(gpus: Iterable[Gpu]) -> dict[str, float]:
    """Return the throughput of each service; instances without a figure add nothing."""
    total: dict[str, float] = defaultdict(float)
    for gpu in gpus:
        for instance in gpu.instances:
            total[instance.service] += instance.throughput_per_s or 0.0
    return dict(total)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """GPUs with their services."""

    gpus: tuple[Gpu, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A service with its rate and objective; its latency must stay below `latency_share` of the objective."""

    name: str
    rate_per_s: float
    objective_ms: float | None = None
    latency_share: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A deployment with its services and the lower bound of the number of GPUs.

    Attributes:
        services: services of the deployment; empty for a plan of training jobs.
        profile_digest: digest of the profile with the figures; `None` if the figures come from another source.
        bound: proved lower bound of the number of GPUs.
        gap: difference between the plan's GPUs and the bound, as a share of the plan's GPUs; 0 is proved optimal.
        is_simulated: whether the figures come from a simulated GPU.
        details: further results of the planning method, as JSON.
    """

    deployment: Deployment
    services: tuple[Service, ...] = ()
    profile_digest: str | None = None
    status: Literal["optimal", "feasible"] | None = None
    bound: float | None = None
    gap: float | None = None
    is_simulated: bool = False
    details: Mapping[str, Any] = field(default_factory=dict)
    version: int = VERSION


def to_json(plan: Plan) -> dict[str, Any]:
    """Return the plan as JSON."""
    content: dict[str, Any] = json_decoder.encode(plan)
    content["gpus"] = content.pop("deployment")["gpus"]
    return {"version": content.pop("version"), "num_gpus": len(plan.deployment.gpus)} | content


def from_json(content: Mapping[str, Any], origin: str) -> Plan:
    """Return the plan in a JSON object; ConfigError if its version, a key, a type or the deployment is invalid."""
    if (version := content.get("version")) != VERSION:
        raise ConfigError(f"{origin}: version is {version!r}, not {VERSION}; make the plan again")
    if "gpus" not in content:
        raise ConfigError(
            f"{origin}: key 'gpus' is missing; make a plan with `{entry_points.spell('planner', 'serve')}`"
        )
    remaining = dict(content)
    gpus = remaining.pop("gpus")
    num_gpus = remaining.pop("num_gpus", None)
    decoded = input_files.decode(tuple[Gpu, ...], gpus, f"{origin}: gpus")  # decoded separately: errors name the key
    if num_gpus is not None and num_gpus != len(decoded):
        raise ConfigError(f"{origin}: num_gpus is {num_gpus!r}, but gpus lists {len(decoded)}; correct one of them")
    plan = input_files.decode(Plan, remaining | {"deployment": {"gpus": gpus}}, origin)
    _check_services(plan.services, origin)
    check(plan.deployment, origin)
    return plan


def read(path: Path) -> Plan:
    """Read the plan in a file; ConfigError if the file is invalid."""
    return from_json(input_files.read_json(path), str(path))


def write(plan: Plan, path: Path) -> None:
    """Write a plan; ConfigError if the file cannot be written."""
    input_files.write_json(path, to_json(plan))


def check(deployment: Deployment, origin: str) -> None:
    """Raise ConfigError if a layout is illegal, the memory is too small or an id occurs twice."""
    for name, count in Counter(gpu.id for gpu in deployment.gpus if gpu.id is not None).items():
        if count > 1:
            raise ConfigError(f"{origin}: {count} GPUs have the id {name!r}; write a different id for each GPU")
    for number, gpu in enumerate(deployment.gpus):
        check_gpu(gpu, f"{origin}: gpus[{number}]")


def check_gpu(gpu: Gpu, origin: str) -> None:
    """Check one GPU as `check` does."""
    for number, instance in enumerate(gpu.instances):
        if instance.processes == 0 or instance.batch == 0:
            raise ConfigError(f"{origin}.instances[{number}]: processes and batch must be at least 1; write 1")
        if instance.share_pct is not None and not 0 < instance.share_pct <= 100:
            raise ConfigError(
                f"{origin}.instances[{number}]: share_pct must be above 0 and at most 100; write 100 for all"
            )
        if (gpu.mode == "mig") != (instance.profile is not None and instance.start is not None):
            rule, remedy = "must have neither profile nor start", "remove both"
            if gpu.mode == "mig":
                rule, remedy = "needs profile and start", "add both"
            raise ConfigError(f"{origin}.instances[{number}]: {rule} on a GPU of mode {gpu.mode}; {remedy}")
    if gpu.mode == "mig":
        _check_layout(gpu, origin)
    else:
        _check_undivided(gpu, origin)


def mig_gpu(gpu: Gpu) -> MigGpu:
    """Return the MIG profiles of the GPU; ConfigError if its model is unknown or has no MIG."""
    return profiles.load_model(gpu.model, gpu.driver_branch)


def list_placed(gpu: Gpu) -> layouts.Placed:
    """Return the profiles and starts of a GPU's instances; ConfigError if the model lacks one of the profiles."""
    model = mig_gpu(gpu)
    return tuple(
        (layouts.resolve(model, instance.profile), instance.start)
        for instance in gpu.instances
        if instance.profile is not None and instance.start is not None
    )


def _check_layout(gpu: Gpu, origin: str) -> None:
    try:
        model, placed = mig_gpu(gpu), list_placed(gpu)
    except ConfigError as error:
        raise ConfigError(f"{origin}: {error}") from error
    if (reason := layouts.explain_misplaced(model, placed)) is not None:
        raise ConfigError(
            f"{origin}: {_format_layout(placed)} is not legal on {model.name}: {reason}; {_suggest(model, placed)}"
        )
    for number, (instance, (profile, _)) in enumerate(zip(gpu.instances, placed, strict=True)):
        if (instance.memory_mib or 0) > (profile.memory_mib or float("inf")):
            raise ConfigError(
                f"{origin}.instances[{number}]: {instance.service} needs {instance.memory_mib:g} MiB, but "
                f"{profile.name} of {model.name} has {profile.memory_mib}; use a larger profile"
            )


def _check_undivided(gpu: Gpu, origin: str) -> None:
    memory_mib = sum(instance.memory_mib or 0 for instance in gpu.instances)
    model = mig_table.models().get(mig_table.find_model_name(gpu.model))
    if model is not None and memory_mib > model.capacity_mib:
        raise ConfigError(
            f"{origin}: the services of this GPU need {memory_mib:g} MiB, but {gpu.model} has {model.capacity_mib}; "
            "move a service to another GPU"
        )


def _suggest(model: MigGpu, placed: layouts.Placed) -> str:
    """Suggest legal starts for the profiles, or else the nearest legal layouts."""
    requested = [profile for profile, _ in placed]
    layout = layouts.place(model, requested)
    if layout is not None:
        return f"legal: {_format_layout((instance.profile, instance.start) for instance in layout.instances)}"
    near = [[layouts.resolve(model, name) for name in names] for names in layouts.find_nearest(model, requested)]
    nearest = [layouts.plan_layout(model, combination).instances for combination in near]
    return f"nearest: {'; '.join(_format_layout((i.profile, i.start) for i in layout) for layout in nearest)}"


def _format_layout(placed: Iterable[tuple[profiles.Profile, int]]) -> str:
    return f"[{','.join(f'{profile.name}@{start}' for profile, start in placed)}]"


def _check_services(services: tuple[Service, ...], origin: str) -> None:
    for name, count in Counter(service.name for service in services).items():
        if count > 1:
            raise ConfigError(
                f"{origin}: service {name} is listed {count} times; list it once, with the sum of its rates"
            )
    for number, service in enumerate(services):
        if not service.rate_per_s > 0 or service.objective_ms == 0 or service.latency_share == 0:
            raise ConfigError(
                f"{origin}: services[{number}]: rate, objective and latency_share must be above 0; correct the number"
            )
