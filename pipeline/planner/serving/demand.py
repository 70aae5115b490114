"""The demand, read from YAML: services with rates and latency objectives, and limits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.base.domain.mig_table import find_model_name
from pipeline.base.system.errors import ConfigError
from pipeline.planner import input_files
from pipeline.planner.deployment import Service

_LEAST_PER_S = 1e-9


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
class _File:
    services: tuple[Service, ...]
    limits: Limits = Limits()
    latency_share: float = 1.0


def read(path: Path) -> Demand:
    """Read the demand in a file; ConfigError names the invalid key."""
    raw = input_files.read_mapping(path, "services")
    shared = raw.get("latency_share")
    if shared is not None and isinstance(raw.get("services"), list):
        services = [
            {"latency_share": shared} | service if isinstance(service, dict) else service for service in raw["services"]
        ]
        raw = raw | {"services": services}
    content = input_files.decode(_File, raw, str(path))
    check(content.services, str(path))
    return Demand(services=content.services, limits=_checked(content.limits, content.services, f"{path}: limits"))


def check(services: tuple[Service, ...], where: str) -> None:
    """Raise ConfigError if a service cannot be planned."""
    if not services:
        raise ConfigError(f"{where}: services is empty; list at least one service")
    for number, service in enumerate(services):
        place = f"{where}: services[{number}] {service.name}"
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
                f"{where}: services: {name} is listed {count} times; list it once, with the sum of its rates"
            )


def _checked(limits: Limits, services: tuple[Service, ...], where: str) -> Limits:
    if limits.services_per_gpu == 0:
        raise ConfigError(f"{where}.services_per_gpu: must be at least 1; remove it for no limit")
    names = {service.name for service in services}
    for number, group in enumerate(limits.apart):
        if unknown := [name for name in group if name not in names]:
            raise ConfigError(f"{where}.apart[{number}]: unknown service {unknown[0]}; use names listed under services")
        if len(set(group)) != len(group) or len(group) < 2:
            raise ConfigError(
                f"{where}.apart[{number}]: must name two or more different services; add one, or remove it"
            )
    return Limits(
        services_per_gpu=limits.services_per_gpu,
        gpus={find_model_name(name): count for name, count in limits.gpus.items()},
        apart=limits.apart,
    )
