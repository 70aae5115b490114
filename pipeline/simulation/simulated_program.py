"""The shared part of the simulated programs: their machine, refusals, and a closed output."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.base.system.errors import ConfigError
from pipeline.simulation.machine.state_file import StateFile


class RefusedError(Exception):
    """The program refuses to run and ends with a message and an exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def run(
    body: Callable[[StateFile, Sequence[str]], None], arguments: Sequence[str], *, without_machine: int, is_apart: bool
) -> int:
    """Run a program with `--state-file FILE` and its own arguments; return its exit status.

    `without_machine` is the status if the file has no machine; with `is_apart`, refusals go to stderr.
    """
    _, state_file, *program_arguments = arguments
    try:
        body(StateFile(Path(state_file)), program_arguments)
    except ConfigError as error:
        say(str(error))
        return without_machine
    except RefusedError as refusal:
        (sys.stderr if is_apart else sys.stdout).write(f"{refusal}\n")
        return refusal.status
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:
        # The reader is gone; Python must not write again when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def say(*lines: str) -> None:
    """Print lines without buffering, as the reader of a loop waits for them."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
