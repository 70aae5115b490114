"""Processes of jobs: started as new interpreters, or forked from a server (`launch/warm_start.py`).

In both cases the PID is not reused before `reap`, so a signal cannot reach another process.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipeline.base.domain.records import Interpreter
from pipeline.base.system import startup
from pipeline.base.system.errors import LaunchError


@dataclass(frozen=True, slots=True)
class Process:
    """A job's leading process.

    Attributes:
        pid: PID of the process, and ID of its session and process group.
        status: waits for the end of the process; returns its exit status, or minus the signal that ended it. Raises
            `LaunchError` if the status is unknown.
        reap: releases the PID of the process, which must have ended.
    """

    pid: int
    status: Callable[[], int]
    reap: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Spawner:
    """Starter of a new interpreter for each job; `prefix` is the command of a program that runs it, if any."""

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
        """Start a program in a new session, with `environ` as its complete environment.

        The process is bound to `cpus`, unless they are empty. Its working directory is `folder`, by default the current
        one.

        Raises:
            LaunchError: the program could not be started.
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
        startup.hand_on_limit(process.pid)
        if cpus:
            os.sched_setaffinity(process.pid, cpus)
        return Process(process.pid, status=partial(_wait_status, process.pid), reap=process.wait)


def _wait_status(pid: int) -> int:
    # WNOWAIT leaves the process a zombie, because its PID must not be reused before everything is cleaned up.
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
