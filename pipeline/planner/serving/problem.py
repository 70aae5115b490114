"""The planning problem of a demand and a profile: GPUs, their partitions, and the throughput of services on them.

The demand is read from YAML: services with rates and latency objectives, and limits. A *kind* is an instance profile
of a GPU model, or its undivided GPU. Because instances are independent, only one configuration (processes, batch,
share) of a service on a kind is used: the fastest configuration whose latency is below the objective.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import NewType

from pipeline.base.domain import mig_table
from pipeline.base.domain.mig_table import find_model_name
from pipeline.base.system.errors import ConfigError
from pipeline.planner import input_files
from pipeline.planner.deployment import Service
from pipeline.planner.profile_table import ON_INSTANCES, PLANNED_AS, Profile, Row
from pipeline.prepare.mig import layouts
from pipeline.prepare.mig.profiles import MigGpu
from pipeline.prepare.mig.profiles import Profile as MigProfile

_LEAST_PER_S = 1e-9
ServiceIndex = NewType("ServiceIndex", int)
"""The position of a service among the services of a problem."""
KindIndex = NewType("KindIndex", int)
"""The position of a kind among the kinds of a problem."""
Pair = tuple[ServiceIndex, KindIndex]
"""A service on a kind."""
WHOLE = ""
"""The name of the undivided GPU, in place of an instance profile."""
INTERVAL = "interval"
NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a plan.

    Attributes:
        services_per_gpu: largest number of services on one GPU; `None` without a limit.
        gpus: number of GPUs by model; other models have no limit.
        apart: groups of services; no two services of a group may share a GPU.
    """

    services_per_gpu: int | None = None
    gpus: Mapping[str, int] = field(default_factory=dict)
    apart: tuple[tuple[str, ...], ...] = ()

    @property
    def concern_sharing(self) -> bool:
        """True if the limits restrict which services share a GPU."""
        return self.services_per_gpu is not None or bool(self.apart)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Services, each with a rate in requests/s and an objective, and limits."""

    services: tuple[Service, ...]
    limits: Limits = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class _DemandFile:
    services: tuple[Service, ...]
    limits: Limits = Limits()
    latency_share: float = 1.0


def read_demand(path: Path) -> Demand:
    """Read the demand in a file; ConfigError names the invalid key."""
    raw = input_files.read_mapping(path, "services")
    shared = raw.get("latency_share")
    if shared is not None and isinstance(raw.get("services"), list):
        services = [
            {"latency_share": shared} | service if isinstance(service, dict) else service for service in raw["services"]
        ]
        raw = raw | {"services": services}
    content = input_files.decode(_DemandFile, raw, str(path))
    check_services(content.services, str(path))
    return Demand(services=content.services, limits=_check_limits(content.limits, content.services, f"{path}: limits"))


def check_services(services: tuple[Service, ...], origin: str) -> None:
    """Raise ConfigError if a service cannot be planned."""
    if not services:
        raise ConfigError(f"{origin}: services is empty; list at least one service")
    for number, service in enumerate(services):
        place = f"{origin}: services[{number}] {service.name}"
        if service.objective_ms is None:
            raise ConfigError(f"{place}: key 'objective_ms' is missing; add it")
        for key in ("rate_per_s", "objective_ms", "latency_share"):
            if getattr(service, key) == 0:
                raise ConfigError(f"{place}, {key}: must be above 0; correct the number")
        if service.rate_per_s < _LEAST_PER_S:
            raise ConfigError(
                f"{place}, rate_per_s: {service.rate_per_s:g} is too small; write at least {_LEAST_PER_S:g}"
            )
        if service.latency_share > 1:
            raise ConfigError(
                f"{place}, latency_share: {service.latency_share:g} is above 1; write at most 1, which is the full "
                "objective"
            )
    for name, count in Counter(service.name for service in services).items():
        if count > 1:
            raise ConfigError(
                f"{origin}: services: {name} is listed {count} times; list it once, with the sum of its rates"
            )


def _check_limits(limits: Limits, services: tuple[Service, ...], origin: str) -> Limits:
    if limits.services_per_gpu == 0:
        raise ConfigError(f"{origin}.services_per_gpu: must be at least 1; remove it for no limit")
    names = {service.name for service in services}
    for number, group in enumerate(limits.apart):
        if unknown := [name for name in group if name not in names]:
            raise ConfigError(
                f"{origin}.apart[{number}]: unknown service {unknown[0]}; use names listed under services"
            )
        if len(set(group)) != len(group) or len(group) < 2:
            raise ConfigError(
                f"{origin}.apart[{number}]: must name two or more different services; add one, or remove it"
            )
    return Limits(
        services_per_gpu=limits.services_per_gpu,
        gpus={find_model_name(name): count for name, count in limits.gpus.items()},
        apart=limits.apart,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A GPU model to plan with.

    Attributes:
        name: name of the model in profiles.
        mig: MIG profiles of the model; `None` without MIG.
        limit: largest number of GPUs; `None` without a limit.
    """

    name: str
    mig: MigGpu | None
    limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """An instance profile of a model, or its undivided GPU.

    Attributes:
        model: position of the model in the problem.
        mig_profile: MIG profile; `None` for the undivided GPU.
        slices: numbers of compute and memory slices.
        memory_mib: memory of the instance or GPU; infinite if unknown.
    """

    model: int
    mig_profile: MigProfile | None
    slices: tuple[int, int]
    memory_mib: float

    @property
    def profile(self) -> str:
        return WHOLE if self.mig_profile is None else self.mig_profile.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A maximal partition of a GPU: the number of instances of each kind."""

    model: int
    counts: Mapping[KindIndex, int]

    @property
    def slots(self) -> tuple[KindIndex, ...]:
        """The kind of each instance."""
        return tuple(chain.from_iterable([kind] * count for kind, count in self.counts.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A configuration of a service on a kind.

    Attributes:
        throughput_per_s: throughput of the row minus the margin.
        latency_ms: the latency that was compared with the objective.
    """

    service: ServiceIndex
    kind: KindIndex
    row: Row
    throughput_per_s: float
    latency_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmet:
    """A service without a configuration; `row` has the lowest latency among its rows whose memory fits, if any."""

    service: Service
    row: Row | None

    @property
    def latency_ms(self) -> float | None:
        return None if self.row is None else governing_latency_ms(self.row)

    @property
    def objective_above_ms(self) -> float | None:
        """The lower limit of the objectives that the service's best configuration meets."""
        return None if self.latency_ms is None else self.latency_ms / self.service.latency_share


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The problem of serving a demand.

    Attributes:
        options: for each service, its best configuration on each kind.
        admitted: for each service, all configurations that meet its objective.
        unmet: services without a configuration; no plan exists if any service is unmet.
    """

    services: tuple[Service, ...]
    models: tuple[Model, ...]
    kinds: tuple[Kind, ...]
    partitions: tuple[Partition, ...]
    options: tuple[Mapping[KindIndex, Option], ...]
    admitted: tuple[tuple[Option, ...], ...]
    limits: Limits
    unmet: tuple[Unmet, ...] = ()

    @property
    def pairs(self) -> list[Pair]:
        """The services with the kinds on which they have a configuration."""
        return [(ServiceIndex(number), kind) for number, options in enumerate(self.options) for kind in options]

    def kinds_of(self, model: int) -> dict[str, KindIndex]:
        """Map the profiles of a model to its kinds."""
        return {kind.profile: KindIndex(number) for number, kind in enumerate(self.kinds) if kind.model == model}

    def starts(self, partition: Partition) -> list[int | None]:
        """Return the start of each slot on an empty GPU; `None` on an undivided GPU."""
        model, profiles = self.models[partition.model], [self.kinds[kind].mig_profile for kind in partition.slots]
        mig_profiles = [profile for profile in profiles if profile is not None]
        if model.mig is None or not mig_profiles:
            return [None]
        return [placed.start for placed in layouts.plan_layout(model.mig, mig_profiles).instances]

    def share(self, option: Option) -> float:
        """Return the throughput divided by the rate of the service (utility in MIG-serving)."""
        return option.throughput_per_s / self.services[option.service].rate_per_s

    def with_partitions(self, partitions: Sequence[Partition]) -> Problem:
        """Return the problem with the chosen partitions only."""
        kinds = {kind for partition in partitions for kind in partition.counts}
        return replace(
            self,
            partitions=tuple(partitions),
            options=tuple(
                {kind: option for kind, option in options.items() if kind in kinds} for options in self.options
            ),
        )


def build_problem(demand: Demand, profile: Profile, models: Sequence[Model], margin: str = NONE) -> Problem:
    """Build the problem of serving a demand on GPUs of the models.

    The planned throughput is the measured throughput with margin `none`, the low end of its interval with `interval`,
    and the measured throughput reduced by a share from 0 to 1 otherwise.

    Raises:
        ConfigError: a row names another model or an unknown instance, or a service or model has no usable row.
    """
    rows = _rows_by_workload(profile, models)
    names = {service.name for service in demand.services}
    for name in demand.limits.gpus:
        if name not in [model.name for model in models]:
            raise ConfigError(
                f"limits.gpus: model {name} is not among the models of --gpu; add --gpu {name}, or remove the limit"
            )
    for service in demand.services:
        if service.name not in rows:
            raise ConfigError(
                f"{profile.source}: service {service.name} has no row in the profile; choose a service among "
                f"{', '.join(sorted(rows))}"
            )
    kinds = _kinds([row for name in names for row in rows[name]], profile, models)
    position = {(models[kind.model].name, kind.profile): KindIndex(number) for number, kind in enumerate(kinds)}
    options, admitted, unmet = [], [], []
    for number, service in enumerate(demand.services):
        usable = [
            (position[origin], row)
            for row in rows[service.name]
            if (origin := (row.gpu_model, row.instance_profile or WHOLE)) in position
        ]
        _check_figures(service, usable, margin)
        fitting = [(kind, row) for kind, row in usable if (row.memory_mib or 0) <= kinds[kind].memory_mib]
        admissible = tuple(_admit(number, service, fitting, margin))
        # The last option of a kind counts: the fastest, then that with the least latency and the fewest processes.
        ranked = sorted(
            admissible, key=lambda o: (o.throughput_per_s, -o.latency_ms, -o.row.processes, -(o.row.batch or 0))
        )
        options.append({option.kind: option for option in ranked})
        admitted.append(admissible)
        if not admissible:
            timed = [row for _, row in fitting if governing_latency_ms(row) is not None]
            best = min(timed, key=lambda row: governing_latency_ms(row) or 0.0, default=None)
            unmet.append(Unmet(service=service, row=best))
    problem = Problem(
        services=demand.services,
        models=tuple(models),
        kinds=kinds,
        partitions=(),
        options=tuple(options),
        admitted=tuple(admitted),
        limits=demand.limits,
        unmet=tuple(unmet),
    )
    return replace(problem, partitions=tuple(_partitions(problem)))


def governing_latency_ms(row: Row) -> float | None:
    """Return the p99 latency if measured, else the mean."""
    return row.latency_mean_ms if row.latency_p99_ms is None else row.latency_p99_ms


def _rows_by_workload(profile: Profile, models: Sequence[Model]) -> Mapping[str, Sequence[Row]]:
    names = [model.name for model in models]
    by_workload: dict[str, list[Row]] = defaultdict(list)
    for row in profile.rows:
        if row.gpu_model not in names:
            raise ConfigError(
                f"{profile.place_of(row)}, gpu_model: {row.gpu_model} is not among --gpu {', '.join(names)}; "
                f"add --gpu {row.gpu_model}, or remove its rows"
            )
        if row.sharing_mode in PLANNED_AS and not _needs_newer_driver(row, models[names.index(row.gpu_model)]):
            by_workload[row.workload].append(row)
    for model in models:
        model_rows = [row for row in profile.rows if row.gpu_model == model.name]
        if not model_rows:
            gpu_models = ", ".join(profile.gpu_models)
            raise ConfigError(f"{profile.source}: no row of {model.name}; choose among {gpu_models}")
        if model.mig is None and all(row.sharing_mode in ON_INSTANCES for row in model_rows):
            raise ConfigError(
                f"{profile.source}: all rows of {model.name} are for MIG instances, but the model does not support "
                "MIG; profile the undivided GPU (naive or MPS)"
            )
    return by_workload


def _needs_newer_driver(row: Row, model: Model) -> bool:
    """Return whether a row is of a MIG profile that the model's driver does not have, but newer ones have."""
    table = mig_table.models().get(model.name)
    if row.instance_profile is None or table is None or model.mig is None:
        return False
    mig_profile = table.find_profile(row.instance_profile)
    return mig_profile is not None and not mig_profile.is_offered(model.mig.driver_branch)


