"""The certificates that uv trusts: behind a TLS proxy, uv also needs the certificates of the system and of pip."""

from __future__ import annotations

import configparser
import os
import ssl
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# The second is the older name; uv 0.13 prints a warning if only the older name is set.
_OF_SYSTEM = ("UV_SYSTEM_CERTS", "UV_NATIVE_TLS")
_OF_ANY = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_SECTIONS = ("install", "global")  # the first wins
_NO_FILE = os.devnull


def choose_variables() -> dict[str, str]:
    """Return the variables that make uv trust the same certificates as pip.

    The result excludes variables that the user has set, and the system's store if it is empty. If pip is configured
    with a certificate file, pip trusts only this file, and so does uv.
    """
    chosen: dict[str, str] = {}
    if not any(name in os.environ for name in _OF_SYSTEM) and _has_system_store():
        chosen |= dict.fromkeys(_OF_SYSTEM, "true")
    if not any(name in os.environ for name in _OF_ANY) and (path := _find_path_of_pip()) is not None:
        chosen[_OF_ANY[path.is_dir()]] = str(path)
    return chosen


def _has_system_store() -> bool:
    paths = ssl.get_default_verify_paths()
    with suppress(OSError):
        return bool(paths.cafile) or (paths.capath is not None and any(Path(paths.capath).iterdir()))
    return False


def _find_path_of_pip() -> Path | None:
    setting = os.environ.get("PIP_CERT") or next(_read_files(), "")
    path = Path(setting).expanduser() if setting else None
    return path if path is not None and path.exists() else None


def _read_files() -> Iterator[str]:
    for path in _list_config_files():
        parser = configparser.RawConfigParser()
        with suppress(OSError, UnicodeDecodeError, configparser.Error):  # pip itself reports the error
            parser.read(path, encoding="utf-8")
            yield from (parser[section]["cert"] for section in _SECTIONS if parser.has_option(section, "cert"))


def _list_config_files() -> Iterator[Path]:
    """Yield the paths of pip's configuration files, highest precedence first. Source: `pip config debug`, pip 26."""
    config_file = os.environ.get("PIP_CONFIG_FILE")
    if config_file == _NO_FILE:
        return
    if config_file:
        yield Path(config_file)
    yield Path(sys.prefix, "pip.conf")
    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    yield from (config / "pip/pip.conf", Path.home() / ".pip/pip.conf", Path("/etc/pip.conf"))
    folders = os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg"
    yield from (Path(folder, "pip/pip.conf") for folder in reversed(folders.split(os.pathsep)) if folder)
