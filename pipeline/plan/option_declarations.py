"""Mistakes in the declaration of an option: the arguments of `workloads.options.option` and the default."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
import typing
from pathlib import Path
from typing import Any

from omegaconf import MISSING, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from pipeline.plan import option_values

_TEXTS = ("help", "path", "braces")
_PATHS = ("", "place", "content")  # as in workloads/options.py


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
    default = option_values.read_default(option)
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
    wrong = [choice for choice in choices if kind is not None and not isinstance(choice, accepted)]
    return f"choices has {wrong[0]!r}, which must be {_spell_type(kind)}" if wrong else None


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
