"""Recipes of environments: the steps of building one, the program that runs them, and the resulting environment."""

from __future__ import annotations

import hashlib
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.system import helper_program
from pipeline.base.system.errors import CommandError, ConfigError
from pipeline.prepare.env.lock import Lock

BUILD_LIMIT_S = 3600.0
FORMAT = 1  # of what the cache keeps beside an environment
_SHOWN_LINES = 40


class Recipe(ABC):
    """The steps of building an environment.

    Attributes:
        kind: as in `env=venv`.
        title: what users call it.
        tool: what builds it.
        key: digest of everything that decides what is built.
    """

    kind: str
    title: str
    tool: str
    key: str

    @abstractmethod
    def check_tools(self) -> None:
        """Raise `ConfigError` if a program that builds it is not there."""

    @abstractmethod
    def build(self, prefix: Path, builder: Builder) -> Lock:
        """Build it in its final place, a folder that does not exist yet; returns what is installed.

        Raises:
            ConfigError: a solve or an installation failed, or made what cannot run jobs or be recorded.
        """

    @abstractmethod
    def activation(self, prefix: Path) -> tuple[tuple[str, str], ...]:
        """Variables that a job in it needs: those of an activated environment, without the orchestrator's packages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """Runs the steps of a build, each of which holds the lock: a step may outlive an orchestrator that is killed.

    `scratch` is a folder for files that the build needs.
    """

    title: str
    scratch: Path
    lock: int

    def step(
        self, argv: Sequence[str], *, tool: str, environ: Mapping[str, str] | None = None, stdin: str | None = None
    ) -> None:
        """Run one program to its end, with these further variables.

        If it fails, a ConfigError gives the words of the program, which users call `tool`.
        """
        variables = None if environ is None else {**os.environ, **environ}
        try:
            helper_program.run(argv, timeout_s=BUILD_LIMIT_S, environ=variables, stdin=stdin, keep_open=[self.lock])
        except CommandError as error:
            lines = [line.rstrip() for line in error.stderr.splitlines() if line.strip()][-_SHOWN_LINES:]
            words = "\n    ".join(lines or [f"no message (status {error.status})"])
            raise ConfigError(f"{self.title} cannot be built; {tool} printed:\n    {words}") from error


def find_interpreter(prefix: Path) -> Path:
    """Return the interpreter of an environment."""
    return prefix / "bin" / "python"


def digest_facts(*facts: object) -> str:
    """Return the digest of what decides an environment."""
    return hashlib.sha256(json.dumps([FORMAT, *facts]).encode()).hexdigest()


def make_path_variables(prefix: Path) -> dict[str, str]:
    """Return variables that put an environment's programs first, and keep all other packages out of it.

    An empty value counts as none for Python.
    """
    return {
        "PATH": os.pathsep.join(filter(None, (str(prefix / "bin"), os.environ.get("PATH")))),
        "PYTHONPATH": "",
        "PYTHONHOME": "",
        "PYTHONNOUSERSITE": "1",
        "VIRTUAL_ENV": "",
    }
