"""Virtual environments, built by uv from a file of requirements or from its lock."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from pipeline import env_cache, env_lock, env_requirements, env_uv
from pipeline.env_cache import Builder
from pipeline.env_lock import Lock
from pipeline.env_probe import probe_new
from pipeline.errors import ConfigError

_SUFFIXES = (".txt", ".in", ".toml", ".lock")


class VenvRecipe:
    """How a virtual environment is built (a `pipeline.env_cache.Recipe`).

    Args:
        file: requirements.txt, pyproject.toml, uv.lock, pylock.toml or a lock of ours.
        python: version or path of the interpreter.

    Raises:
        ConfigError: the file is of another kind or cannot be read.
    """

    kind, tool = "venv", "uv"

    def __init__(self, file: Path, python: str | None) -> None:
        if file.suffix not in _SUFFIXES:
            raise ConfigError(
                f"env.file={file}: env=venv takes requirements.txt, pyproject.toml, uv.lock, pylock.toml or a lock "
                "that the project recorded; an environment.yml is for env=conda"
            )
        self._file = file
        self._requirements = env_requirements.read(file)
        if self._is_uv_lock:
            self._requirements = env_requirements.Requirements(
                content=(*self._requirements.content, *env_requirements.read(file.with_name("pyproject.toml")).content)
            )
        named = python or self._requirements.python
        # Its own version for a venv of the orchestrator's interpreter: an upgrade of it makes another environment.
        self._python = sys.executable if named in (None, platform.python_version()) else named
        version = platform.python_version() if self._python == sys.executable else named
        self.key = env_cache.key_of(
            self.kind, self._requirements.content, self._requirements.options, version, env_lock.platform_name()
        )
        self.title = f"the virtual environment of {file}"

    @property
    def _is_uv_lock(self) -> bool:
        return self._file.name == "uv.lock"

    def check_tools(self) -> None:
        """Raise `ConfigError` if uv is not there."""
        env_uv.program()

    def build(self, prefix: Path, builder: Builder) -> Lock:
        """Make the environment and install into it; returns what is installed.

        Raises:
            ConfigError: uv failed, or made what cannot run jobs.
        """
        folder = self._file.parent
        assert self._python is not None
        env_uv.run(builder, ["venv", "--no-project", "--python", self._python, str(prefix)], folder)
        python = env_cache.python_of(prefix)
        requirements = self._file
        if self._is_uv_lock:
            requirements = builder.scratch / "requirements.txt"
            export = ["export", "--frozen", "--no-emit-project", "--output-file", str(requirements)]
            env_uv.run(builder, export, folder)
        env_uv.install(builder, python, requirements, folder)
        installed = probe_new(python, prefix, self.title)
        packages = env_lock.pinned(installed.packages)
        return env_lock.of_packages(self.kind, installed.python, packages, self._requirements.options)

    def activation(self, prefix: Path) -> tuple[tuple[str, str], ...]:
        """Variables as `bin/activate` would set them, and isolation from the orchestrator's packages."""
        path = os.pathsep.join(filter(None, (str(prefix / "bin"), os.environ.get("PATH"))))
        return tuple((env_cache.isolated() | {"VIRTUAL_ENV": str(prefix), "PATH": path}).items())
