"""JSON objects as records and back: every value is checked against the type of its field, and an error names its key.

Fields are texts, truths, counts, finite figures of at least 0, or records again; a figure that is missing is `null`.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pipeline.base.errors import ConfigError
from pipeline.planner import files

Record = TypeVar("Record")


def load(path: Path) -> dict[str, Any]:
    """The JSON object that a file holds; ConfigError if there is none."""
    text = files.read(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: holds no JSON object")
    return content


def save(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object; ConfigError if the file cannot be written."""
    files.write(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def record(kind: type[Record], raw: object, where: str) -> Record:
    """An object as a record of this kind, and what is in it likewise.

    Args:
        kind: a dataclass. Fields with a default may be absent.
        raw: as `json.loads` gives it.
        where: file and key, for errors: `plan.json: gpus[0]`.

    Raises:
        ConfigError: a key is missing or unknown, or a value is not of its field's type.
    """
    if not isinstance(raw, dict):
        raise ConfigError(f"{where} must be an object, not {_shown(raw)}")
    hints = typing.get_type_hints(kind)
    if unknown := [key for key in raw if key not in hints]:
        raise ConfigError(f"{where}: unknown key {unknown[0]!r}; known are {', '.join(hints)}")
    needed = {
        field.name
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    if missing := sorted(needed - raw.keys()):
        raise ConfigError(f"{where}: key {missing[0]!r} is missing")
    separator = "." if ": " in where else ": "
    return kind(**{key: value(hints[key], each, f"{where}{separator}{key}") for key, each in raw.items()})


def value(hint: Any, raw: object, where: str) -> Any:
    """A value as the type of its field has it; ConfigError if it is none."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):  # the latter of a Literal
        return None if raw is None else value(inner[0], raw, where)
    if origin is typing.Literal:
        if raw not in inner:
            raise ConfigError(f"{where} must be one of {', '.join(inner)}, not {_shown(raw)}")
        return raw
    if origin is tuple:
        if not isinstance(raw, list):
            raise ConfigError(f"{where} must be a list, not {_shown(raw)}")
        return tuple(value(inner[0], each, f"{where}[{number}]") for number, each in enumerate(raw))
    if origin is Mapping:
        if not isinstance(raw, dict):
            raise ConfigError(f"{where} must be an object, not {_shown(raw)}")
        if wrong := [key for key in raw if not isinstance(key, str)]:
            raise ConfigError(f"{where}: the key {wrong[0]!r} must be a text")
        return {key: value(inner[1], each, f"{where}.{key}") for key, each in raw.items()}
    return (
        record(hint, raw, where)
        if isinstance(hint, type) and dataclasses.is_dataclass(hint)
        else _plain(hint, raw, where)
    )


def _plain(hint: Any, raw: object, where: str) -> Any:
    if hint is Any:
        return raw
    if hint is str:
        if not isinstance(raw, str) or not raw:
            raise ConfigError(f"{where} must be a text, not {_shown(raw)}")
        return raw
    if hint is bool:
        if not isinstance(raw, bool):
            raise ConfigError(f"{where} must be true or false, not {_shown(raw)}")
        return raw
    is_count = hint is int
    if isinstance(raw, bool) or not isinstance(raw, int if is_count else int | float):
        raise ConfigError(f"{where} must be {'a whole number' if is_count else 'a number'}, not {_shown(raw)}")
    assert isinstance(raw, int | float)
    if not 0 <= raw <= sys.float_info.max:  # of infinities and NaN neither holds
        raise ConfigError(f"{where} must be finite and not negative, not {_shown(raw)}")
    return raw if is_count else float(raw)


def plain(something: Any) -> Any:
    """A record, and what is in it, as `json.dumps` takes it."""
    if dataclasses.is_dataclass(something):
        return {field.name: plain(getattr(something, field.name)) for field in dataclasses.fields(something)}
    if isinstance(something, Mapping):
        return {key: plain(each) for key, each in something.items()}
    if isinstance(something, Sequence) and not isinstance(something, str):
        return [plain(each) for each in something]
    return something


def _shown(raw: object) -> str:
    try:
        text = json.dumps(raw)
    except (TypeError, ValueError, RecursionError):  # a date, a number of thousands of digits, what holds itself
        text = f"a value of type {type(raw).__name__}"
    return text if len(text) <= 40 else f"{text[:40]}..."
