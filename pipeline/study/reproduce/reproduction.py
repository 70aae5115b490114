"""`reproduce=RUN`: plans the recorded group of a run again, and compares both runs."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from pipeline.base.domain import layout
from pipeline.base.domain.layout import CONFIG
from pipeline.base.domain.records import Plan
from pipeline.base.system import secrets, user_command, words
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.interrupts import UndoStack
from pipeline.base.system.paths import expand_path
from pipeline.clean import temporary_folder
from pipeline.observe.group_result import GroupResult
from pipeline.plan import config_reader, config_schema, job_entries, option_loader
from pipeline.plan.config_reader import is_rehearsal, name_reproductions, separate_rehearsals
from pipeline.plan.config_schema import Config
from pipeline.plan.inventory import Inventory
from pipeline.record.group_record import Original
from pipeline.record.store import portable_paths
from pipeline.record.tracking_sender import Sender
from pipeline.study.reproduce import differences

# Keys allowed in addition to `reproduce`: where the group runs, how it is observed and where the results are stored.
_MAY_BE_GIVEN = (
    *("gpu", "tracking", "listeners", "exporter", "limits", "data.root", "dry_run", "wait", "wait_limit_s"),
    "foreign_load",
    *("reproduce", "reproduce_strict"),
)
# Keys of the command, not of the group.
_OF_THE_START = (
    *("dry_run", "resume", "time_limit_s", "wait", "wait_limit_s", "reproduce", "reproduce_strict"),
    *("shard", "plan_file", "only"),
)
_OF_LATER_BLOCKS = ("precision_goal_pct", "repeats_max")
"""Keys that determine how many blocks a study has, not what a group of a block is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """A group to be run again.

    Attributes:
        config: the original's configuration, with the allowed changes of the command line.
        unrecorded: keys of the configuration that the original lacks; they have the current defaults.
    """

    original: Original
    config: Config
    unrecorded: Sequence[str]

    def only_its_group(self, plan: Plan) -> Plan:
        """Reduce the plan of the original's configuration to the original's group; ConfigError if it is missing."""
        alike = [group for group in plan.groups if group.digest == self.original.group.digest]
        recorded = self.original.group
        alike = alike or [g for g in plan.groups if (g.name, g.block) == (recorded.name, recorded.block)]
        if not alike:
            names = ", ".join(dict.fromkeys(group.name for group in plan.groups))
            raise ConfigError(
                f"reproduce={self.original.run_id}: its configuration no longer plans {recorded.name} (block "
                f"{recorded.block}), only {names}; check out commit "
                f"{recorded.facts.get('git_commit') or '(not recorded)'}"
            )
        group = dataclasses.replace(alike[0], number=1)
        return dataclasses.replace(plan, groups=(group,), devices=(group.device,), goal=None)

    def describe(self, plan: Plan, inventory: Inventory, facts: Mapping[str, str]) -> str:
        """Describe the group to run again and its differences; ConfigError if `reproduce_strict` forbids them."""
        original = self.original
        lines = differences.find(original, plan.groups[0], inventory, facts)
        if self.unrecorded:
            lines.append(f"settings that the original lacks, at their defaults: {', '.join(self.unrecorded)}")
        if lines and self.config.reproduce_strict:
            raise ConfigError(
                f"reproduce={original.run_id}: reproduce_strict=true forbids differences; "
                "set reproduce_strict=false to allow these: " + "; ".join(lines)
            )
        recorded = original.group
        heading = f"reproduces {recorded.name}, block {recorded.block}, of {original.experiment} ({original.run_id})"
        lines = [f"    differs: {line}" for line in lines] or ["    no recorded fact differs"]
        lines += [f"    {line}" for line in differences.list_masked_scripts(original, plan.groups[0])]
        return "\n".join([heading, *lines])

    def side_by_side(self, row: GroupResult) -> str:
        """Format the metrics of both runs and their ratios as an aligned table; `-` is a missing metric."""
        before, current = self.original.group.metrics, row.metrics
        lines = [("metric", "original", "now", "ratio")]
        lines.append(("result", self.original.group.result or "-", row.result.value, ""))
        for name in sorted({*before, *current}):
            was, is_now = before.get(name), current.get(name)
            ratio = "-" if not was or is_now is None else f"{is_now / was:.3f}"
            lines.append((name, _format_figure(was), _format_figure(is_now), ratio))
        return "\n".join(words.align_table(lines))


def prepare_reproduction(composed: DictConfig, config: Config, sender: Sender, stack: UndoStack) -> Reproduction:
    """Read the original and use its configuration for this study.

    Raises:
        ConfigError: the command line has a key that only the original determines, or the original cannot be planned
            again.
        TrackingError: the run does not exist.
    """
    run_id = config.reproduce
    assert run_id is not None
    keys = _list_typed_keys()
    # Keys below these are checked once the original is read.
    _refuse_others(run_id, keys, ("workload", "sizes", "mix", "env"))
    store = config.tracking.uri or str(expand_path("tracking.root", config.tracking.root).resolve())
    original = sender.recall(run_id, store)
    config_again, unrecorded = read_config(original)
    recorded = OmegaConf.to_container(config_again)
    assert isinstance(recorded, dict)
    hidden = list(secrets.find_hidden_keys({key: value for key, value in recorded.items() if key != "tracking"}))
    _refuse_others(run_id, keys, hidden)
    if lacking := [key for key in hidden if key not in keys]:
        raise ConfigError(
            f"reproduce={run_id}: possible secrets were not recorded; pass them again: "
            + ", ".join(f"{key}=..." for key in lacking)
        )
    with open_dict(config_again):
        config_again.tracking = composed.tracking
        for key in _OF_THE_START:
            config_again[key] = composed[key]
        for key in keys:
            _take_over(config_again, composed, key, hidden)
        _build_from_locks(config_again, original, stack)
    (typed,) = config_reader.read([config_again])
    if "tracking.experiment" in keys:
        separate_rehearsals([typed])
    else:
        typed.tracking.experiment = name_reproductions(original.experiment, is_rehearsed=is_rehearsal(typed))
    unrecorded = [key for key in unrecorded if key not in (*_OF_THE_START, *_OF_LATER_BLOCKS)]
    return Reproduction(original=original, config=typed, unrecorded=unrecorded)


