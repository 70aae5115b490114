"""Paths: the project's own folder, and files that a user names."""

from __future__ import annotations

from pathlib import Path

from pipeline.base.errors import ConfigError

PROJECT_DIR = Path(__file__).resolve().parents[2]


def expanded(key: str, given: str) -> Path:
    """The path that a key of the configuration gives, with `~` replaced; ConfigError if there is no such user."""
    try:
        return Path(given).expanduser()
    except RuntimeError as error:
        home = given.partition("/")[0]
        raise ConfigError(f"{key}={given}: unknown user {home}; give an absolute path") from error


def find_file(key: str, given: str) -> Path:
    """A file that a key gives, from the working directory or the project's own folder; ConfigError if in neither."""
    folders = dict.fromkeys((Path.cwd(), PROJECT_DIR))
    for folder in folders:
        path = (folder / expanded(key, given)).resolve()
        if path.is_file():
            return path
    raise ConfigError(f"{key}={given}: there is no such file in {' or '.join(map(str, folders))}")
