"""The program uv, which creates virtual environments and installs Python packages into any environment."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from pipeline.base.system.errors import ConfigError
from pipeline.prepare.env import certificates
from pipeline.prepare.env.builder import Builder

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
        builder.step(argv, tool="uv", environ=certificates.choose_variables())
    except ConfigError as error:
        if remedy := next((remedy for text, remedy in _REMEDIES.items() if text in str(error)), None):
            raise ConfigError(f"{error}\n    {remedy}") from error
        raise


def install(builder: Builder, python: Path, requirements: Path, folder: Path) -> None:
    """Install the packages of a requirements file, whose relative paths start at `folder`."""
    run(builder, ["pip", "install", "--python", str(python), "--requirement", str(requirements)], folder)
