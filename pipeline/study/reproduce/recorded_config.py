"""The recorded configuration of a run, converted to the configuration of a study."""

from __future__ import annotations

import dataclasses
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.base.domain.layout import CONFIG
from pipeline.base.system.errors import ConfigError
from pipeline.plan import config_schema, option_loader
from pipeline.record.store import portable_paths
from pipeline.record.stored_group import Original

# An exporter does not change results.
_NO_EXPORTER = "pipeline.observe.exporters.none.NoExporter"
_GROUPS = ("workload", *(group for group in option_loader.BASES if group != "exporter"))


def read_config(group: Original) -> tuple[DictConfig, list[str]]:
    """Return the resolved configuration of the group's study, and the keys that were not recorded.

    The file has values without types; the type of a node is found by comparing its keys with the schema.

    Raises:
        ConfigError: the run has no configuration, or has keys that this version does not support.
    """
    text = group.files.get(CONFIG)
    if text is None:
        raise ConfigError(f"run {group.run_id} cannot be reproduced: it has no artifact {CONFIG}; choose another run")
    try:
        values: dict[str, Any] = OmegaConf.to_container(OmegaConf.create(portable_paths.expand(text)))  # type: ignore[assignment]
    except (OmegaConfBaseException, yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(_explain_damage(group, str(error).splitlines()[0])) from error
    if not isinstance(values, dict):
        raise ConfigError(_explain_damage(group, "it contains no settings"))
    if lacking := [key for key in (*_GROUPS, "sizes") if key not in values]:
        raise ConfigError(_explain_version(group, f"its configuration lacks {', '.join(lacking)}"))
    gpu = values.get("gpu")
    if isinstance(gpu, dict) and (replay := gpu.pop("replay", None)) is not None:
        raise ConfigError(_explain_version(group, f"gpu.replay={replay} is a key of an earlier version"))
    absent: list[str] = []
    config = OmegaConf.structured(config_schema.Config)
    try:
        nodes: dict[str, Any] = {key: _add_types(key, values.pop(key), key, absent) for key in _GROUPS}
        sizes = values.pop("sizes").items()
        nodes["exporter"] = OmegaConf.structured(option_loader.load_choice("exporter", _NO_EXPORTER))
        nodes["exporter"].name = config_schema.NO_EXPORTER
        values.pop("exporter", None)
        nodes["sizes"] = {name: _add_types("workload", size, f"sizes.{name}", absent) for name, size in sizes}
        for key, node in nodes.items():
            config[key] = node
        config = OmegaConf.merge(config, values)
    except OmegaConfBaseException as error:
        first = str(error).splitlines()[0]
        raise ConfigError(_explain_version(group, f"{error.full_key}: {first}" if error.full_key else first)) from error
    except (TypeError, AttributeError) as error:  # a plain value in place of a map
        raise ConfigError(_explain_damage(group, str(error))) from error
    assert isinstance(config, DictConfig)
    known = {field.name for field in dataclasses.fields(config_schema.Config)} - set(nodes)
    return config, absent + sorted(known - set(values))


def _add_types(group: str, values: dict[str, Any], where: str, absent: list[str]) -> DictConfig:
    """Return the values as a node of the schema: of the nodes with these keys, the one with the fewest other keys."""
    if (target := values.get("_target_")) is not None:
        try:
            nodes = [option_loader.load_choice(group, str(target))]
        except ConfigError:  # a class without declared options: the keys are its arguments
            return OmegaConf.create(values)
    elif values.get("options") is not None:
        nodes = [option_loader.load(str(values["options"]))]
    else:
        nodes = option_loader.list_kinds(group)
    fitting = [(_list_keys(node) - set(values), node) for node in nodes if set(values) <= _list_keys(node)]
    if not fitting:
        raise ConfigError(
            f"{where}: this version of the project has no schema with the keys {', '.join(sorted(values))}; "
            "check out the commit of the run"
        )
    extra, node = min(fitting, key=lambda pair: (len(pair[0]), len(pair[1].__mro__)))
    absent += [f"{where}.{key}" for key in sorted(extra - {"options"})]
    merged = OmegaConf.merge(OmegaConf.structured(node), values)
    assert isinstance(merged, DictConfig)
    return merged


def _list_keys(node: type[Any]) -> set[str]:
    return {field.name for field in dataclasses.fields(node)}


def _explain_damage(group: Original, why: str) -> str:
    return f"run {group.run_id} cannot be reproduced: its artifact {CONFIG} is damaged ({why}); choose another run"


def _explain_version(group: Original, why: str) -> str:
    commit = group.group.facts.get("git_commit") or "unknown"
    return (
        f"run {group.run_id} cannot be reproduced by this version of the project: {why}; "
        f"check out the commit of the run, {commit}"
    )
