"""The builder that runs the steps of building an environment, and facts about environments that all kinds share."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.system import helper_program
from pipeline.base.system.errors import CommandError, ConfigError

BUILD_LIMIT_S = 3600.0
FORMAT = 1  # version of the files that the cache stores next to an environment
_SHOWN_LINES = 40


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
