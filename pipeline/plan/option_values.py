"""Options of workloads: supported types, defaults, permitted values, and mistakes in the declaration of an option."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import math
import types
import typing
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, cast

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

TYPES = "int, float, bool, str, an Enum, each of these | None, list of int, float or str, and dict[str, Any]"
_TEXTS = ("help", "path", "braces")
_PATHS = ("", "place", "content")  # as in workloads/options.py


def is_supported(hint: Any) -> bool:
    """Return whether a program can read options of this type from its command line."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds = [kind for kind in typing.get_args(hint) if kind is not types.NoneType] if is_union else [hint]
    kind, origin = kinds[0], typing.get_origin(kinds[0])
    if len(kinds) > 1 or origin is list:
        return len(kinds) == 1 and typing.get_args(kind)[0] in (int, float, str)
    is_plain = isinstance(kind, type) and issubclass(kind, int | float | bool | str | Path | enum.Enum)
    return origin is dict or is_plain


def refuse_types(hints: Mapping[str, Any]) -> None:
    """Raise `TypeError` if an option has a type that a program cannot read."""
    for name, hint in hints.items():
        if not is_supported(hint):
            raise TypeError(f"{name} has the unsupported type {inspect.formatannotation(hint)}; use {TYPES}")


def read_default(option: dataclasses.Field[Any]) -> Any:
    """Return the default of a field; `dataclasses.MISSING` without a default."""
    return option.default if option.default_factory is dataclasses.MISSING else option.default_factory()


def convert(kind: type[Any], key: str, value: object) -> Any:
    """Convert a value to the type of an option, such as a name to its `Enum` member.

    Raises:
        OmegaConfBaseException: the value cannot be converted.
    """
    node = _make_node(kind)  # type: ignore[arg-type]  # classes are hashable
    OmegaConf.update(node, key, value, merge=False)
    return OmegaConf.to_object(node[key]) if OmegaConf.is_config(node[key]) else node[key]


@functools.cache
def _make_node(kind: Hashable) -> DictConfig:
    """Return a node of a class; nodes are reused, because making a node takes 13 ms."""
    return cast(DictConfig, OmegaConf.structured(kind))


def explain_wrong(option: dataclasses.Field[Any], setting: Any) -> str | None:
    """Explain why an option refuses a value or an element of a list; `None` if it accepts the value."""
    least, choices = option.metadata.get("least"), option.metadata.get("choices")
    for value in setting if isinstance(setting, list) else [setting]:
        if value is None or value == MISSING:
            continue
        if least is not None and value < least:
            return f"{option.name}={value} must {'not be negative' if least == 0 else f'be at least {least}'}"
        if least is not None and not math.isfinite(value):
            return f"{option.name}={value} must be finite"
        if choices and value not in choices:
            listing = ", ".join(f"{choice:g}" if isinstance(choice, float) else str(choice) for choice in choices)
            return f"{option.name}={value} must be one of {listing}"
    return None


def explain_wrong_arguments(option: dataclasses.Field[Any], hint: Any) -> str | None:
    """Explain which argument of an option is wrong; `None` if none is, or if `option` did not declare the field."""
    arguments = option.metadata
    if "least" not in arguments:
        return None
    for name in _TEXTS:
        if not isinstance(arguments[name], str):
            return f"{name}={arguments[name]!r} must be a text"
    if arguments["path"] not in _PATHS:
        return f"path={arguments['path']!r} must be PLACE or CONTENT of workloads.options"
    if not isinstance(arguments["is_flag"], bool):
        return f"is_flag={arguments['is_flag']!r} must be True or False"
    return _explain_wrong_limits(arguments["least"], arguments["choices"], hint)


def explain_wrong_default(option: dataclasses.Field[Any], hint: Any) -> str | None:
    """Explain why the default of an option is wrong; `None` if it is right or absent."""
    default = read_default(option)
    if default is dataclasses.MISSING or default == MISSING:
        return None
    single = dataclasses.make_dataclass("Single", [("value", hint, dataclasses.field(default_factory=lambda: default))])
    try:
        OmegaConf.structured(single)
    except OmegaConfBaseException:
        return f"the default {default!r} must be {_spell_type(hint)}"
    return None


def _explain_wrong_limits(least: Any, choices: Any, hint: Any) -> str | None:
    kind = _find_kind(hint)
    if least is not None and (isinstance(least, bool) or not isinstance(least, int | float)):
        return f"least={least!r} must be a number"
    if least is not None and kind not in (int, float):
        return f"least={least!r} limits numbers, but a value must be {_spell_type(hint)}"
    if not isinstance(choices, tuple | list):
        return f"choices={choices!r} must be a tuple, such as ('a', 'b')"
    accepted = (int, float) if kind is float else kind
    invalid_choices = [choice for choice in choices if kind is not None and not isinstance(choice, accepted)]
    return f"choices has {invalid_choices[0]!r}, which must be {_spell_type(kind)}" if invalid_choices else None


def _find_kind(hint: Any) -> Any:
    """Return the class of the values, or of the elements of a list; `None` for a map."""
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds = [kind for kind in typing.get_args(hint) if kind is not types.NoneType] if is_union else [hint]
    kind = typing.get_args(kinds[0])[0] if typing.get_origin(kinds[0]) is list else kinds[0]
    return kind if isinstance(kind, type) and typing.get_origin(kind) is None else None


def _spell_type(hint: Any) -> str:
    if isinstance(hint, enum.EnumType):
        return f"one of {', '.join(hint.__members__)}"
    words = {int: "an int", float: "a float", bool: "True or False", str: "a text", Path: "a path"}
    return words.get(hint) or f"of type {inspect.formatannotation(hint)}"
