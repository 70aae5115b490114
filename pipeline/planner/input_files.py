"""Reading and writing the files of the planner; errors name file, row and key."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from pipeline.base.system import json_decoder, regular_files
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.json_decoder import JsonValueError

T = TypeVar("T")

# The loader in C is ten times as fast as the loader in Python: it reads a thousand services in 0.05 s.
_FASTEST: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# The loader raises these for malformed numbers, dates and booleans, and for deep nesting.
_UNREADABLE = (ValueError, KeyError, AttributeError, RecursionError)
_REMEDY = "correct it there"


class _Loader(_FASTEST):  # type: ignore[misc]
    """A loader that refuses duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        written: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in written:
                    raise yaml.constructor.ConstructorError(
                        problem=f"key {key.value} is listed twice", problem_mark=key.start_mark
                    )
                written.add((key.tag, key.value))
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


def read(path: Path) -> str:
    """Read the text of a file; ConfigError if it is not a readable regular file in UTF-8."""
    try:
        return regular_files.read_bytes(path.resolve()).decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; name a readable file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 text; save the file as UTF-8") from error


def read_mapping(path: Path, key: str) -> dict[str, Any]:
    """Read a mapping from YAML; ConfigError names file and row."""
    text = read(path)
    try:
        raw = yaml.load(text, _Loader)  # noqa: S506  # a safe loader
    except _UNREADABLE as error:
        raise ConfigError(f"{path}: not valid YAML: {error}; {_REMEDY}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        row = f" row {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or "the text cannot be parsed"
        raise ConfigError(f"{path}{row}: not valid YAML: {problem}; {_REMEDY}") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: not a mapping; write a list under the key {key}")
    return raw


def check_folder(path: Path) -> None:
    """Raise ConfigError if the folder of a file does not exist."""
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: folder {path.parent} does not exist; create it")


def write(path: Path, text: str) -> None:
    """Write a file atomically; ConfigError if it cannot be written."""
    draft = path.with_name(f"{path.name}.new")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}; name a writable file") from error


def read_json(path: Path) -> dict[str, Any]:
    """Read the JSON object in a file; ConfigError if the file has no JSON object."""
    text = read(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid JSON: {error}; name a file that the planner wrote") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: not a JSON object; name a file that the planner wrote")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON object; ConfigError if the file cannot be written."""
    write(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def decode(kind: type[T], raw: object, origin: str) -> T:
    """Decode an object from parsed JSON or YAML; `origin` names file and key in errors, such as `plan.json: gpus[0]`.

    Raises:
        ConfigError: a key is missing or unknown, a type is wrong, or a figure is negative or not finite.
    """
    try:
        return json_decoder.decode(kind, raw, are_figures_checked=True)
    except JsonValueError as error:
        separator = "" if not error.path or error.path[0] == "[" else "." if ": " in origin else ": "
        remedy = "add it" if error.problem.endswith("is missing") else _REMEDY
        problem = error.problem if ";" in error.problem else f"{error.problem}; {remedy}"
        raise ConfigError(f"{origin}{separator}{error.path}{problem}") from error
