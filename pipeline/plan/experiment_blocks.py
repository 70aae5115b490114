"""The blocks of an experiment file: read them, and refuse mistakes that YAML accepts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf

from pipeline.base.system import override_values, user_command
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import config_folders
from pipeline.plan import override_remedy

KEY = "blocks"
GLOBAL_GROUPS = ("experiment", "rehearse", "duration")
"""Groups whose files set keys of the whole configuration; they define the sweep and therefore cannot be swept."""
_HEADER = "# @package _global_"
_IS_GLOBAL = re.compile(r"(?:\s*(?:#.*)?\n)*?\s*#\s*@package\s+_global_\s*(?:\n|$)")


def read_blocks(config: DictConfig) -> list[dict[str, Any]]:
    """Return the blocks of a composed configuration; empty without blocks.

    Raises:
        ConfigError: the blocks are not a list of grids, or a block has a wrong key or value.
    """
    node = OmegaConf.select(config, KEY)  # None after ~blocks
    blocks: Any = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node or []
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise ConfigError("blocks is not a list of grids; write 'blocks=[{scenario: mps, degree: 2}]'")
    name = OmegaConf.select(config, "hydra.runtime.choices.experiment")
    typed = OmegaConf.select(config, "hydra.overrides.task") or []
    where = f"experiment/{name}.yaml: " if name and not any(user_command.sets(word, [KEY]) for word in typed) else ""
    for index, block in enumerate(blocks):
        refuse_mistakes(block, f"{where}{KEY}[{index}]", config)
    return blocks


def refuse_mistakes(grid: Mapping[Any, Any], where: str, config: DictConfig) -> None:
    """Raise `ConfigError` for a grid with a wrong key, or with a list for a key that accepts none.

    A list is one value. Of `degree: 2,3` without quotes, YAML makes a key 3 without a value.
    """
    _refuse_keys(grid, where, config)
    for key, value in grid.items():
        if isinstance(value, list) and not override_remedy.may_take(user_command.place_of(key), value):
            raise ConfigError(f"{where}: {key} does not accept a list; write {_spell_values(key, value)}")


def lacks_header(file: str) -> bool:
    """Return whether a configuration file, such as `experiment/mine`, lacks the comment that it needs to be global."""
    if file.partition("/")[0] not in GLOBAL_GROUPS:
        return False
    paths = [path for folder in config_folders() if (path := folder / f"{file}.yaml").is_file()]
    return bool(paths) and _IS_GLOBAL.match(paths[0].read_text(encoding="utf-8")) is None


def explain_missing_header(file: str) -> str:
    """Explain that a configuration file lacks its first line."""
    return f"{file}.yaml must begin with the line {_HEADER}"


def _refuse_keys(grid: Mapping[Any, Any], where: str, config: DictConfig) -> None:
    names = list(grid)
    wrong = [not isinstance(name, str) or (grid[name] is None and not _is_key(name, config)) for name in names]
    if not any(wrong):
        return
    first = wrong.index(True)
    last = wrong.index(False, first) if False in wrong[first:] else len(names)
    name = _spell(names[first])
    if first == 0 or grid[names[first]] is not None:
        raise ConfigError(f"{where}: {name} is not a key; write KEY: VALUE")
    before = names[first - 1]
    values = [grid[before], *names[first:last]]
    if override_remedy.is_known_to_take(user_command.place_of(before), values):
        raise ConfigError(f"{where}: {name} is not a key; write a list as {before}: [{','.join(map(_spell, values))}]")
    raise ConfigError(f"{where}: {name} is not a key; quote several values: {_spell_values(before, values)}")


def _is_key(name: str, config: DictConfig) -> bool:
    return name.startswith(("+", "~", "hydra.")) or re.split(r"[.@]", name)[0] in config


def _spell_values(key: str, values: Sequence[Any]) -> str:
    return f'{key}: "{",".join(map(_spell, values))}"'


def _spell(value: Any) -> str:
    return value if isinstance(value, str) else override_values.format_override(value)
