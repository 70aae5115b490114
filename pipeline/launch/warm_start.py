"""Warm start: a fork server for each environment, which imports libraries once for all jobs (docs/warm_start.md).

A server is started when the study begins, and imports in the background. It runs as long as the study and never uses a
GPU. A job that cannot be forked is started as a new interpreter instead, which only takes longer.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.base.domain.records import Interpreter
from pipeline.base.domain.workload import Workload
from pipeline.base.system import interrupts, startup
from pipeline.base.system.errors import LaunchError
from pipeline.base.system.helper_program import wait_for_end
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.clean import processes
from pipeline.launch.environ import inherit_environ
from pipeline.launch.spawn import Process, Spawner

log = logging.getLogger(__name__)

_SERVER = PROJECT_DIR / "workloads" / "fork_server.py"
_IMPORT_LIMIT_S = 300.0
_ANSWER_LIMIT_S = 60.0


class WarmStart:
    """A context in which fork servers live, one for each pair of environment and module."""

    def __init__(self, *, enabled: bool = True) -> None:
        self._enabled = enabled
        self._servers: dict[tuple[Interpreter, str], ForkServer | None] = {}

    def __enter__(self) -> WarmStart:
        return self

    def __exit__(self, *error: object) -> None:
        for server in self._servers.values():
            if server is not None:
                server.close()

    def begin(self, workload: Workload, interpreter: Interpreter) -> None:
        """Start the server for jobs of this workload, if they can be forked; do not wait for its imports."""
        key = self._find_key(workload, interpreter)
        if key is None or key in self._servers:
            return
        try:
            self._servers[key] = ForkServer(*key)
        except OSError as error:
            self._servers[key] = None
            log.warning("jobs of %s start cold: %s", workload.name, error)

    def starter(self, workload: Workload, interpreter: Interpreter) -> Starter:
        """Wait for the imports of the server of this workload; return the starter of its jobs."""
        self.begin(workload, interpreter)
        key = self._find_key(workload, interpreter)
        server = None if key is None else self._await_ready(key)
        return server or Spawner(interpreter)

    def await_imports(self) -> None:
        """Wait until no server imports, because imports would take CPU time from the measured jobs."""
        for key in self._servers:
            self._await_ready(key)

    def _await_ready(self, key: tuple[Interpreter, str]) -> ForkServer | None:
        server = self._servers[key]
        if server is not None:
            try:
                server.wait_ready()
            except LaunchError as error:
                log.warning("jobs with preload=%s start cold: %s", key[1], error)
                server.close()
                self._servers[key] = server = None
        return server

    def _find_key(self, workload: Workload, interpreter: Interpreter) -> tuple[Interpreter, str] | None:
        """Return interpreter and module of the server for the workload's jobs; `None` if they are not forked.

        A workload that sets environment variables is not forked, because libraries may read variables on import. Nor is
        one in a container, which would end with its server.
        """
        if workload.preload is None or not self._enabled or workload.environ or interpreter.container:
            return None
        return interpreter, workload.preload


class ForkServer:
    """The server process, which has imported a module, and the orchestrator's end of its socket."""

    def __init__(self, interpreter: Interpreter, module: str) -> None:
        self.interpreter = interpreter
        self._is_ready = False
        self._lost: str | None = None
        self._control, server_end = socket.socketpair()
        with server_end:
            # The environment of a job, with variables that keep imports from starting threads or using a GPU.
            environ = inherit_environ(interpreter.environ) | {
                processes.MARK_VARIABLE: processes.FORKED,
                # read by pyarrow on import; pandas imports pyarrow
                "JE_ARROW_MALLOC_CONF": "background_thread:false",
                "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
            }
            try:
                self._process = subprocess.Popen(
                    [str(interpreter.python), str(_SERVER), str(server_end.fileno()), module],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=environ,
                    pass_fds=(server_end.fileno(),),
                    start_new_session=True,
                )
            except OSError:
                self._control.close()
                raise
        startup.hand_on_limit(self._process.pid)
        self._answers = self._control.makefile("r", encoding="utf-8")

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self) -> None:
        """Wait until the server has imported its module.

        Raises:
            LaunchError: the server cannot fork, or has ended.
        """
        if self._lost is not None:
            raise LaunchError(self._lost)
        if self._is_ready:
            if self._process.poll() is not None:
                raise LaunchError(f"the fork server has ended with status {self._process.returncode}")
            return
        answer = self._receive(_IMPORT_LIMIT_S)
        if answer["reason"]:
            raise LaunchError(f"the fork server cannot fork: {answer['reason']}")
        self._is_ready = True

    def start(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        stdout: Path,
        stderr: Path,
        cpus: Sequence[int],
        folder: Path | None = None,
    ) -> Process:
        assert not cpus, "jobs with pinned CPUs are not forked: libraries count the CPUs when they are imported"
        answer = self._ask(
            argv=list(argv),
            environ=dict(environ),
            stdout=str(stdout),
            stderr=str(stderr),
            folder=None if folder is None else str(folder),
        )
        if "reason" in answer:
            raise LaunchError(f"cannot fork a job: {answer['reason']}")
        pid: int = answer["pid"]
        return Process(pid, status=lambda: int(self._ask(status=pid)["status"]), reap=partial(self._reap, pid))

    def close(self) -> None:
        """End the server and the remaining jobs that were forked from it."""
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._answers.close()
        self._control.close()
        if self._is_ready:
            with contextlib.suppress(subprocess.TimeoutExpired):
                wait_for_end(self._process, _ANSWER_LIMIT_S)
        self._process.kill()  # a server that is still importing has nothing to clean up
        self._process.wait()

    def _reap(self, pid: int) -> None:
        with contextlib.suppress(LaunchError):  # if the server has ended, the system reaps the process
            self._ask(reap=pid)

    def _ask(self, **request: object) -> dict[str, Any]:
        # An interrupt between request and answer would leave an unread answer in the socket.
        with interrupts.hold_interrupts():
            try:
                self._control.settimeout(_ANSWER_LIMIT_S)
                self._control.sendall((json.dumps(request) + "\n").encode())
            except OSError as error:
                raise self._note_loss(f"the fork server accepts no requests: {error}") from error
            return self._receive(_ANSWER_LIMIT_S)

    def _receive(self, limit_s: float) -> dict[str, Any]:
        try:
            self._control.settimeout(limit_s)
            line = self._answers.readline()
        except (OSError, ValueError) as error:
            raise self._note_loss(f"the fork server does not answer: {error}") from error
        if not line:
            raise self._note_loss("the fork server has ended")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _note_loss(self, message: str) -> LaunchError:
        """Record that the server can no longer be used, and return the error."""
        self._lost = message
        return LaunchError(message)


Starter = Spawner | ForkServer
"""Both starters of a job's process."""
