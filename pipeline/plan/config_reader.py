"""Conversion of composed configurations to typed objects."""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Sequence
from typing import Any

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from pipeline.base.domain.records import Resume
from pipeline.base.system import user_command
from pipeline.base.system.errors import ConfigError
from pipeline.plan import command_line
from pipeline.plan.config_schema import SOURCES, Config, GpuKind


def read(configs: Sequence[DictConfig]) -> list[Config]:
    """Return composed configurations as typed objects.

    Raises:
        ConfigError: a mandatory key is missing, a key does not exist, or a value cannot be used.
    """
    typed: list[Config] = []
    for config in configs:
        try:
            source = OmegaConf.select(config, "data.source")
            if source not in SOURCES:  # check this key before the workloads that refer to it
                raise ConfigError(f"data.source={source} must be one of {', '.join(SOURCES)}")
            settings = OmegaConf.to_object(config)
            assert isinstance(settings, Config)
            vars(settings).pop("blocks", None)  # belongs to the sweep, not to a job
            _refuse_other_kinds(settings)
            _refuse_no_workloads(settings)
            if settings.resume.lower() not in list(Resume):
                raise ConfigError(f"resume={settings.resume} must be one of {', '.join(Resume)}")
            settings.resume = Resume(settings.resume.lower())
            if str(settings.repeats).isdecimal():  # an interpolation is a text
                settings.repeats = int(settings.repeats)
            settings.scenario = _node("scenario", settings.scenario, name=MISSING, sequential=False)
            settings.env = _node("env", settings.env)
            settings.profiler = _node("profiler", settings.profiler, name=MISSING)
            settings.exporter = _node("exporter", settings.exporter, name=MISSING)
            typed.append(settings)
        except OmegaConfBaseException as error:
            key = getattr(error, "full_key", None) or "?"
            if isinstance(error, MissingMandatoryValue):
                if config.mix and key == "workload.script":
                    raise ConfigError(f"workload=script names no program; {user_command.KEYS_OF_A_MIX}") from error
                raise ConfigError(f"{key} is missing; set {key}=VALUE") from error
            raise ConfigError(f"{key}: {str(error).splitlines()[0]}; set {key}=VALUE") from error
    for settings in typed:
        if unknown := next(command_line.explain_unknown_keys(settings), None):
            raise ConfigError(unknown)
        if settings.gpu.kind is GpuKind.simulated and settings.gpu.admin is not None:
            settings.gpu.admin = []  # ignore a setting for a real GPU
    return typed


def _refuse_no_workloads(config: Config) -> None:
    for where, node in {"workload": config.workload, **{f"sizes.{k}": v for k, v in config.sizes.items()}}.items():
        if not dataclasses.is_dataclass(node):
            choice = "workload" if where == "workload" else f"+workload@{where}"
            raise ConfigError(
                f"{where} has no schema; choose {choice}=NAME, or begin its YAML with "
                "`defaults: [/schema/workload@_here_, _self_]` (docs/your_own_workload.md)"
            )


def _refuse_other_kinds(node: Any, where: str = "") -> None:
    """Refuse an interpolated scalar for a list or a map: OmegaConf does not check types after interpolation."""
    kinds = _lists_and_maps(node.__class__)
    for key, value in vars(node).items():
        place = f"{where}{key}"
        if value is not None and not isinstance(value, kinds.get(key, object)):
            raise ConfigError(f"{place}={value} must be {'a list' if kinds[key] is list else 'a map'}")
        parts = (
            {f"{place}.{name}": inner for name, inner in value.items()} if isinstance(value, dict) else {place: value}
        )
        for inside, part in parts.items():
            if dataclasses.is_dataclass(part):
                _refuse_other_kinds(part, f"{inside}.")


@functools.cache
def _lists_and_maps(node: type[Any]) -> dict[str, type[Any]]:
    kinds: dict[str, type[Any]] = {}
    for key, hint in typing.get_type_hints(node).items():
        origins = {typing.get_origin(part) for part in (hint, *typing.get_args(hint))}
        if kind := next((kind_of_field for kind_of_field in (list, dict) if kind_of_field in origins), None):
            kinds[key] = kind
    return kinds


def _node(where: str, node: Any, **defaults: object) -> Any:
    """Convert a map to an object with these defaults; return a node of the schema unchanged."""
    if not isinstance(node, dict):
        return node
    values = {"_target_": MISSING, **defaults, **node}
    if lacking := [key for key, value in values.items() if value == MISSING]:
        raise ConfigError(f"{where}.{lacking[0]} is missing; set {where}.{lacking[0]}=VALUE")
    return _node_class(tuple(values))(**values)


@functools.cache
def _node_class(keys: tuple[str, ...]) -> type[Any]:
    """Make one class for all nodes with these keys; nodes with equal values are then equal."""
    return dataclasses.make_dataclass("Node", [(key, Any) for key in keys])
