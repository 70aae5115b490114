"""Running of helper programs until they end, never through a shell and always with a time limit."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import IO

from pipeline.base.system import interrupts
from pipeline.base.system.errors import CommandError

# A killed process may remain in a driver call for long; after this time it is no longer waited for.
_REAP_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A program that has ended.

    A negative `status` is the signal that ended the program. Bytes of its output that are not UTF-8 are replaced.
    """

    argv: tuple[str, ...]
    status: int
    stdout: str
    stderr: str

    @property
    def printed_line(self) -> str:
        """The output on stdout and stderr in one line."""
        lines = f"{self.stdout}\n{self.stderr}".splitlines()
        return " / ".join(line.strip() for line in lines if line.strip())


def run(
    argv: Sequence[str],
    *,
    timeout_s: float,
    environ: Mapping[str, str] | None = None,
    stdin: str | None = None,
    check: bool = True,
    keep_open: Sequence[int] = (),
) -> Completed:
    """Run a program in a new session and return its output.

    Waits only for the program itself: a daemon that the program starts continues to run.

    Args:
        argv: program and arguments.
        timeout_s: time limit after which the process group is killed, except for processes of other users.
        environ: complete environment of the program; default: the environment of this process.
        stdin: text that the program reads; default: none.
        check: whether a non-zero exit status is an error.
        keep_open: descriptors that the program inherits, such as a lock to be held until it ends.

    Raises:
        CommandError: the program could not be started or exceeded its time limit (status `None`), or failed (with
            `check`).
    """
    with ExitStack() as files:
        # Files instead of pipes: a daemon that inherits a pipe would keep the reader waiting after the program has
        # ended, and a full pipe would block the program.
        process = None
        try:
            source = files.enter_context(tempfile.TemporaryFile()) if stdin is not None else None
            stdout, stderr = (files.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            if source is not None and stdin is not None:
                source.write(stdin.encode())
                source.seek(0)
            with interrupts.hold_interrupts():  # the new process must be known when an interrupt is raised
                process = subprocess.Popen(
                    list(argv),
                    stdin=subprocess.DEVNULL if source is None else source,
                    stdout=stdout,
                    stderr=stderr,
                    env=environ,
                    start_new_session=True,
                    pass_fds=tuple(keep_open),
                )
            status = wait_for_end(process, timeout_s)
        except subprocess.TimeoutExpired as error:
            outcome = "killed after" if _kill(process) else "still running, because it could not be killed, after"
            message = f"{outcome} its time limit of {timeout_s:g} s. {_text(stderr)}"
            raise CommandError(list(argv), None, message) from error
        except BaseException as error:
            _kill(process)
            if process is None and isinstance(error, OSError):
                raise CommandError(list(argv), None, f"could not be started: {error}") from error
            raise
        completed = Completed(argv=tuple(argv), status=status, stdout=_text(stdout), stderr=_text(stderr))
    if check and status != 0:
        # Several NVIDIA tools print errors on stdout.
        raise CommandError(list(argv), status, completed.stderr.strip() or completed.stdout)
    return completed


def wait_for_end(process: subprocess.Popen[bytes], timeout_s: float) -> int:
    """Return the exit status when a process ends, without the polling of `Popen.wait`. Raises `TimeoutExpired`."""
    if (status := process.poll()) is not None:  # a reaped process has no pidfd
        return status
    descriptor = os.pidfd_open(process.pid)
    try:
        has_ended = select.poll()
        has_ended.register(descriptor, select.POLLIN)
        has_ended.poll(timeout_s * 1000)
    finally:
        os.close(descriptor)
    return process.wait(0)


def _kill(process: subprocess.Popen[bytes] | None) -> bool:
    if process is None:
        return True
    is_ours = True
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except PermissionError:  # the process of sudo belongs to another user
        is_ours = False
    with suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_LIMIT_S)
    return is_ours


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
