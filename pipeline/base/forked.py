"""A child process that is a fork of this one and runs a function of ours: `subprocess.Popen` without an import.

Fit for a process that has one thread and, when it forks, nothing open that the child must not share.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, NoReturn

_PR_SET_PDEATHSIG = 1  # source: linux/prctl.h


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
    """A child with pipes for its standard input and output, in a session of its own; the part of `Popen` that is used.

    It handles signals as a program that was just started, and logs nothing until it says how.
    """

    def __init__(self, run: Callable[[], int]) -> None:
        (reads, our_in), (our_out, writes) = os.pipe(), os.pipe()
        self.returncode: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            leave(lambda: _begin(run, reads, writes, (our_in, our_out)))
        os.close(reads)
        os.close(writes)
        self.stdin: IO[bytes] | None = os.fdopen(our_in, "wb")
        self.stdout: IO[bytes] | None = os.fdopen(our_out, "rb")

    def poll(self) -> int | None:
        """The exit status, if it has ended."""
        return self._reaped(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, once it has ended; TimeoutExpired if that is not now, with any limit at all."""
        if (status := self._reaped(0 if timeout is None else os.WNOHANG)) is None:
            raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0)
        return status

    def kill(self) -> None:
        """End it at once."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def _reaped(self, options: int) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


def end_with_parent() -> None:
    """Have this child process told to end (SIGTERM) when its parent is gone, however that ended."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def become_standard(descriptors: Sequence[int]) -> None:
    """Let these be the standard input and what follows it, and nothing else."""
    for number, descriptor in enumerate(descriptors):
        if descriptor != number:
            os.dup2(descriptor, number)
            os.close(descriptor)


def _begin(run: Callable[[], int], reads: int, writes: int, ours: tuple[int, int]) -> int:
    os.setsid()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) is not signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)
    for each in ours:
        os.close(each)
    become_standard((reads, writes))
    sys.stdin = os.fdopen(0, closefd=False)
    logging.getLogger().handlers.clear()
    return run()