def _kinds(rows: Sequence[Row], profile: Profile, models: Sequence[Model]) -> tuple[Kind, ...]:
    """Return the kinds that have rows, for each model: instances by size, then the undivided GPU."""
    sizes = [None if model.mig is None else (model.mig.compute_slices, model.mig.memory_slices) for model in models]
    largest = max(filter(None, sizes), default=(1, 1))
    kinds = []
    for number, model in enumerate(models):
        model_rows = [row for row in rows if row.gpu_model == model.name]
        if model.mig is not None:
            profiles = {
                row.instance_profile: _resolve(row, model.mig, profile) for row in model_rows if row.instance_profile
            }
            kinds += [
                Kind(
                    model=number,
                    mig_profile=mig_profile,
                    slices=mig_profile.size,
                    memory_mib=mig_profile.memory_mib or math.inf,
                )
                for mig_profile in sorted(profiles.values(), key=lambda mig_profile: mig_profile.size)
            ]
        if any(row.instance_profile is None for row in model_rows):
            table = mig_table.models().get(model.name)
            capacity_mib = table.capacity_mib if table else math.inf
            kinds.append(Kind(model=number, mig_profile=None, slices=sizes[number] or largest, memory_mib=capacity_mib))
    return tuple(kinds)


def _resolve(row: Row, mig: MigGpu, profile: Profile) -> MigProfile:
    name = str(row.instance_profile)
    try:
        mig_profile = layouts.resolve(mig, name)
    except ConfigError as error:
        raise ConfigError(f"{profile.place_of(row)}, instance_profile: {error}") from error
    if mig_profile.name != name:
        raise ConfigError(
            f"{profile.place_of(row)}, instance_profile: {name} is not a full name; write {mig_profile.name}"
        )
    return mig_profile


