"""The one place where a helper program is run to its end. Never a shell; nobody waits beyond its time limit."""

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

# A killed process can stay for as long as the kernel keeps it in a driver call; nobody waits for that.
_REAP_LIMIT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """A program that ran to its end.

    A negative `status` is the signal that ended it; of what it printed, bytes that are not UTF-8 are replaced.
    """

    argv: tuple[str, ...]
    status: int
    stdout: str
    stderr: str

    @property
    def printed_line(self) -> str:
        """All that it printed, in one line."""
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
    """Run a program in a session of its own and return what it printed.

    Only the program itself is waited for: a daemon that it leaves behind keeps running and keeps nothing open here.

    Args:
        argv: program and arguments.
        timeout_s: after this long the program and its process group are killed; what may not be killed runs on.
        environ: its whole environment; that of this process if not given.
        stdin: text that it reads; nothing if not given.
        check: whether an exit status other than 0 is an error.
        keep_open: descriptors that it inherits, such as a lock that is to be held until it ends.

    Raises:
        CommandError: it could not be started or reached its time limit (status `None`), or failed (with `check`).
    """
    with ExitStack() as files:
        # Files instead of pipes: a daemon that inherits a pipe would keep its reading end waiting after the program
        # itself has ended, and a full pipe would stop the program.
        process = None
        try:
            source = files.enter_context(tempfile.TemporaryFile()) if stdin is not None else None
            stdout, stderr = (files.enter_context(tempfile.TemporaryFile()) for _ in range(2))
            if source is not None and stdin is not None:
                source.write(stdin.encode())
                source.seek(0)
            with interrupts.hold_interrupts():  # one that comes while the process is made waits until it is known
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
            how = "killed at" if _kill(process) else "still running, as it could not be killed, at"
            message = f"{how} its time limit of {timeout_s:g} s. {_text(stderr)}"
            raise CommandError(list(argv), None, message) from error
        except BaseException as error:
            _kill(process)
            if process is None and isinstance(error, OSError):
                raise CommandError(list(argv), None, f"could not be started: {error}") from error
            raise
        completed = Completed(argv=tuple(argv), status=status, stdout=_text(stdout), stderr=_text(stderr))
    if check and status != 0:
        # Several of NVIDIA's tools report their errors on stdout.
        raise CommandError(list(argv), status, completed.stderr.strip() or completed.stdout)
    return completed


def wait_for_end(process: subprocess.Popen[bytes], timeout_s: float) -> int:
    """Return the exit status as soon as a process ends; `Popen.wait` polls. TimeoutExpired at the limit."""
    if (status := process.poll()) is not None:  # one that was waited for has no descriptor any more
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
    except PermissionError:  # sudo is another user's process
        is_ours = False
    with suppress(subprocess.TimeoutExpired):
        process.wait(_REAP_LIMIT_S)
    return is_ours


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
