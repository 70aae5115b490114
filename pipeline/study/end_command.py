"""The command of `on_end`, which informs the user that a study has ended."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

from pipeline.base.system import helper_program, words
from pipeline.base.system.errors import CommandError, ConfigError

SUMMARY, SUMMARY_VARIABLE = "SUMMARY", "COLLOCATION_SUMMARY"
"""The word of the command that the summary replaces, and the environment variable that has the summary."""
_LIMIT_S = 10.0


def refuse_unknown(command: Sequence[str]) -> None:
    """Raise `ConfigError` if the program of the command does not exist."""
    if not command or shutil.which(command[0]) is None:
        name = repr(command[0]) if command else "none"
        raise ConfigError(f"on_end: program {name} was not found; write, for example, on_end=[notify-send,{SUMMARY}]")


def run_end_command(command: Sequence[str], summary: str) -> None:
    """Run the command without a shell, for at most ten seconds; a failure is only noted."""
    called = [summary if word == SUMMARY else word for word in command]
    environ = {**os.environ, SUMMARY_VARIABLE: summary}
    try:
        helper_program.run(called, environ=environ, timeout_s=_LIMIT_S)
    except CommandError as error:
        short = CommandError(called[:1], error.status, " ".join(error.stderr.split()))  # omits the arguments
        words.say(f"note: on_end: {short}")
