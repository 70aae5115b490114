"""Names that earlier versions used, old to new: keys of the configuration, and names in stores and spools.

Every reader of a store or spool applies these tables to studies of earlier versions. Digests are computed over the old
names, so equal studies have equal digests and `resume` can continue a study of an earlier version.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TypeVar

KEYS = {
    "unit": "shard",
    "unit_of": "shard_of",
    "neighbours": "co_runners",
    "gpu.beside": "gpu.other_gpus",
    "workload.unit": "workload.work_unit",
}
"""Configuration keys, old to new. A key of `workload` also applies to each entry of `sizes`."""
FACTS = {
    "unit": "shard",
    "plan_unit": "plan_shard",
    "plan_units": "plan_shards",
    "neighbour": "co_runner",
    "beside": "other_gpus",
}
"""Tags of the project, old to new, without their prefix."""
PARAMS = {"unit": "work_unit", "neighbours": "co_runners"}
SETTINGS = {"neighbours": "co-runners", "GPUs beside": "other GPUs"}
"""Settings in the tag `planned`, old to new."""
SUBMISSION = {"num_units": "num_shards"}
PARAM_PREFIX, METRIC_PREFIX = ("place.", "placement."), ("neighbours_", "co_runners_")

Value = TypeVar("Value")
_SIZE = re.compile(r"sizes\.[^.]+\.")


def find_new_key(key: str) -> str | None:
    """Return the current name of an old configuration key; `None` for any other key."""
    size = _SIZE.match(key)
    if size is None:
        return KEYS.get(key)
    new = KEYS.get(f"workload.{key[size.end() :]}")
    return new and size[0] + new.removeprefix("workload.")


def rename(
    values: Mapping[str, Value], names: Mapping[str, str], prefix: tuple[str, str] = ("", "")
) -> dict[str, Value]:
    """Return the values under their current names, in their order."""
    old, new = prefix
    return {
        names.get(name) or (new + name.removeprefix(old) if old and name.startswith(old) else name): value
        for name, value in values.items()
    }


def rename_params(params: Mapping[str, str]) -> dict[str, str]:
    """Return the params of a run under their current names."""
    return rename(params, PARAMS, PARAM_PREFIX)


def rename_metrics(metrics: Mapping[str, Value]) -> dict[str, Value]:
    """Return the metrics of a run under their current names."""
    return rename(metrics, {}, METRIC_PREFIX)


def rename_words(words: Iterable[str]) -> list[str]:
    """Return the overrides of a recorded command line with the current keys."""
    renamed = []
    for word in words:
        key, equals, value = word.partition("=")
        name = key.lstrip("+~")
        new = find_new_key(name) if equals else None
        renamed.append(f"{key.removesuffix(name)}{new}={value}" if new else word)
    return renamed


def restore_old(values: Mapping[str, Value], names: Mapping[str, str]) -> dict[str, Value]:
    """Return the values under their old names, over which digests are computed."""
    old = {new: name for name, new in names.items()}
    return {old.get(name, name): value for name, value in values.items()}
