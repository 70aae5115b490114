"""Values of options: defaults, permitted values and supported types."""

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

TYPES = "int, float, bool, str, an Enum, each of these | None, list of int, float or str, and dict[str, Any]"


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
            known = ", ".join(f"{choice:g}" if isinstance(choice, float) else str(choice) for choice in choices)
            return f"{option.name}={value} must be one of {known}"
    return None
