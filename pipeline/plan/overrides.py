"""Parsed overrides: expand a grid to combinations, and set values in a composed configuration."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence

from hydra.core.override_parser.types import Override
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from pipeline.base.system import user_command
from pipeline.base.system.errors import ConfigError

_CANNOT_DELETE = "Could not delete from config"
_INTEGER = re.compile(r"[+-]?\d+")


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