def refuse_sweep(configs: Sequence[Config], *, is_sweep: bool) -> None:
    """Raise ConfigError if a configuration of a sweep has `reproduce`."""
    if is_sweep and any(config.reproduce is not None for config in configs):
        raise ConfigError("reproduce=RUN runs one group again and cannot be swept; remove -m and experiment=...")


def _list_typed_keys() -> list[str]:
    if not HydraConfig.initialized():
        return []
    return [user_command.key_of(word) for word in HydraConfig.get().overrides.task]


def _refuse_others(run_id: str, keys: Sequence[str], hidden: Sequence[str]) -> None:
    allowed = (*_MAY_BE_GIVEN, *hidden)
    refused = [key for key in keys if not any(key == may or key.startswith(f"{may}.") for may in allowed)]
    if refused:
        raise ConfigError(
            f"reproduce={run_id} cannot change {', '.join(refused)}; remove these keys; allowed are "
            f"{', '.join(key for key in _MAY_BE_GIVEN if not key.startswith('reproduce'))} (and keys below them)"
        )


def _take_over(config: DictConfig, composed: DictConfig, key: str, hidden: Iterable[str] = ()) -> None:
    """Use the command line's value of a key; a value with hidden secrets must match the record except for them."""
    if key in hidden:
        recorded, value = _select(config, key), _select(composed, key)
        if secrets.mask(value, key) != recorded:
            was = shlex.join(map(str, recorded)) if isinstance(recorded, list) else recorded
            raise ConfigError(
                f"{key} may differ from the original only in its secrets; set it to {was} with your secrets"
            )
        OmegaConf.update(config, key, value, merge=False)
    elif key == "data.root":
        for workload in (config.workload, *config.sizes.values()):
            if "data_root" in workload:
                workload.data_root = composed.data.root
    elif key.partition(".")[0] in ("gpu", "listeners", "exporter", "limits"):
        parent, _, name = key.rpartition(".")
        if name in (OmegaConf.select(composed, parent) if parent else composed):
            OmegaConf.update(config, key, OmegaConf.select(composed, key), merge=False)
        else:  # the command line removed the key, as with ~listeners.smi
            (OmegaConf.select(config, parent) if parent else config).pop(name, None)


def _select(config: DictConfig, key: str) -> Any:
    value = OmegaConf.select(config, key)
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def _build_from_locks(config: DictConfig, original: Original, stack: UndoStack) -> None:
    if "file" not in config.env or not original.job_locks:
        return
    folder = stack.enter_context(temporary_folder.hold_scratch())
    # A baseline of a mix has one job, whose index is 0 at any position in the mix; `entry` is this position.
    jobs = {str(job["index"]): job for job in json.loads(original.files.get(layout.GROUP, "{}")).get("jobs", [])}
    for index, text in sorted(original.job_locks.items()):
        if secrets.HIDDEN in text:
            raise ConfigError(
                f"reproduce={original.run_id}: the lock of the environment of job {index} was recorded without its "
                "secrets and cannot be built; run the study again with your own env.file"
            )
        path = folder / f"environment-{index}.txt"
        path.write_text(text, encoding="utf-8")
        job = jobs.get(index, {})
        if job.get("size") is not None:
            config.sizes[job["size"]].env_file = str(path)
        elif config.mix is None or job["entry"] >= len(config.mix):  # a co-runner is a copy of the workload
            config.workload.env_file = str(path)
        else:
            config.mix[job["entry"]] = job_entries.replace_environment(config.mix[job["entry"]], path)


def _format_figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"


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
    expected_keys = {field.name for field in dataclasses.fields(config_schema.Config)} - set(nodes)
    return config, absent + sorted(expected_keys - set(values))


def _add_types(group: str, values: dict[str, Any], node_key: str, absent: list[str]) -> DictConfig:
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
            f"{node_key}: this version of the project has no schema with the keys {', '.join(sorted(values))}; "
            "check out the commit of the run"
        )
    extra, node = min(fitting, key=lambda pair: (len(pair[0]), len(pair[1].__mro__)))
    absent += [f"{node_key}.{key}" for key in sorted(extra - {"options"})]
    merged = OmegaConf.merge(OmegaConf.structured(node), values)
    assert isinstance(merged, DictConfig)
    return merged


def _list_keys(node: type[Any]) -> set[str]:
    return {field.name for field in dataclasses.fields(node)}


def _explain_damage(group: Original, reason: str) -> str:
    return f"run {group.run_id} cannot be reproduced: its artifact {CONFIG} is damaged ({reason}); choose another run"


def _explain_version(group: Original, reason: str) -> str:
    commit = group.group.facts.get("git_commit") or "unknown"
    return (
        f"run {group.run_id} cannot be reproduced by this version of the project: {reason}; "
        f"check out the commit of the run, {commit}"
    )
