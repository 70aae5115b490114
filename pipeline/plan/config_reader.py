"""Conversion of composed configurations to typed objects, checks of their values, and names of their experiments."""

from __future__ import annotations

import dataclasses
import functools
import os
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from hydra.core.hydra_config import HydraConfig
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from pipeline.base.domain.layout import REHEARSAL
from pipeline.base.domain.precision_goal import MIN_BLOCKS
from pipeline.base.domain.records import CpuPinning, Resume
from pipeline.base.domain.samples import MIN_INTERVAL_MS
from pipeline.base.domain.sharing_modes import is_program
from pipeline.base.system import entry_points, user_command
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.option_fields import explain_out_of_bounds
from pipeline.base.system.paths import MAX_NAME_BYTES, expand_path, is_file
from pipeline.base.system.words import escape_to_utf8
from pipeline.plan import command_line
from pipeline.plan.config_schema import (
    AUTO_REPEATS,
    JSON,
    SOURCES,
    Config,
    GpuConfig,
    GpuKind,
    ListenerConfig,
    TrackingConfig,
)

_Word = TypeVar("_Word", CpuPinning, Resume)
_MAX_INTERVAL_MS = 86_400_000
_REPRODUCTIONS = "-reproductions"


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
            settings.resume = _read_word(Resume, "resume", settings.resume)
            settings.pin_cpus = _read_word(CpuPinning, "pin_cpus", settings.pin_cpus)
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


def _read_word(words: type[_Word], key: str, text: str) -> _Word:
    if text.lower() not in list(words):
        raise ConfigError(f"{key}={text} must be one of {', '.join(words)}")
    return words(text.lower())


def _refuse_no_workloads(config: Config) -> None:
    for key, node in {"workload": config.workload, **{f"sizes.{k}": v for k, v in config.sizes.items()}}.items():
        if not dataclasses.is_dataclass(node):
            choice = "workload" if key == "workload" else f"+workload@{key}"
            raise ConfigError(
                f"{key} has no schema; choose {choice}=NAME, or begin its YAML with "
                "`defaults: [/schema/workload@_here_, _self_]` (docs/your_own_workload.md)"
            )


def _refuse_other_kinds(node: Any, prefix: str = "") -> None:
    """Refuse an interpolated scalar for a list or a map: OmegaConf does not check types after interpolation."""
    kinds = _lists_and_maps(node.__class__)
    for key, value in vars(node).items():
        place = f"{prefix}{key}"
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


def _node(node_key: str, node: Any, **defaults: object) -> Any:
    """Convert a map to an object with these defaults; return a node of the schema unchanged."""
    if not isinstance(node, dict):
        return node
    values = {"_target_": MISSING, **defaults, **node}
    if lacking := [key for key, value in values.items() if value == MISSING]:
        raise ConfigError(f"{node_key}.{lacking[0]} is missing; set {node_key}.{lacking[0]}=VALUE")
    return _node_class(tuple(values))(**values)


@functools.cache
def _node_class(keys: tuple[str, ...]) -> type[Any]:
    """Make one class for all nodes with these keys; nodes with equal values are then equal."""
    return dataclasses.make_dataclass("Node", [(key, Any) for key in keys])


def refuse_settings(config: Config) -> None:
    """Raise `ConfigError` for settings with which no study can run."""
    if config.dry_run not in (True, False, JSON):
        raise ConfigError(f"dry_run={config.dry_run} must be true, false or {JSON}")
    _refuse_repeats(config)
    for parent in ("", "limits", "window", "pack", "gpu", "tracking", "scenario", "env", "profiler", "exporter"):
        node = getattr(config, parent) if parent else config
        for field in dataclasses.fields(node):
            value = getattr(node, field.name)
            if (problem := explain_out_of_bounds(field, value)) is not None:
                raise ConfigError(f"{parent}{'.' if parent else ''}{field.name}={value} {problem}")
    if (most_s := config.window.most_s) is not None and most_s <= config.window.seconds:
        raise ConfigError(
            f"window.most_s={most_s:g} must be greater than window.seconds={config.window.seconds:g}; for a window of "
            "fixed length, set window.most_s=null"
        )
    expand_path("gpu.lock_dir", config.gpu.lock_dir)
    _refuse_tracking(config.tracking)
    root = expand_path("tracking.root", config.tracking.root)
    if config.tracking.uri is None and not config.dry_run and is_file(root):
        raise ConfigError(
            f"tracking.root={config.tracking.root} is a file; add a bundle to a store with "
            f"`{entry_points.spell('tracking', 'import')}`, and set tracking.root to the folder of this store"
        )
    _refuse_listeners(config.listeners)
    if config.gpu.kind is GpuKind.simulated:
        _refuse_rehearsal(config)
    else:
        default = GpuConfig()
        for key in ("model", "job_memory_mib", "driver", "count", "machine"):
            if (value := getattr(config.gpu, key)) != getattr(default, key):
                raise ConfigError(
                    f"gpu.{key}={value} needs a simulated GPU; choose one, such as gpu=simulated_a100_40gb"
                )