def _partitions(problem: Problem) -> Iterator[Partition]:
    for number, model in enumerate(problem.models):
        kinds = problem.kinds_of(number)
        if WHOLE in kinds:
            yield Partition(model=number, counts={kinds[WHOLE]: 1})
        pool = [mig_profile for kind in kinds.values() if (mig_profile := problem.kinds[kind].mig_profile) is not None]
        if model.mig is not None and pool:
            for names in layouts.list_maximal_combinations(model.mig, pool):
                counts = Counter(kinds[name] for name in names)
                yield Partition(model=number, counts=dict(sorted(counts.items())))


def _admit(number: int, service: Service, rows: Sequence[tuple[KindIndex, Row]], margin: str) -> Iterator[Option]:
    assert service.objective_ms is not None, "checked when the services were read"
    for kind, row in rows:
        latency, throughput = governing_latency_ms(row), apply_margin(row, margin)
        if latency is not None and throughput and latency < service.latency_share * service.objective_ms:
            yield Option(
                service=ServiceIndex(number), kind=kind, row=row, throughput_per_s=throughput, latency_ms=latency
            )


def _check_figures(service: Service, rows: Sequence[tuple[KindIndex, Row]], margin: str) -> None:
    if all(governing_latency_ms(row) is None for _, row in rows):
        raise ConfigError(
            f"service {service.name}: no row has a latency to compare with objective_ms; measure the latency"
        )
    if not any(apply_margin(row, margin) for _, row in rows):
        raise ConfigError(
            f"--margin {margin}: no row of service {service.name} has throughput_low_per_s; use --margin {NONE} or a "
            "share such as 0.1"
        )


def apply_margin(row: Row, margin: str) -> float | None:
    """Return the throughput of a row under a margin; `None` if the margin needs an interval that the row lacks."""
    if margin == INTERVAL:
        return row.throughput_low_per_s
    return row.throughput_per_s if margin == NONE else row.throughput_per_s * (1 - float(margin))
