"""The program uv, which creates virtual environments and installs Python packages into any environment."""

from __future__ import annotations

import configparser
import os
import shutil
import ssl
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from pipeline.base.system.errors import ConfigError
from pipeline.prepare.env.builder import Builder

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
    variables: dict[str, str] = {}
    if not any(name in os.environ for name in _OF_SYSTEM) and _has_system_store():
        variables |= dict.fromkeys(_OF_SYSTEM, "true")
    if not any(name in os.environ for name in _OF_ANY) and (path := _find_path_of_pip()) is not None:
        variables[_OF_ANY[path.is_dir()]] = str(path)
    return variables


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


_REMEDIES = {
    "invalid peer certificate": "set SSL_CERT_FILE to the issuer's certificate file",
    "--index-strategy": "to search all package indexes, as pip does: export UV_INDEX_STRATEGY=unsafe-best-match",
    "Failed to fetch": "uv does not read pip.conf; set UV_INDEX_URL to your package index, with its login if it needs "
    "one, HTTPS_PROXY to your proxy, and UV_INSECURE_HOST to a host without a valid certificate",
}
"""Remedies by texts of uv; the first that occurs counts."""


def find_program() -> str:
    """Find the absolute path of uv: the program that the extra `envs` installs, else the program on PATH."""
    try:
        from uv import find_uv_bin

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError):
        path = shutil.which("uv")
    if path is None:
        raise ConfigError("this environment needs uv; install it: pip install uv")
    return path


def run(builder: Builder, arguments: Sequence[str], folder: Path) -> None:
    """Run uv; relative paths start at `folder`."""
    argv = [find_program(), "--no-progress", "--color=never", "--directory", str(folder), *arguments]
    try:
        builder.step(argv, tool="uv", environ=choose_variables())
    except ConfigError as error:
        if remedy := next((remedy for text, remedy in _REMEDIES.items() if text in str(error)), None):
            raise ConfigError(f"{error}\n    {remedy}") from error
        raise


def install(builder: Builder, python: Path, requirements: Path, folder: Path) -> None:
    """Install the packages of a requirements file, whose relative paths start at `folder`."""
    run(builder, ["pip", "install", "--python", str(python), "--requirement", str(requirements)], folder)
