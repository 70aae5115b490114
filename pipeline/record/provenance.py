"""Where a row comes from: machine, software, source and command line, enough to run it again (METHOD 14)."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from pipeline.base import command, host
from pipeline.base.errors import CommandError
from pipeline.base.host import boot_id
from pipeline.base.paths import PROJECT_DIR
from pipeline.base.records import Interpreter, Spec
from pipeline.base.words import without_secrets

_GIT_LIMIT_S = 10.0


def collect(interpreters: Mapping[Spec, Interpreter]) -> dict[str, str]:
    """The facts that hold for a whole study, by name; what cannot be known is absent."""
    facts = {
        "command_line": without_secrets(shlex.join(sys.argv)),
        "user": host.user_name(),
        "working_folder": str(Path.cwd()),
        "host": platform.node(),
        "kernel": platform.release(),
        "cpus": str(len(os.sched_getaffinity(0))),
        "boot_id": boot_id(),
        "python": platform.python_version(),
        **_git(),
    }
    for number, interpreter in enumerate(interpreters.values()):
        facts[f"environment_{number}_digest"] = interpreter.lock_digest
        facts[f"environment_{number}_python"] = str(interpreter.python)
    return {key: value for key, value in facts.items() if value}


def _git() -> dict[str, str]:
    """Commit of the project's own source, and whether files differ from it."""
    git = ["git", "-C", str(PROJECT_DIR)]
    try:
        commit = command.run([*git, "rev-parse", "HEAD"], timeout_s=_GIT_LIMIT_S).stdout.strip()
        changed = command.run([*git, "status", "--porcelain", "--untracked-files=no"], timeout_s=_GIT_LIMIT_S).stdout
    except CommandError:
        return {}
    return {"git_commit": commit, "git_changed": "true" if changed.strip() else "false"}
