"""Processes of jobs: started from nothing, or forked from a server (`launch/warm_start.py`).

Either way its number stays its own until `reap`, so that it can be signalled without hitting anybody else.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipeline.base.domain.records import Interpreter
from pipeline.base.system import cpu_limit
from pipeline.base.system.errors import LaunchError


@dataclass(frozen=True, slots=True)
class Process:
    """A job's leading process.

    Attributes:
        pid: its number, which is also that of its session and process group.
        status: waits for its end; gives its exit status, or minus the signal that ended it. Raises `LaunchError` if
            nobody knows.
        reap: gives its number back. It must have ended.
    """

    pid: int
    status: Callable[[], int]
    reap: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Spawner:
    """Starter of one interpreter a job, below another program if words are put before its command."""

    interpreter: Interpreter
    prefix: tuple[str, ...] = ()

    def start(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        stdout: Path,
        stderr: Path,
        cpus: Sequence[int],
        folder: Path | None = None,
    ) -> Process:
        """Start a program in a session of its own, with this whole environment.

        It gets these CPUs or, without, all of them, and starts in this folder or, without, where we are.

        Raises:
            LaunchError: it could not be started.
        """
        command = [*self.prefix, str(self.interpreter.python), *argv]
        with stdout.open("wb") as out, stderr.open("wb") as err:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    env=environ,
                    cwd=folder,
                    start_new_session=True,
                )
            except OSError as error:
                raise LaunchError(f"cannot start {command[0]}: {error.strerror}") from error
        cpu_limit.hand_on_limit(process.pid)
        if cpus:
            os.sched_setaffinity(process.pid, cpus)
        return Process(process.pid, status=partial(_wait_status, process.pid), reap=process.wait)


def _wait_status(pid: int) -> int:
    # WNOWAIT leaves the process a zombie: until everything is cleaned up, its number must stay its own.
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
