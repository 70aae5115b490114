"""Overrides of a sweep: blocks of an experiment file, combinations of a grid, values in a composed configuration."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from pipeline.base.system import override_values, user_command
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.paths import config_folders
from pipeline.plan import override_remedy

_CANNOT_DELETE = "Could not delete from config"
_INTEGER = re.compile(r"[+-]?\d+")
BLOCKS = "blocks"
GLOBAL_GROUPS = ("experiment", "rehearse", "duration")
"""Groups whose files set keys of the whole configuration; they define the sweep and therefore cannot be swept."""
_HEADER = "# @package _global_"
_IS_GLOBAL = re.compile(r"(?:\s*(?:#.*)?\n)*?\s*#\s*@package\s+_global_\s*(?:\n|$)")


def list_combinations(overrides: Sequence[Override]) -> list[list[str]]:
    """Return the overrides of every combination of a grid; the last key varies fastest.

    If a key is set twice, the last override counts. `KEY=null,null` is one value:
    `hydra_arguments` writes a null in this form, because `choice()` accepts no null.

    Raises:
        ConfigError: a sweep has no discrete values.
    """
    values: dict[str, list[str]] = {}
    for override in overrides:
        key = override.get_key_element()
        if not override.is_sweep_override():
            values[key] = [f"{key}={override.get_value_element_as_str()}"]
        elif override.is_discrete_sweep():
            texts = list(override.sweep_string_iterator())
            values[key] = [f"{key}={text}" for text in (texts[:1] if set(texts) == {"null"} else texts)]
        else:
            raise ConfigError(f"{override.input_line} has no discrete values; write A,B or range(START,STOP,STEP)")
    return [list(combination) for combination in itertools.product(*values.values())]


def refuse_integers(words: Iterable[str], config: DictConfig) -> None:
    """Raise `ConfigError` for a number other than 0 and 1 as the value of a Boolean key.

    OmegaConf converts every number to true or false.
    """
    for word in words:
        key, _, text = word.partition("=")
        numbers = [part for part in text.split(",") if _INTEGER.fullmatch(part) and int(part) not in (0, 1)]
        if numbers and isinstance(OmegaConf.select(config, user_command.place_of(key)), bool):
            raise ConfigError(f"{key}={numbers[0]} must be true or false")


def set_values(overrides: Sequence[Override], config: DictConfig) -> None:
    """Set values in a composed configuration.

    This takes 5 ms; composing the configuration again would take 100 ms.

    Raises:
        ConfigCompositionException: a key does not exist or does not accept its value; the message and `__cause__` are
            the same as from Hydra.
        ConfigError: an error of `refuse_integers`.
    """
    for override in overrides:
        try:
            _set_value(override, config)
        except OmegaConfBaseException as error:
            raise ConfigCompositionException(f"Error merging override {override.input_line}") from error
    refuse_integers((str(override.input_line) for override in overrides), config)


def _set_value(override: Override, config: DictConfig) -> None:
    key, value = override.key_or_group, override.value()
    if override.package is not None:
        raise ConfigCompositionException(f"{override.input_line} names the group {key}, which does not exist")
    if override.is_delete():
        _delete(key, value, config)
        return
    is_added = override.is_add() or override.is_force_add()
    if override.is_add() and not isinstance(value, dict | list):
        _refuse_present(override, config)
    try:
        OmegaConf.update(config, key, value, merge=True, force_add=is_added)
    except (ConfigAttributeError, ConfigKeyError) as error:
        if is_added:
            raise
        raise ConfigCompositionException(f"Could not override '{key}'.") from error


def _refuse_present(override: Override, config: DictConfig) -> None:
    if OmegaConf.select(config, override.key_or_group, throw_on_missing=False) is not None:
        raise ConfigCompositionException(
            f"Could not append to config. An item is already at '{override.key_or_group}'."
        )


def _delete(key: str, value: object, config: DictConfig) -> None:
    present = OmegaConf.select(config, key, throw_on_missing=False)
    refusal = None
    if present is None:
        refusal = f"'{key}' does not exist."
    elif value is not None and value != present:
        refusal = f"The value of '{key}' is {present} and not {value}."
    if refusal is not None:
        raise ConfigCompositionException(f"{_CANNOT_DELETE}. {refusal}")
    parent, _, name = key.rpartition(".")
    with open_dict(config):
        del (OmegaConf.select(config, parent) if parent else config)[name]


def read_blocks(config: DictConfig) -> list[dict[str, Any]]:
    """Return the blocks of a composed configuration; empty without blocks.

    Raises:
        ConfigError: the blocks are not a list of grids, or a block has a wrong key or value.
    """
    node = OmegaConf.select(config, BLOCKS)  # None after ~blocks
    blocks: Any = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node or []
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise ConfigError("blocks is not a list of grids; write 'blocks=[{scenario: mps, degree: 2}]'")
    name = OmegaConf.select(config, "hydra.runtime.choices.experiment")
    typed = OmegaConf.select(config, "hydra.overrides.task") or []
    source = (
        f"experiment/{name}.yaml: " if name and not any(user_command.sets(word, [BLOCKS]) for word in typed) else ""
    )
    for index, block in enumerate(blocks):
        refuse_mistakes(block, f"{source}{BLOCKS}[{index}]", config)
    return blocks


def refuse_mistakes(grid: Mapping[Any, Any], place: str, config: DictConfig) -> None:
    """Raise `ConfigError` for a grid with a wrong key, or with a list for a key that accepts none.

    A list is one value. Of `degree: 2,3` without quotes, YAML makes a key 3 without a value.
    """
    _refuse_keys(grid, place, config)
    for key, value in grid.items():
        if isinstance(value, list) and not override_remedy.may_take(user_command.place_of(key), value):
            raise ConfigError(f"{place}: {key} does not accept a list; write {_spell_values(key, value)}")


def lacks_header(file: str) -> bool:
    """Return whether a configuration file, such as `experiment/mine`, lacks the comment that it needs to be global."""
    if file.partition("/")[0] not in GLOBAL_GROUPS:
        return False
    paths = [path for folder in config_folders() if (path := folder / f"{file}.yaml").is_file()]
    return bool(paths) and _IS_GLOBAL.match(paths[0].read_text(encoding="utf-8")) is None


def explain_missing_header(file: str) -> str:
    """Explain that a configuration file lacks its first line."""
    return f"{file}.yaml must begin with the line {_HEADER}"


def _refuse_keys(grid: Mapping[Any, Any], place: str, config: DictConfig) -> None:
    names = list(grid)
    are_invalid = [not isinstance(name, str) or (grid[name] is None and not _is_key(name, config)) for name in names]
    if not any(are_invalid):
        return
    first = are_invalid.index(True)
    last = are_invalid.index(False, first) if False in are_invalid[first:] else len(names)
    name = _spell(names[first])
    if first == 0 or grid[names[first]] is not None:
        raise ConfigError(f"{place}: {name} is not a key; write KEY: VALUE")
    before = names[first - 1]
    values = [grid[before], *names[first:last]]
    if override_remedy.is_known_to_take(user_command.place_of(before), values):
        raise ConfigError(f"{place}: {name} is not a key; write a list as {before}: [{','.join(map(_spell, values))}]")
    raise ConfigError(f"{place}: {name} is not a key; quote several values: {_spell_values(before, values)}")


def _is_key(name: str, config: DictConfig) -> bool:
    return name.startswith(("+", "~", "hydra.")) or re.split(r"[.@]", name)[0] in config


def _spell_values(key: str, values: Sequence[Any]) -> str:
    return f'{key}: "{",".join(map(_spell, values))}"'


def _spell(value: Any) -> str:
    return value if isinstance(value, str) else override_values.format_override(value)
