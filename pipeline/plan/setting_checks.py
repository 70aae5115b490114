"""Checks of settings before a study starts; they read values only, not the machine."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

from pipeline.base.domain.precision_goal import MIN_BLOCKS
from pipeline.base.domain.samples import MIN_INTERVAL_MS
from pipeline.base.domain.sharing_modes import is_program
from pipeline.base.system import entry_points
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.option_fields import explain_out_of_bounds
from pipeline.base.system.paths import MAX_NAME_BYTES, expand_path, is_file
from pipeline.base.system.words import escape_to_utf8
from pipeline.plan.config_schema import AUTO_REPEATS, Config, GpuConfig, GpuKind, ListenerConfig, TrackingConfig

JSON = "json"
"""Value of `dry_run` that prints the plan as JSON."""

_MAX_INTERVAL_MS = 86_400_000


def refuse_settings(config: Config) -> None:
    """Raise `ConfigError` for settings with which no study can run."""
    if config.dry_run not in (True, False, JSON):
        raise ConfigError(f"dry_run={config.dry_run} must be true, false or {JSON}")
    _refuse_repeats(config)
    for parent in ("", "limits", "window", "gpu", "tracking"):
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
