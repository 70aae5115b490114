"""What the simulated programs have in common: whose machine they show, how they refuse, a reader that is gone."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.base.system.errors import ConfigError
from pipeline.simulation.machine.state import StateFile


class RefusedError(Exception):
    """The program ends with a message and an exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def run(
    body: Callable[[StateFile, Sequence[str]], None], arguments: Sequence[str], *, without_machine: int, is_apart: bool
) -> int:
    """Run a program and return its exit status.

    Args:
        body: the program; gets the machine and its own arguments.
        arguments: `--state-file FILE`, then those of the real program.
        without_machine: exit status where the file holds no machine.
        is_apart: whether a refusal goes to stderr, not to stdout.
    """
    _, state_file, *own = arguments
    try:
        body(StateFile(Path(state_file)), own)
    except ConfigError as error:
        say(str(error))
        return without_machine
    except RefusedError as refusal:
        (sys.stderr if is_apart else sys.stdout).write(f"{refusal}\n")
        return refusal.status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # Nobody reads any more; Python must not try again when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def say(line: str) -> None:
    """Print a line at once: whoever reads a loop waits for its lines."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
