"""Paths: the project's own folder, and files that a user names."""

from __future__ import annotations

import os
from pathlib import Path

from pipeline.base.errors import ConfigError

PROJECT_DIR = Path(__file__).resolve().parents[2]
MAX_NAME_BYTES = 255  # Source: NAME_MAX and PATH_MAX of linux/limits.h
_MAX_PATH_BYTES = 4095


def expanded(key: str, given: str) -> Path:
    """The path that a key of the configuration gives, with `~` replaced.

    Raises:
        ConfigError: there is no such user, or no file can have such a name.
    """
    try:
        path = Path(given).expanduser()
    except RuntimeError as error:
        home = given.partition("/")[0]
        raise ConfigError(f"{key}={given}: unknown user {home}; give an absolute path") from error
    if len(os.fsencode(path)) > _MAX_PATH_BYTES or any(len(os.fsencode(name)) > MAX_NAME_BYTES for name in path.parts):
        raise ConfigError(f"{key}={given}: no path is that long; give a shorter one")
    return path


def is_file(path: Path) -> bool:
    """Whether there is a regular file; nothing has a name that is too long, of which `Path.is_file` may raise."""
    try:
        return path.is_file()
    except OSError:
        return False


def find_file(key: str, given: str) -> Path:
    """A file that a key gives, from the working directory or the project's own folder; ConfigError if in neither."""
    folders = dict.fromkeys((Path.cwd(), PROJECT_DIR))
    for folder in folders:
        path = (folder / expanded(key, given)).resolve()
        if is_file(path):
            return path
    raise ConfigError(f"{key}={given}: there is no such file in {' or '.join(map(str, folders))}")
