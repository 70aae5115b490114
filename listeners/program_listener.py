"""A listener whose source is a helper program that prints lines while it samples, and that ends with this process."""

from __future__ import annotations

import logging
import math
import os
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, TypeVar, cast

from listeners.base import StopSignal, ThreadedListener
from pipeline.base.system.errors import ListenerError

_log = logging.getLogger(__name__)
_END_LIMIT_S = 2.0
Row = TypeVar("Row")


class Program:
    """A running program in a separate session."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def lines(self, stop: StopSignal, silence_s: float) -> Iterator[tuple[int, str]]:
        """Yield the lines of stdout and stderr, with their arrival times in monotonic ns.

        Ends when the output ends, `stop` is set, or nothing was printed for `silence_s` seconds.
        """
        pipe = cast(IO[bytes], self._process.stdout)
        pending = b""
        with selectors.DefaultSelector() as selector:
            selector.register(stop, selectors.EVENT_READ)
            selector.register(pipe, selectors.EVENT_READ)
            while True:
                ready = [key.fileobj for key, _ in selector.select(silence_s)]
                if stop in ready or not ready:
                    return
                chunk = os.read(pipe.fileno(), 65536)
                t_ns = time.monotonic_ns()
                *lines, pending = (pending + chunk).split(b"\n") if chunk else (pending, b"")
                for line in lines:
                    yield t_ns, line.decode(errors="replace")
                if not chunk:
                    return

    def status(self) -> int | None:
        """Wait for the exit status, after the output has ended; return `None` if the program still runs."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(_END_LIMIT_S)
        return None

    def end(self) -> None:
        """End the program's process group with SIGTERM, then with SIGKILL."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.returncode is not None:
                return
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_LIMIT_S)


class TextTable:
    """The output of a program: rows, parsed by a subclass, and other lines, called complaints."""

    def __init__(self, listener: str) -> None:
        self.complaints: deque[str] = deque(maxlen=5)
        self._listener = listener
        self._warned: set[str] = set()

    @property
    def last_complaints(self) -> str:
        """The last lines that do not belong to the table."""
        return " ".join(self.complaints) or "nothing"

    def warn(self, column: str, message: str) -> None:
        if column not in self._warned:
            self._warned.add(column)
            _log.warning("listener %s: %s", self._listener, message)

    def number(self, column: str, cell: str) -> float | None:
        """Return the finite number in a cell; otherwise warn and return `None`."""
        with suppress(ValueError):
            if math.isfinite(value := float(cell)):
                return value
        self.warn(column, f"{cell!r} in column {column} is not a number and is left out")
        return None


class ProgramListener(ThreadedListener):
    """A listener whose source is one program that runs while it samples."""

    _running: tuple[int, ...] = ()

    def pids(self) -> tuple[int, ...]:
        """Return the PID of the running program, without services that it queries, such as DCGM's host engine."""
        return self._running

    @contextmanager
    def run_program(self, argv: Sequence[str]) -> Iterator[Program]:
        # One pipe for both streams keeps their lines in order. If this process is killed, the pipe has no reader, and
        # SIGPIPE ends the program at its next line.
        with subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
        ) as process:
            program = Program(process)
            self._running = (process.pid,)
            try:
                yield program
            finally:
                self._running = ()
                program.end()

    def rows(self, program: Program, read: Callable[[str], Row | None], stop: StopSignal) -> Iterator[tuple[int, Row]]:
        """Yield the rows that `read` finds in the lines, with their arrival times.

        Ends when `stop` is set, when the output ends, or after too long a time without a row, even if the program
        prints other lines, for example about a lost GPU.
        """
        last_ns = time.monotonic_ns()
        for t_ns, line in program.lines(stop, self._silence_s):
            row = read(line)
            if row is not None:
                last_ns = t_ns
                yield t_ns, row
            elif t_ns - last_ns > self._silence_s * 1e9:
                return

    def failure(self, argv: Sequence[str], status: int | None, complaints: str) -> ListenerError:
        """Return the error for a program that stopped printing rows before the listener was stopped."""
        outcome = f"printed no row for {self._silence_s:g} s" if status is None else f"ended with status {status}"
        remedy = f"fix the cause that the program printed, or leave {self.name} out"
        return ListenerError(f"listener {self.name}: `{' '.join(argv)}` {outcome}; {remedy}: {complaints}")

    @property
    def _silence_s(self) -> float:
        return self.start_limit_s + self.interval_ms / 1e3
