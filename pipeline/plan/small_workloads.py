"""Small replacements for the workloads of a rehearsed experiment; each option class defines its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from pipeline.base.system.errors import ConfigError
from pipeline.plan import command_line, option_loader
from pipeline.plan.workload_config import WorkloadConfig


def make_small(config: DictConfig, fixed: Collection[str], replacements: Mapping[str, Any]) -> None:
    """Replace the workloads of a configuration by small ones.

    Args:
        config: a composed configuration.
        fixed: keys that stay unchanged, such as the command line's: options of a workload, or a program.
        replacements: `stand_in`, the option class that replaces programs without an option class, and `sets`, values
            by key; a key that a small workload lacks is ignored.

    Raises:
        ConfigError: a workload cannot be read, or the small workload lacks a fixed key.
    """
    for place in ("workload", *(f"sizes.{name}" for name in config.sizes)):
        node = OmegaConf.select(config, place)
        if OmegaConf.get_type(node) is dict:
            continue
        try:
            workload = OmegaConf.to_object(node)
        except MissingMandatoryValue as error:
            raise ConfigError(f"{error.full_key} is missing; set {error.full_key}=VALUE") from error
        except OmegaConfBaseException as error:
            raise ConfigError(f"{error.full_key}: {str(error).splitlines()[0]}") from error
        assert isinstance(workload, WorkloadConfig)
        if workload.options is None and place in fixed:
            continue
        options = _shrink(workload) if workload.options else option_loader.load(replacements["stand_in"])()
        small = OmegaConf.structured(options)
        for key, value in replacements["sets"].items():
            if key.startswith(f"{place}.") and key.removeprefix(f"{place}.") in small:
                OmegaConf.update(small, key.removeprefix(f"{place}."), value)
        for key in (key.removeprefix(f"{place}.") for key in fixed if key.startswith(f"{place}.")):
            try:
                OmegaConf.update(small, key, OmegaConf.select(node, key))
            except OmegaConfBaseException as error:
                known = [str(name) for name in small]
                raise ConfigError(command_line.explain_unknown_key(f"{place}.{key}", known)) from error
        OmegaConf.update(config, place, option_loader.open_maps(small), merge=False, force_add=True)


def _shrink(workload: WorkloadConfig) -> WorkloadConfig:
    with workload.hook("small"):
        options = workload.small()
        if not dataclasses.is_dataclass(options) or isinstance(options, type):
            raise ValueError(f"small returned {options!r}, not a workload; return replace(self, KEY=VALUE)")
        small = option_loader.join(options)
        try:
            OmegaConf.structured(small)
        except OmegaConfBaseException as error:
            raise ValueError(f"small: {error.full_key}: {str(error).splitlines()[0]}") from error
    if any(getattr(workload, option.name, None) != getattr(small, option.name) for option in small.option_fields()):
        small.refuse_values("small: ")
    return small
