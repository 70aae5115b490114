"""Virtual environments that uv builds from a requirements file, a pyproject.toml or a lock."""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.system.errors import ConfigError
from pipeline.base.system.option_fields import option
from pipeline.base.system.paths import expand_path
from pipeline.prepare.env import lock, uv
from pipeline.prepare.env import requirements as env_requirements
from pipeline.prepare.env.builder import Builder, digest_facts, find_interpreter, make_path_variables
from pipeline.prepare.env.built_env import BuiltEnv
from pipeline.prepare.env.lock import Lock
from pipeline.prepare.env.probe import probe_new

_SUFFIXES = (".txt", ".in", ".toml", ".lock")


@dataclass
class VenvEnv(BuiltEnv):
    """Virtual environment that uv builds from a file.

    Without `python`, the version of Python is taken from the lock, else from the orchestrator.
    """

    kind, default = "venv", "requirements.txt"
    python: str | None = option(
        "version (`3.12`) or path of the interpreter; `null`: as in the lock, or the orchestrator's version", None
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.builder, python = "uv", self.python
        if self.path.suffix not in _SUFFIXES:
            raise ConfigError(
                f"env.file={self.path} is not a file for env=venv; set it to a requirements.txt, pyproject.toml, "
                "uv.lock, pylock.toml or recorded lock, or use env=conda with an environment.yml"
            )
        self.title = f"the virtual environment of {self.path}"
        read = env_requirements.read(self.path)
        self._options, content = read.options, read.content
        self._is_uv_lock = self.path.name == "uv.lock"
        if self._is_uv_lock:
            content += env_requirements.read(self.path.with_name("pyproject.toml")).content
        if python and "/" in python:
            python = str(expand_path("env.python", python).absolute())
        named, current = python or read.python or platform.python_version(), platform.python_version()
        # With the orchestrator's interpreter, the key has its full version: an upgrade leads to a new environment.
        self._python = sys.executable if named == current else named
        version = current if self._python == sys.executable else named
        self.requested = read.requested or (f"python=={version}", *read.packages)
        self.key = digest_facts(self.kind, content, self._options, version, lock.name_platform())

    def check_tools(self) -> None:
        uv.find_program()

    def build(self, prefix: Path, builder: Builder) -> Lock:
        folder, requirements = self.path.parent, self.path
        uv.run(builder, ["venv", "--no-project", "--python", self._python, str(prefix)], folder)
        if self._is_uv_lock:
            requirements = builder.scratch / "requirements.txt"
            export = ["export", "--frozen", "--no-emit-project", "--output-file", str(requirements)]
            uv.run(builder, export, folder)
        uv.install(builder, find_interpreter(prefix), requirements, folder)
        installed = probe_new(prefix, self.title)
        packages = [lock.pin(package) for package in installed.packages]
        return lock.lock_packages(self.kind, installed.python, packages, self._options)

    def activation(self, prefix: Path) -> tuple[tuple[str, str], ...]:
        return tuple((make_path_variables(prefix) | {"VIRTUAL_ENV": str(prefix)}).items())
