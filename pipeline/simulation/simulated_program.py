"""Shared code of the simulated programs: it opens the machine, prints refusals, and handles a closed output."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pipeline.base.system.errors import ConfigError
from pipeline.simulation.machine.state_file import StateFile


class RefusedError(Exception):
    """A refusal: the program exits with this message and exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def run(
    body: Callable[[StateFile, Sequence[str]], None], arguments: Sequence[str], *, without_machine: int, is_apart: bool
) -> int:
    """Run a program with `--state-file FILE` and the program's arguments; return its exit status.

    `without_machine` is the status if the file has no machine. With `is_apart`, refusals are printed to stderr.
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
        # The reader has closed the stream; Python must not write again when it closes the stream at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def say(*lines: str) -> None:
    """Print lines without buffering, because the reader of a repeated print waits for them."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
