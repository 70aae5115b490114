"""What pyproject.toml, uv.lock and pylock.toml name on this machine, as the lines of a requirements file would."""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError
from pipeline.given_path import expanded

_OWN_FOLDER = "."


def is_one(file: Path) -> bool:
    """Whether a file is of these kinds, and not one of lines."""
    return file.suffix == ".toml" or file.name == "uv.lock"


def lines(file: Path, text: str) -> list[str]:
    """Requirements that are installed from a folder, a file or an address; in pyproject.toml the others as well.

    Args:
        file: its name tells the kind; relative paths are from its folder.
        text: what it holds.

    Raises:
        ConfigError: it is not such a file.
    """
    is_pylock = file.name.startswith("pylock")
    read = _of_uv_lock if file.name == "uv.lock" else _of_pylock if is_pylock else _of_project
    try:
        found = read(tomllib.loads(text))
        return [line if source is None else _line(line, source, file.parent) for line, source in found]
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"env.file: {file} cannot be read: it is no TOML: {error}") from error
    except (AttributeError, KeyError, TypeError) as error:
        raise ConfigError(f"env.file: {file} has not the form of such a file ({error!r})") from error


def _of_project(data: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """The dependencies of a project, and those sources that uv takes one of them from."""
    project, tool = _table(data, "project"), _table(data, "tool", "uv")
    written = [*_list(project, "dependencies"), *_list(tool, "override-dependencies")]
    dependencies = [line for line in written if isinstance(line, str)]
    yield from ((line, None) for line in dependencies)
    names = {_normalised(re.split(r"[^\w.-]", line.strip(), maxsplit=1)[0]) for line in dependencies}
    for name, sources in _table(tool, "sources").items():
        if _normalised(name) in names or "dependencies" in _list(project, "dynamic"):
            yield from ((name, source) for source in (sources if isinstance(sources, list) else [sources]))


def _of_uv_lock(data: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any] | None]]:
    """What the project needs: a lock of a workspace tells of its other members, too, which are not installed."""
    packages = defaultdict[str, list[dict[str, Any]]](list)
    seen, todo = set[str](), list[str]()
    for package in _list(data, "package"):
        packages[package["name"]].append(package)
        if _OWN_FOLDER in _table(package, "source").values():
            seen.add(package["name"])
            todo += _needed(package, "dependencies", "dev-dependencies")
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            for package in packages[name]:
                yield name, _table(package, "source")
                todo += _needed(package, "dependencies", "optional-dependencies")


def _needed(package: dict[str, Any], *keys: str) -> list[str]:
    """Names of packages; lists of them, or tables of such lists."""
    values = [package.get(key, []) for key in keys]
    groups = [group for value in values for group in (value.values() if isinstance(value, dict) else [value])]
    return [needed["name"] for group in groups for needed in group]


def _of_pylock(data: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any] | None]]:
    for package in _list(data, "packages"):
        yield from ((package["name"], package[key]) for key in ("directory", "archive") if key in package)


def _line(name: str, source: dict[str, Any], folder: Path) -> str:
    """The package as a requirements file would name it."""
    if source.get("workspace"):
        return f"-e {name}"
    place = source.get("path") or source.get("directory")
    if source.get("editable"):
        return f"-e {place or source['editable']}"
    if place:
        return f"{name} @ {(folder / expanded(name, place)).resolve().as_uri()}"
    return f"{name} @ {source['url']}" if "url" in source else name


def _table(data: dict[str, Any], *keys: str) -> dict[str, Any]:
    for key in keys:
        data = data.get(key, {})
    return data


def _list(data: dict[str, Any], key: str) -> list[Any]:
    found = data.get(key, [])
    return found if isinstance(found, list) else []


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
