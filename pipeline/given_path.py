"""Paths that a user gave."""

from __future__ import annotations

from pathlib import Path

from pipeline.errors import ConfigError


def expanded(key: str, given: str) -> Path:
    """The path with `~` replaced.

    Args:
        key: that names it, for the error.
        given: its value.

    Raises:
        ConfigError: it begins with the home folder of a user whom the system does not know.
    """
    try:
        return Path(given).expanduser()
    except RuntimeError as error:
        home = given.partition("/")[0]
        raise ConfigError(f"{key}={given}: no user has the home folder {home}; write the whole path") from error
