"""The orchestrator's end of the job protocol, bare: a socket, one process, its messages and its events."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline.base.system.paths import PROJECT_DIR


class JobServer:
    """Starts one job and talks to it; leaves no process of it behind."""

    def __enter__(self) -> JobServer:
        self.folder = Path(tempfile.mkdtemp(prefix="job-"))  # not pytest's: a socket's path has 107 bytes at most
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.settimeout(180)
        self._listener.bind(str(self.folder / "socket"))
        self._listener.listen()
        spec = {"index": 0, "socket": str(self.folder / "socket")}
        (self.folder / "job.json").write_text(json.dumps(spec))
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()
        self._listener.close()
        shutil.rmtree(self.folder)

    def start(self, *argv: str | Path, **options: Any) -> dict[str, Any]:
        """Start Python with these arguments and return the job's `hello`."""
        environ = dict(os.environ, COLLOCATION_JOB=str(self.folder), PYTHONPATH=str(PROJECT_DIR))
        self.process = subprocess.Popen(
            [sys.executable, *map(str, argv)],
            env=environ | options.pop("environ", {}),
            start_new_session=True,
            text=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )
        self._connection, _ = self._listener.accept()
        self._connection.settimeout(180)
        self._lines = self._connection.makefile("r", encoding="utf-8")
        return self.receive()

    def receive(self) -> dict[str, Any]:
        """Return the job's next message; empty once it has closed the connection."""
        line = self._lines.readline()
        return json.loads(line) if line else {}

    def send(self, **message: object) -> None:
        """Send a message to the job."""
        self._connection.sendall((json.dumps(message) + "\n").encode())

    def go(self, delay_s: float = 0.0) -> int:
        """Wait for `ready` and let the job start; return the instant it was given."""
        assert self.receive() == {"type": "ready"}
        start_ns = time.monotonic_ns() + int(delay_s * 1e9)
        self.send(type="go", start_ns=start_ns)
        return start_ns

    def hang_up(self) -> None:
        """Close the connection, as an orchestrator that dies does."""
        self._connection.shutdown(socket.SHUT_RDWR)

    def end(self) -> tuple[int, str, str]:
        """Wait for the process; return its exit status, output and errors."""
        output, errors = self.process.communicate(timeout=600)
        return self.process.returncode, output, errors

    def events(self, event: str | None = None) -> list[dict[str, Any]]:
        """Return the events recorded so far, of one kind or all."""
        lines = (self.folder / "events.jsonl").read_text().splitlines()
        return [entry for entry in map(json.loads, lines) if event in (None, entry["event"])]


def is_alive(pid: int) -> bool:
    """Whether a process runs (one that ended and was not yet reaped does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition: Callable[[], bool], timeout_s: float = 120.0) -> bool:
    """Whether the condition comes true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True
