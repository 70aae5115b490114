"""A helper program that prints lines for as long as it runs, and that never outlives whoever reads them."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, cast

from listeners.base import StopSignal, ThreadedListener

_END_LIMIT_S = 2.0


class Program:
    """A program that runs. Made by `running`.

    Attributes:
        argv: its command line.
        pid: of its process, which leads a session of its own.
    """

    def __init__(self, argv: Sequence[str], process: subprocess.Popen[bytes]) -> None:
        self.argv = tuple(argv)
        self.pid = process.pid
        self._process = process

    def lines(self, stop: StopSignal, silence_s: float) -> Iterator[tuple[int, str]]:
        """Lines of both its streams, each with the monotonic instant of its arrival in ns.

        Ends when the output ends, `stop` is set, or nothing came for `silence_s` seconds.
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
        """The exit status once its output has ended; `None` if it goes on all the same."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(_END_LIMIT_S)
        return None


class ProgramListener(ThreadedListener):
    """A listener whose source is one program that runs for as long as it samples."""

    _running: tuple[int, ...] = ()

    def pids(self) -> tuple[int, ...]:
        """The program, while it runs; what it asks, such as the host engine of DCGM, is not ours and not counted."""
        return self._running

    @contextmanager
    def started(self, argv: Sequence[str]) -> Iterator[Program]:
        with running(argv) as program:
            self._running = (program.pid,)
            try:
                yield program
            finally:
                self._running = ()


@contextmanager
def running(argv: Sequence[str]) -> Iterator[Program]:
    """Run a program until the context ends; then end it, and its whole process group if it does not obey.

    Raises:
        OSError: it could not be started.
    """
    # One pipe for both streams: nobody has to drain a second one, and complaints stay in order. If this process is
    # killed, the pipe has no reader any more and the program's next line ends it by SIGPIPE.
    with subprocess.Popen(
        list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        try:
            yield Program(argv, process)
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_LIMIT_S)
