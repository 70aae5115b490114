"""Recipes of environments, and the builder that runs the steps of a recipe."""

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
FORMAT = 1  # version of the files that the cache stores next to an environment
_SHOWN_LINES = 40


class Recipe(ABC):
    """The steps of building an environment.

    Attributes:
        kind: name of the environment's kind, such as `venv` in `env=venv`.
        title: name of the environment in messages.
        tool: name of the program that builds the environment.
        key: digest of everything that determines the built environment.
    """

    kind: str
    title: str
    tool: str
    key: str

    @abstractmethod
    def check_tools(self) -> None:
        """Raise `ConfigError` if a program that the build needs is missing."""

    @abstractmethod
    def build(self, prefix: Path, builder: Builder) -> Lock:
        """Build the environment in its final folder, which does not exist yet; return the installed packages.

        Raises:
            ConfigError: solving or installing failed, or the environment cannot run jobs or cannot be recorded.
        """

    @abstractmethod
    def activation(self, prefix: Path) -> tuple[tuple[str, str], ...]:
        """Variables of the activated environment, for its jobs; they hide the orchestrator's own packages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """Runner of build steps. Each step inherits the lock, because a step may outlive an orchestrator that is killed.

    Attributes:
        title: name of the environment in messages.
        scratch: folder for temporary files of the build.
        lock: descriptor of the lock file.
    """

    title: str
    scratch: Path
    lock: int

    def step(
        self, argv: Sequence[str], *, tool: str, environ: Mapping[str, str] | None = None, stdin: str | None = None
    ) -> None:
        """Run one program until it exits, with `environ` added to the orchestrator's variables.

        If the program fails, raise a ConfigError with its last lines; `tool` is the program's name in this message.
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
    """Return the digest of the facts that determine an environment."""
    return hashlib.sha256(json.dumps([FORMAT, *facts]).encode()).hexdigest()


def make_path_variables(prefix: Path) -> dict[str, str]:
    """Return variables that put an environment's programs first on PATH and exclude packages from other places.

    Python treats an empty variable like an unset one.
    """
    return {
        "PATH": os.pathsep.join(filter(None, (str(prefix / "bin"), os.environ.get("PATH")))),
        "PYTHONPATH": "",
        "PYTHONHOME": "",
        "PYTHONNOUSERSITE": "1",
        "VIRTUAL_ENV": "",
    }
