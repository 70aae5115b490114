"""A process that forks others on request, so that these need not import what it has imported.

Fit for a process that has one thread and, when it forks, nothing open that the child must not share.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, NoReturn

from pipeline.base import interrupts

_PR_SET_PDEATHSIG = 1  # source: linux/prctl.h
_MAX_REQUEST_BYTES = 1 << 17
_MAX_DESCRIPTORS = 4
_STATUS_LIMIT_S = 5.0  # from the end of a child until who forked it has said how it ended
WITHOUT_THREADS = {"JE_ARROW_MALLOC_CONF": "background_thread:false", "OPENBLAS_NUM_THREADS": "1"}
"""Environment in which libraries start no threads when they are imported: pyarrow, OpenBLAS."""
IS_BOUND = "is_bound"
"""Of a request: whether the child is told to end (SIGTERM) once nobody may ask any more."""


def has_one_thread() -> bool:
    """Whether this process may be forked: locks that another thread holds would stay locked in the child."""
    return len(list(Path("/proc/self/task").iterdir())) == 1


def leave(run: Callable[[], int]) -> NoReturn:
    """Run a function and end this process with the status that it returns, without what its parent had to undo."""
    status = 1
    try:
        status = run()
    except BaseException:  # noqa: BLE001  an interpreter says each
        sys.excepthook(*sys.exc_info())
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):
                status = status or 1
        os._exit(status)


class Forked:
    """A child of a process that forks on request (`serve`); the part of `Popen` that is used of one.

    Attributes:
        stdin, stdout: our ends of its pipes, where it has any.
    """

    def __init__(self, asked: socket.socket, request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
        """Ask for it; does not wait for it.

        Args:
            asked: our end of the socket of the process that forks.
            request: what it is to be.
            descriptors: that it gets.

        Raises:
            OSError: it cannot be asked for.
        """
        data = json.dumps(request).encode()
        if len(data) > _MAX_REQUEST_BYTES:
            raise OSError(f"a request of {len(data)} bytes is too long to be passed on")
        self._says, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._started: tuple[int, int] | None = None  # its number, and a descriptor of it
        self._has_ended = False
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        try:
            with theirs:
                socket.send_fds(asked, [data], [*descriptors, theirs.fileno()])
        except OSError:
            self._says.close()
            raise

    @property
    def pid(self) -> int:
        """Its number, once it runs.

        Raises:
            OSError: it never ran: the process that was to fork it has ended.
        """
        return self._running()[0]

    def send_signal(self, signum: int) -> None:
        """Signal it once it runs, and nobody else if it has ended; OSError as of `pid`."""
        _, descriptor = self._running()
        if not self._has_ended:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, signum)

    def kill(self) -> None:
        """End it at once, or have it never begin."""
        if self._started is None and not self._has_ended and not _has_input(self._says, 0):
            self._forget()
        with suppress(OSError):
            self.send_signal(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int | None:
        """The exit status, once it has ended; `None` if nobody knows: it never began, or who forked it ended or hangs.

        Raises:
            TimeoutExpired: it has not ended by then.
        """
        until_s = None if timeout is None else time.monotonic() + timeout

        def wait_for(source: socket.socket | int) -> None:
            if not _has_input(source, None if until_s is None else max(0, until_s - time.monotonic())):
                raise subprocess.TimeoutExpired("a fork", timeout or 0)

        if self._started is None and not self._has_ended:
            wait_for(self._says)
            self._hear_start()
        if self._started is not None and not self._has_ended:
            wait_for(self._started[1])
            if _has_input(self._says, _STATUS_LIMIT_S) and (data := self._says.recv(64)):
                self.returncode = int(data)
            self._forget()
        return self.returncode

    def _running(self) -> tuple[int, int]:
        if self._started is None and not self._has_ended:
            self._hear_start()
        if self._started is None:
            raise OSError("the process that was to fork it has ended")
        return self._started

    def _hear_start(self) -> None:
        """Wait until it runs, or never will."""
        data, descriptors, _, _ = socket.recv_fds(self._says, 64, 1)
        if data:
            self._started = int(data), descriptors[0]
        else:
            self._forget()

    def _forget(self) -> None:
        self._has_ended = True
        self._says.close()
        if self._started is not None:
            os.close(self._started[1])


def serve(asked: socket.socket, be: Callable[[Mapping[str, Any], Sequence[int]], int]) -> int:
    """Fork a child for each request, which is to `be` what it says, until nobody may ask any more; say how each ends.

    Returns:
        0, the exit status.
    """
    running: dict[int, tuple[int, int]] = {}  # by the descriptor of each child: its number, and who hears of its end
    bound: set[int] = set()  # of them, those that end with this
    with selectors.DefaultSelector() as selector:
        selector.register(asked, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not asked:
                    selector.unregister(key.fd)
                    bound.discard(key.fd)
                    _reap(key.fd, *running.pop(key.fd))
                    continue
                data, descriptors, _, _ = socket.recv_fds(asked, _MAX_REQUEST_BYTES, _MAX_DESCRIPTORS)
                if not data:
                    for descriptor in bound:
                        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
                    return 0
                request = json.loads(data)
                *given, hears = descriptors
                if _nobody_at(hears):
                    for descriptor in descriptors:
                        os.close(descriptor)
                    continue
                if (pid := os.fork()) == 0:
                    selector.close()
                    asked.close()
                    for descriptor in (hears, *running, *(other for _, other in running.values())):
                        os.close(descriptor)
                    leave(partial(be, request, given))
                for descriptor in given:
                    os.close(descriptor)
                watched = os.pidfd_open(pid)
                running[watched] = pid, hears
                bound |= {watched} if request.get(IS_BOUND) else set()
                selector.register(watched, selectors.EVENT_READ)
                try:
                    _send(hears, str(pid), watched)
                except OSError:  # nobody waits for it any more
                    signal.pidfd_send_signal(watched, signal.SIGKILL)


def _has_input(source: socket.socket | int, timeout: float | None) -> bool:
    return bool(select.select([source], [], [], timeout)[0])


def _nobody_at(descriptor: int) -> bool:
    """Whether the other end is closed."""
    poll = select.poll()
    poll.register(descriptor, select.POLLHUP)
    return bool(poll.poll(0))


def _reap(watched: int, pid: int, hears: int) -> None:
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(OSError):
        _send(hears, str(status))
    os.close(hears)
    os.close(watched)


def _send(hears: int, text: str, *descriptors: int) -> None:
    with socket.socket(fileno=os.dup(hears)) as told:
        socket.send_fds(told, [text.encode()], descriptors)


def begin(descriptors: Sequence[int]) -> None:
    """Be as a program that was just started: a session and standard streams of its own, and signals as by default."""
    os.setsid()
    interrupts.take_default_actions()
    become_standard(descriptors)
    sys.stdin = os.fdopen(0, closefd=False)
    logging.getLogger().handlers.clear()  # it logs nothing until it says how


def call_itself(name: str) -> None:
    """Have `top` show this process under a name; `ps` goes on to show the command line of the one that was forked."""
    Path("/proc/self/comm").write_text(name)


def end_with_parent() -> None:
    """Have this child process told to end (SIGTERM) when its parent is gone, however that ended."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def become_standard(descriptors: Sequence[int]) -> None:
    """Let these be the standard input and what follows it, and nothing else."""
    for number, descriptor in enumerate(descriptors):
        if descriptor != number:
            os.dup2(descriptor, number)
            os.close(descriptor)
