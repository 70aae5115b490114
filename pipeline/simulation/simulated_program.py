"""Shared code of the simulated programs: opening the machine, refusals, a closed output, texts from templates."""

from __future__ import annotations

import os
import re
import signal
import string
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.base.system.errors import ConfigError
from pipeline.simulation.machine.codes import DriverError
from pipeline.simulation.machine.driver import Clients, Driver
from pipeline.simulation.machine.state_file import StateFile


class RefusedError(Exception):
    """A refusal: the program exits with this message and exit status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def run(
    body: Callable[[Driver, Sequence[str]], None],
    arguments: Sequence[str],
    refuse_driver: Callable[[DriverError], RefusedError],
    *,
    without_machine: int,
    is_apart: bool,
) -> int:
    """Run a program with `--state-file FILE` and the program's arguments, as a client of the driver.

    Args:
        body: the program.
        arguments: its arguments.
        refuse_driver: refusal of the program if it cannot become a client of the driver.
        without_machine: exit status if the file has no machine.
        is_apart: whether refusals are printed to stderr.

    Returns:
        The exit status.
    """
    _, state_file, *program_arguments = arguments
    try:
        with _open_driver(StateFile(Path(state_file)), refuse_driver) as driver:
            body(driver, program_arguments)
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


@contextmanager
def _open_driver(file: StateFile, refuse: Callable[[DriverError], RefusedError]) -> Iterator[Driver]:
    clients = Clients(file)
    try:
        clients.open_session()
    except DriverError as error:
        raise refuse(error) from error
    try:
        yield Driver(file)
    finally:
        clients.close_session()


def say(*lines: str) -> None:
    """Print lines without buffering, because the reader of a repeated print waits for them."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


class Templates:
    """The texts in a file: sections that begin with `[NAME]` and have lines with fields, as in `str.format`.

    As in the real programs, an unknown value (`None`) is printed as N/A.
    """

    def __init__(self, path: Path) -> None:
        text = path.read_text(encoding="utf-8")
        parts = re.split(r"^\[(.+)\]\n", text, flags=re.MULTILINE)[1:]
        self._sections = dict(zip(parts[::2], parts[1::2], strict=True))

    def fill(self, section: str, **fields: object) -> list[str]:
        """Return the lines of a section with these values."""
        return _Formatter().vformat(self._sections[section], (), fields).splitlines()


class _Formatter(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        return format("N/A" if value is None else value, format_spec)
