"""The recorded configuration of a run, converted to the configuration of a study."""

from __future__ import annotations

import dataclasses
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.base.domain.layout import CONFIG
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.plan import config_schema, option_loader
from pipeline.plan.workload_config import WorkloadConfig
from pipeline.record.store import portable_paths
from pipeline.record.stored_group import Original

_KINDS: dict[str, type[Any]] = {
    "workload": WorkloadConfig,
    **{
        group: base for group, base in config_schema.BASES.items() if group != "exporter"
    },  # an exporter does not change results
}


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
    if lacking := [key for key in (*_KINDS, "sizes") if key not in values]:
        raise ConfigError(_explain_version(group, f"its configuration lacks {', '.join(lacking)}"))
    gpu = values.get("gpu")
    if isinstance(gpu, dict) and (replay := gpu.pop("replay", None)) is not None:
        raise ConfigError(_explain_version(group, f"gpu.replay={replay} is a key of an earlier version"))
    absent: list[str] = []
    config = OmegaConf.structured(config_schema.Config)
    try:
        nodes: dict[str, Any] = {key: _add_types(base, values.pop(key), key, absent) for key, base in _KINDS.items()}
        sizes = values.pop("sizes").items()
        nodes["exporter"] = OmegaConf.structured(config_schema.ExporterConfig)
        values.pop("exporter", None)
        nodes["sizes"] = {name: _add_types(WorkloadConfig, size, f"sizes.{name}", absent) for name, size in sizes}
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


def _add_types(base: type[Any], values: dict[str, Any], where: str, absent: list[str]) -> DictConfig:
    """Return the values as a node of the schema: of the nodes with these keys, the one with the fewest other keys."""
    is_known = base is WorkloadConfig and values.get("options") is not None
    nodes = [option_loader.load(str(values["options"]))] if is_known else config_schema.list_kinds(base)
    fitting = [(_list_keys(node) - set(values), node) for node in nodes if set(values) <= _list_keys(node)]
    if (target := values.get("_target_")) is not None:
        fitting = [(extra, node) for extra, node in fitting if not extra or target in _list_targets(where, node)]
        if not fitting:  # a YAML without a schema node: its keys are the arguments of its class
            return OmegaConf.create(values)
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


def _list_targets(group: str, node: type[Any]) -> set[str]:
    yamls: list[Any] = [OmegaConf.load(file) for file in (PROJECT_DIR / "conf" / group).glob("*.yaml")]
    return {yaml["_target_"] for yaml in yamls if f"/schema/{node.NODE}@_here_" in yaml.get("defaults", ())}


def _explain_damage(group: Original, why: str) -> str:
    return f"run {group.run_id} cannot be reproduced: its artifact {CONFIG} is damaged ({why}); choose another run"


def _explain_version(group: Original, why: str) -> str:
    commit = group.group.facts.get("git_commit") or "unknown"
    return (
        f"run {group.run_id} cannot be reproduced by this version of the project: {why}; "
        f"check out the commit of the run, {commit}"
    )
