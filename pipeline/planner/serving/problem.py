"""A demand and a profile as an integer problem: which GPUs, how they can be divided, and what each service gets where.

A *kind* is what a service can be put on: an instance profile of a GPU model, or an undivided GPU of it. Of the
configurations of a service on a kind (processes, batch size, share) only the one with the highest throughput counts
among those whose latency is below the objective, as instances do not influence each other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NewType

from pipeline.base.domain import mig_table
from pipeline.base.system.errors import ConfigError
from pipeline.planner.deployment import Service
from pipeline.planner.profile import ON_INSTANCES, PLANNED_AS, Profile, Row
from pipeline.planner.serving.services import Demand, Limits
from pipeline.prepare.mig import partitions
from pipeline.prepare.mig.profiles import MigGpu

ServiceIndex = NewType("ServiceIndex", int)
"""The position of a service among those of a problem."""
KindIndex = NewType("KindIndex", int)
"""The position of a kind among those of a problem."""
Pair = tuple[ServiceIndex, KindIndex]
"""A service on a kind."""
WHOLE = ""
"""In place of an instance profile: the undivided GPU."""
INTERVAL = "interval"
NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A GPU model to plan with.

    Attributes:
        name: as in profiles.
        mig: how it can be divided; `None` if it cannot.
        limit: how many there are; `None` for as many as are needed.
    """

    name: str
    mig: MigGpu | None
    limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a service can be put on: `profile` on GPUs of a model, given by its position among the models."""

    model: int
    profile: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A way to divide a GPU to which no instance can be added: how often each kind, by its position among the kinds."""

    model: int
    counts: Mapping[KindIndex, int]

    @property
    def slots(self) -> tuple[KindIndex, ...]:
        """The kind of each of its instances."""
        return tuple(chain.from_iterable([kind] * count for kind, count in self.counts.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A configuration of a service on a kind.

    Attributes:
        throughput_per_s: what is planned with: that of the row, less the margin.
        latency_ms: what was held against the objective.
    """

    service: ServiceIndex
    kind: KindIndex
    row: Row
    throughput_per_s: float
    latency_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Unmet:
    """A service that nothing serves, and what its best configuration would meet.

    Attributes:
        latency_ms: the lowest that was measured where the memory suffices; `None` if it suffices nowhere.
        row: of that configuration.
    """

    service: Service
    latency_ms: float | None = None
    row: Row | None = None

    @property
    def objective_above_ms(self) -> float | None:
        """Any objective above this would be met."""
        return None if self.latency_ms is None else self.latency_ms / self.service.latency_share


@dataclass(frozen=True, kw_only=True)
class Problem:
    """What a planner solves.

    Attributes:
        options: for each service, the best configuration on each kind where it has one.
        admitted: for each service, every configuration that may be used.
        unmet: services without any; if there are some, no plan exists.
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
        """Each service on each kind where it has a configuration."""
        return [(ServiceIndex(number), kind) for number, own in enumerate(self.options) for kind in own]

    def share(self, option: Option) -> float:
        """Of the rate of its service: what MIG-serving calls utility."""
        return option.throughput_per_s / self.services[option.service].rate_per_s

    def with_partitions(self, chosen: Sequence[Partition]) -> Problem:
        """The same with some of its partitions alone."""
        kinds = {kind for each in chosen for kind in each.counts}
        return replace(
            self,
            partitions=tuple(chosen),
            options=tuple({kind: each for kind, each in own.items() if kind in kinds} for own in self.options),
        )


def build(demand: Demand, profile: Profile, models: Sequence[Model], margin: str = NONE) -> Problem:
    """The problem of serving a demand.

    Args:
        demand: services and limits.
        profile: rows of the models that are given, and of no other.
        models: that may be used, each once.
        margin: `none` plans with the measured throughput, `interval` with the low end of its interval, a share between
            0 and 1 with so much less.

    Raises:
        ConfigError: the profile has a row of another model or of an instance that the model does not have, a service
            has no row, or a GPU cannot be divided and only instances were profiled.
    """
    rows = _rows_by_workload(profile, models)
    wanted = {service.name for service in demand.services}
    for name in demand.limits.gpus:
        if name not in [model.name for model in models]:
            raise ConfigError(f"limits.gpus: {name} is not among the GPUs that are asked for")
    for service in demand.services:
        if service.name not in rows:
            raise ConfigError(
                f"{profile.source}: service {service.name} has no row, so nothing is known of it; workloads with rows: "
                f"{', '.join(sorted(rows))}"
            )
    kinds = _kinds([row for name in wanted for row in rows[name]], profile, models)
    position = {(kind.model, kind.profile): KindIndex(number) for number, kind in enumerate(kinds)}
    number_of = {model.name: number for number, model in enumerate(models)}
    options, admitted, unmet = [], [], []
    for number, service in enumerate(demand.services):
        usable = [
            (position[where], row)
            for row in rows[service.name]
            if (where := (number_of[row.gpu_model], row.instance_profile or WHOLE)) in position
        ]
        _check_figures(service, usable, margin)
        every = tuple(_options(number, service, usable, kinds, models, margin))
        best: dict[KindIndex, Option] = {}
        for option in sorted(every, key=_worst_first):
            best[option.kind] = option
        options.append(best)
        admitted.append(every)
        if not every:
            unmet.append(_unmet(service, usable, kinds, models))
    return Problem(
        services=demand.services,
        models=tuple(models),
        kinds=kinds,
        partitions=tuple(_partitions(kinds, models)),
        options=tuple(options),
        admitted=tuple(admitted),
        limits=demand.limits,
        unmet=tuple(unmet),
    )


def latency_of(row: Row) -> float | None:
    """What is held against an objective: the 99th percentile where it was measured, else the mean."""
    return row.latency_mean_ms if row.latency_p99_ms is None else row.latency_p99_ms


def _rows_by_workload(profile: Profile, models: Sequence[Model]) -> Mapping[str, Sequence[Row]]:
    names = [model.name for model in models]
    found: dict[str, list[Row]] = defaultdict(list)
    for row in profile.rows:
        if row.gpu_model not in names:
            raise ConfigError(
                f"{profile.place_of(row)}, gpu_model: {row.gpu_model} is not asked for ({', '.join(names)}); ask for "
                "it with --gpu as well, or leave its rows out"
            )
        if row.sharing_mode in PLANNED_AS:
            found[row.workload].append(row)
    for model in models:
        own = [row for row in profile.rows if row.gpu_model == model.name]
        if not own:
            raise ConfigError(f"{profile.source}: there is no row of {model.name}; the rows are of {_names(profile)}")
        if model.mig is None and all(row.sharing_mode in ON_INSTANCES for row in own):
            raise ConfigError(
                f"{profile.source}: {model.name} has no MIG, and only instances were profiled; profile the undivided "
                "GPU as well (naive or MPS)"
            )
    return found


def _names(profile: Profile) -> str:
    return ", ".join(profile.gpu_models)


def _kinds(rows: Sequence[Row], profile: Profile, models: Sequence[Model]) -> tuple[Kind, ...]:
    """Those that have rows, the larger instances last; a GPU that cannot be divided has its undivided self alone."""
    kinds = []
    for number, model in enumerate(models):
        own = [row for row in rows if row.gpu_model == model.name]
        if model.mig is not None:
            sizes = {}
            for row in own:
                if row.instance_profile is not None and row.instance_profile not in sizes:
                    try:
                        sizes[row.instance_profile] = partitions.resolve(model.mig, row.instance_profile)
                    except ConfigError as error:
                        raise ConfigError(f"{profile.place_of(row)}, instance_profile: {error}") from error
            if short := [name for name, found in sizes.items() if name != found.name]:
                row = next(row for row in own if row.instance_profile == short[0])
                raise ConfigError(
                    f"{profile.place_of(row)}, instance_profile: {short[0]} is no full name; write "
                    f"{sizes[short[0]].name}"
                )
            kinds += [Kind(model=number, profile=each.name) for each in sorted(sizes.values(), key=lambda p: p.size)]
        if any(row.instance_profile is None for row in own):
            kinds.append(Kind(model=number, profile=WHOLE))
    return tuple(kinds)


def _partitions(kinds: Sequence[Kind], models: Sequence[Model]) -> Iterator[Partition]:
    for number, model in enumerate(models):
        mine = {kind.profile: KindIndex(position) for position, kind in enumerate(kinds) if kind.model == number}
        if WHOLE in mine:
            yield Partition(model=number, counts={mine[WHOLE]: 1})
        pool = [partitions.resolve(model.mig, name) for name in mine if name != WHOLE] if model.mig else []
        if model.mig is not None and pool:
            for names in partitions.list_maximal_combinations(model.mig, pool):
                counts = Counter(mine[name] for name in names)
                yield Partition(model=number, counts=dict(sorted(counts.items())))


def _memory_mib(kind: Kind, models: Sequence[Model]) -> float:
    """What those on it may use together; infinite where it is not known."""
    model = models[kind.model]
    if kind.profile != WHOLE and model.mig is not None:
        return partitions.resolve(model.mig, kind.profile).memory_mib or float("inf")
    known = mig_table.models().get(model.name)
    return known.capacity_mib if known else float("inf")


def _fits(row: Row, kind: Kind, models: Sequence[Model]) -> bool:
    return (row.memory_mib or 0) <= _memory_mib(kind, models)


def _options(
    number: int,
    service: Service,
    rows: Sequence[tuple[KindIndex, Row]],
    kinds: Sequence[Kind],
    models: Sequence[Model],
    margin: str,
) -> Iterator[Option]:
    """Each configuration of a service whose latency is below its part of the objective and whose memory fits."""
    assert service.objective_ms is not None, "checked when the services were read"
    for kind, row in rows:
        latency, throughput = latency_of(row), planned_throughput(row, margin)
        if latency is None or not throughput or not _fits(row, kinds[kind], models):
            continue
        if latency < service.latency_share * service.objective_ms:
            yield Option(
                service=ServiceIndex(number), kind=kind, row=row, throughput_per_s=throughput, latency_ms=latency
            )


def _check_figures(service: Service, rows: Sequence[tuple[KindIndex, Row]], margin: str) -> None:
    """Refuse a service whose rows lack what a plan rests on."""
    if all(latency_of(row) is None for _, row in rows):
        raise ConfigError(f"service {service.name}: none of its rows has a latency to hold against its objective")
    if not any(planned_throughput(row, margin) for _, row in rows):
        raise ConfigError(
            f"--margin {margin}: no row of service {service.name} has throughput_low_per_s; use --margin {NONE} or a "
            "share such as 0.1"
        )


def planned_throughput(row: Row, margin: str) -> float | None:
    """What is planned with, under a margin; `None` if the row does not say."""
    if margin == INTERVAL:
        return row.throughput_low_per_s
    return row.throughput_per_s if margin == NONE else row.throughput_per_s * (1 - float(margin))


def _worst_first(option: Option) -> tuple[float, float, int, int]:
    return option.throughput_per_s, -option.latency_ms, -option.row.processes, -(option.row.batch or 0)


def _unmet(
    service: Service, rows: Sequence[tuple[KindIndex, Row]], kinds: Sequence[Kind], models: Sequence[Model]
) -> Unmet:
    fitting = [
        (latency, number, row)
        for number, (kind, row) in enumerate(rows)
        if (latency := latency_of(row)) is not None and _fits(row, kinds[kind], models)
    ]
    if not fitting:
        return Unmet(service=service)
    latency, _, row = min(fitting)
    return Unmet(service=service, latency_ms=latency, row=row)
