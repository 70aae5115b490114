"""What a requirements file brings with it: files that it includes, where packages come from, what Python it wants."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from pipeline import env_lock, env_toml
from pipeline.errors import ConfigError
from pipeline.given_path import expanded

_EDITABLE = ("-e", "--editable")
_INCLUDES = ("-r", "--requirement", "-c", "--constraint")
_SOURCES = ("-i", "--index-url", "--extra-index-url", "-f", "--find-links", "--no-index", "--pre", "--trusted-host")
_ARCHIVES = (".whl", ".zip", ".tar", ".tgz", ".tbz", ".txz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirements:
    """A requirements file, or what stands for one.

    Attributes:
        content: digests of what decides beside the lines themselves: files that are included, archives.
        options: lines that say where packages come from, with absolute paths.
        python: version that a lock names.
    """

    content: tuple[str, ...]
    options: tuple[str, ...] = ()
    python: str | None = None


def read(file: Path) -> Requirements:
    """Read a file of requirements and what it includes.

    Raises:
        ConfigError: it cannot be read, or asks for what cannot be built again.
    """
    data = _bytes(file)
    digest = hashlib.sha256(data).hexdigest()
    text = data.decode("utf-8", errors="replace")
    lines = env_toml.lines(file, text) if env_toml.is_one(file) else _lines(text)
    try:
        parsed = parse(lines, file.parent)
    except RecursionError as error:
        raise ConfigError(f"{file} includes itself") from error
    return Requirements(content=(digest, *parsed.content), options=parsed.options, python=env_lock.python_of(text))


def parse(lines: Iterable[str], folder: Path) -> Requirements:
    """What lines of a requirements file bring with them; their relative paths are from `folder`.

    Raises:
        ConfigError: a file that they include cannot be read, or a line asks for what cannot be built again.
    """
    content, options = list[str](), list[str]()
    for line in lines:
        word, place = _split(line)
        if word in _EDITABLE or (not word and _is_folder(_place(line), folder)):
            raise ConfigError(
                f"`{line}` in {folder}: what is installed from a folder can change and cannot be recorded; "
                "build a wheel and name that"
            )
        if word in _INCLUDES:
            included = read((folder / place).resolve())
            content += included.content
            options += included.options
        elif word in _SOURCES:
            options.append(with_absolute_place(line, folder))
        elif (archive := _archive(line, folder)) is not None:
            content.append(hashlib.sha256(_bytes(archive)).hexdigest())
    return Requirements(content=tuple(content), options=tuple(dict.fromkeys(options)))


def with_absolute_place(line: str, folder: Path) -> str:
    """The line with its path, if it has one, as an absolute one."""
    word, place = _split(line)
    if word in (*_INCLUDES, *_SOURCES):
        is_path = place and "://" not in place and word != "--trusted-host"
        return f"{word} {(folder / expanded(word, place)).resolve() if is_path else place}".strip()
    if line.startswith((".", "/")):
        return str((folder / line).resolve())
    return line


def _split(line: str) -> tuple[str, str]:
    """An option and its value; both may be one word."""
    if not line.startswith("-"):
        return "", line
    match = re.match(r"(--[a-z-]+|-[a-z])[\s=]*(.*)", line)
    return (match.group(1), match.group(2).strip()) if match else (line, "")


def _lines(text: str) -> Iterator[str]:
    for line in re.sub(r"\\\n", " ", text).splitlines():
        stripped = re.sub(r"(^|\s)#.*$", "", line).strip()
        if stripped:
            yield stripped


def _place(line: str) -> str:
    """What a line names: a package, or where one lies."""
    place = line.partition(" @ ")[2] or line
    return re.split(r"[;#\[]", place)[0].strip()


def _is_folder(place: str, folder: Path) -> bool:
    if place.startswith("file://"):
        return Path(unquote(place.removeprefix("file://"))).is_dir()
    return ("/" in place or place.startswith(".")) and "://" not in place and (folder / place).is_dir()


def _archive(line: str, folder: Path) -> Path | None:
    """The archive on this machine that a line names, if it does."""
    place = _place(line)
    if not place.endswith(_ARCHIVES) or ("://" in place and not place.startswith("file://")):
        return None
    if place.startswith("file://"):
        place = unquote(place.removeprefix("file://"))  # as the `+` of `1.0+cu121` in a lock
    return (folder / place).resolve()


def _bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(f"env.file: {file} cannot be read: {error.strerror}") from error