def _refuse_repeats(config: Config) -> None:
    if config.advise_minutes is not None and (config.shard is not None or config.repeats == AUTO_REPEATS):
        reason = "repeats=auto" if config.shard is None else f"shard={config.shard}"
        raise ConfigError(f"advise_minutes compares all blocks while they run, so {reason} is not possible; remove it")
    if config.repeats != AUTO_REPEATS:
        if isinstance(config.repeats, str):
            raise ConfigError(f"repeats={config.repeats} must be a number or {AUTO_REPEATS}")
        return
    if config.repeats_max < MIN_BLOCKS:
        raise ConfigError(f"repeats_max={config.repeats_max} must be at least {MIN_BLOCKS} with repeats=auto")
    if config.shard is not None:
        raise ConfigError(
            f"shard={config.shard} conflicts with repeats=auto, which compares all blocks; remove shard, or set "
            "repeats=NUMBER"
        )


def _refuse_listeners(listeners: Mapping[str, ListenerConfig]) -> None:
    for name, listener in listeners.items():
        if not MIN_INTERVAL_MS <= listener.interval_ms <= _MAX_INTERVAL_MS:
            raise ConfigError(
                f"listeners.{name}.interval_ms={listener.interval_ms} must be from {MIN_INTERVAL_MS} (faster sampling "
                f"disturbs the jobs) to {_MAX_INTERVAL_MS}"
            )
    if "activity" in listeners and (same := [name for name in ("gpm", "dcgm") if name in listeners]):
        raise ConfigError(
            f"listeners=[activity,{','.join(same)}] would read the same counters twice; remove activity, or "
            f"{' and '.join(same)}"
        )


def _refuse_tracking(config: TrackingConfig) -> None:
    if not config.root.strip():
        raise ConfigError("tracking.root is empty; set it to the folder of the store and the spool")
    if config.uri is None and (odd := {"?", "%"} & set(str(expand_path("tracking.root", config.root).absolute()))):
        raise ConfigError(
            f"tracking.root={config.root} has a path with {' and '.join(sorted(odd))}, which MLflow cannot read; "
            "choose another folder"
        )
    if (
        config.uri is None
        and escape_to_utf8(folder := str(expand_path("tracking.root", config.root).resolve())) != folder
    ):
        raise ConfigError(
            f"tracking.root={config.root} has a path that is not UTF-8, {folder}; choose another folder, such as "
            "tracking.root=/tmp/mlruns"
        )
    if not config.experiment.strip():
        raise ConfigError("tracking.experiment is empty; set it to the MLflow experiment for the results")
    if len(os.fsencode(config.experiment)) > MAX_NAME_BYTES:  # the folder of its artifacts has this name
        raise ConfigError(f"tracking.experiment={config.experiment} must have at most {MAX_NAME_BYTES} bytes")


def _refuse_rehearsal(config: Config) -> None:
    if config.gpu.job_memory_mib < 1:
        raise ConfigError(f"gpu.job_memory_mib={config.gpu.job_memory_mib} must be at least 1")
    programs = {f"listeners.{name}.options.program": e.options.get("program") for name, e in config.listeners.items()}
    programs |= {f"scenario.{key}": value for key, value in vars(config.scenario).items() if is_program(key)}
    for key, program in programs.items():
        if program is not None:
            raise ConfigError(f"{key}={program} cannot be used with a simulated GPU; remove {key}")


def is_rehearsal(config: Config) -> bool:
    """Return whether a configuration rehearses (simulated GPU or small workloads); its figures are meaningless."""
    is_small = HydraConfig.initialized() and "rehearse" in HydraConfig.get().runtime.choices
    return is_small or config.gpu.kind is GpuKind.simulated


def separate_rehearsals(configs: Iterable[Config]) -> None:
    """Set the experiment of each rehearsal to `NAME-rehearsal`.

    A report reads one experiment, in which rehearsed rows would mix with measured rows or replace them.
    """
    for config in configs:
        if is_rehearsal(config):
            config.tracking.experiment = name_rehearsal(config.tracking.experiment)


def name_rehearsal(experiment: str) -> str:
    """Return the experiment for rehearsals of an experiment's studies; return a rehearsal's name unchanged."""
    return experiment.removesuffix(REHEARSAL) + REHEARSAL


def name_reproductions(experiment: str, *, is_rehearsed: bool) -> str:
    """Return the experiment for reproductions of an experiment's groups, on a simulated or a real GPU."""
    studies = experiment.removesuffix(_REPRODUCTIONS).removesuffix(REHEARSAL)
    return (name_rehearsal(studies) if is_rehearsed else studies) + _REPRODUCTIONS


def name_company(experiment: str) -> str:
    """Return the experiment for load on other GPUs: `NAME_company`, or `NAME_company-rehearsal` for a rehearsal."""
    studies = experiment.removesuffix(REHEARSAL)
    return f"{studies}_company{experiment[len(studies) :]}"
