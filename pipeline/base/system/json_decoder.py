"""Dataclasses from JSON: each value is checked against the type of its field; errors contain the value's path.

Only the standard library is imported, because the programs of a simulated machine start without other packages.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, Literal, TypeVar, get_args, get_origin

from pipeline.base.system import factory

T = TypeVar("T")
_Decoder = Callable[[Any], Any]
_MOST_SHOWN = 40
_NAMES = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}


class JsonValueError(ValueError):
    """A value that does not have its field's type.

    Attributes:
        path: path of the value, such as `gpus[0].start`; empty for the whole document.
        problem: description of the problem, which begins with a space or a colon.
    """

    def __init__(self, problem: str, path: str = "") -> None:
        super().__init__(f"{path}{problem}".lstrip(": "))
        self.path, self.problem = path, problem

    def below(self, key: str | int) -> JsonValueError:
        """Return the error with this key in front of its path."""
        step = f"[{key}]" if isinstance(key, int) else key
        return JsonValueError(self.problem, f"{step}{'.' if self.path[:1] not in ('', '[') else ''}{self.path}")


def decode(kind: type[T], raw: object, *, are_figures_checked: bool = False) -> T:
    """Convert parsed JSON or YAML to a type: dataclasses, lists, maps, choices, texts and numbers.

    Args:
        kind: the type. Dataclass fields with a default may be missing; unknown keys are refused.
        raw: the result of `json.loads`.
        are_figures_checked: also refuse empty texts, and figures that are negative or not finite.

    Raises:
        JsonValueError: a key is missing or unknown, or a value has a wrong type.
    """
    try:
        value: T = _decoder(typing.cast(Any, kind), are_figures_checked)(raw)
    except RecursionError as error:
        raise JsonValueError(" is nested too deeply") from error
    return value


def encode(value: Any) -> Any:
    """Convert a value for `json.dumps`, with dataclasses as objects and tuples as lists."""
    if dataclasses.is_dataclass(value):
        return {field.name: encode(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {key: encode(inner) for key, inner in value.items()}
    return [encode(inner) for inner in value] if isinstance(value, list | tuple) else value


@functools.cache
def _decoder(kind: Any, are_figures_checked: bool) -> _Decoder:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return functools.partial(_choice, arguments)
    if isinstance(kind, type) and issubclass(kind, enum.StrEnum):
        return lambda raw: kind(_choice(tuple(kind), raw))
    if dataclasses.is_dataclass(kind):
        return functools.partial(_record, kind, are_figures_checked)
    if kind is Any or kind is object:
        return factory.freeze if kind is object else lambda raw: raw
    inners = [_decoder(argument, are_figures_checked) for argument in arguments if argument is not ...]
    if origin in (types.UnionType, typing.Union):  # the latter for a Literal
        return functools.partial(_optional, inners[0])
    if origin in (tuple, list):
        is_of_each = origin is tuple and len(arguments) == len(inners)
        return functools.partial(_list, origin, inners if is_of_each else None, inners[0])
    if origin in (dict, Mapping):
        return functools.partial(_map, inners[1])
    return functools.partial(_plain, kind, are_figures_checked)


def _optional(inner: _Decoder, raw: Any) -> Any:
    return None if raw is None else inner(raw)


def _choice(choices: tuple[Any, ...], raw: Any) -> Any:
    if raw not in choices:
        raise JsonValueError(f" must be one of {', '.join(choices)}, not {_abbreviate(raw)}")
    return raw


def _list(shape: type, of_each: Sequence[_Decoder] | None, of_all: _Decoder, raw: Any) -> Any:
    if not isinstance(raw, list):
        raise JsonValueError(f" must be a list, not {_abbreviate(raw)}")
    if of_each is not None and len(raw) != len(of_each):
        raise JsonValueError(f" must be a list of length {len(of_each)}, not {_abbreviate(raw)}")
    values: list[Any] = []
    try:
        for inner, value in zip(of_each or repeat(of_all), raw, strict=False):
            values.append(inner(value))
    except JsonValueError as error:
        raise error.below(len(values)) from error
    return shape(values)


def _map(inner: _Decoder, raw: Any) -> Any:
    return dict(_entries(_check_keys(raw), repeat(inner)))


def _record(kind: Any, are_figures_checked: bool, raw: Any) -> Any:
    decoders, required = _fields(kind, are_figures_checked)
    keyed = _check_keys(raw)
    if unknown := [key for key in keyed if key not in decoders]:
        raise JsonValueError(f": unknown key {unknown[0]!r}; known keys are {', '.join(decoders)}")
    if missing := sorted(required - keyed.keys()):
        raise JsonValueError(f": key {missing[0]!r} is missing")
    return kind(**dict(_entries(keyed, [decoders[key] for key in keyed])))


@functools.cache
def _fields(kind: Any, are_figures_checked: bool) -> tuple[dict[str, _Decoder], frozenset[str]]:
    fields, missing = dataclasses.fields(kind), dataclasses.MISSING
    required = (field.name for field in fields if field.default is missing and field.default_factory is missing)
    hints = typing.get_type_hints(kind)
    return {field.name: _decoder(hints[field.name], are_figures_checked) for field in fields}, frozenset(required)


def _check_keys(raw: Any) -> dict[str, Any]:
    if not isinstance(raw, dict):
        raise JsonValueError(f" must be an object, not {_abbreviate(raw)}")
    if invalid_keys := [key for key in raw if not isinstance(key, str)]:
        raise JsonValueError(f": the key {invalid_keys[0]!r} must be a text")
    return raw


def _entries(raw: dict[str, Any], decoders: Iterable[_Decoder]) -> Iterator[tuple[str, Any]]:
    for (key, value), decoder in zip(raw.items(), decoders, strict=False):
        try:
            yield key, decoder(value)
        except JsonValueError as error:
            raise error.below(key) from error


def _plain(kind: Any, are_figures_checked: bool, raw: Any) -> Any:
    is_right = type(raw) is kind or (kind is float and type(raw) is int)
    if not is_right or (are_figures_checked and raw == "" and kind is str):
        raise JsonValueError(f" must be {_NAMES[kind]}, not {_abbreviate(raw)}")
    if are_figures_checked and kind in (int, float) and not 0 <= raw <= sys.float_info.max:  # also refuses NaN
        raise JsonValueError(f" must be finite and not negative, not {_abbreviate(raw)}")
    try:
        return float(raw) if kind is float else raw
    except OverflowError as error:
        raise JsonValueError(f" is too large: {_abbreviate(raw)}") from error


def _abbreviate(raw: object) -> str:
    try:
        text = json.dumps(raw)
    except (TypeError, ValueError, RecursionError):  # a date, a number of thousands of digits, a cycle
        text = f"a value of type {type(raw).__name__}"
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
