"""The orchestrator's end of the job protocol, reduced to a socket and one job, with its messages and events."""

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
from pathlib import Path
from typing import Any

from pipeline.base.system.paths import PROJECT_DIR


class JobServer:
    """A server that starts one job and exchanges messages with it; on exit, it kills all processes of the job."""

    def __enter__(self) -> JobServer:
        self.folder = Path(tempfile.mkdtemp(prefix="job-"))  # a socket's path has at most 107 bytes
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
        """Return the job's next message; empty if the job has closed the connection."""
        line = self._lines.readline()
        return json.loads(line) if line else {}

    def send(self, **message: object) -> None:
        """Send a message to the job."""
        self._connection.sendall((json.dumps(message) + "\n").encode())

    def go(self, delay_s: float = 0.0) -> int:
        """Wait for `ready` and start the job; return the start time that was sent to the job."""
        assert self.receive() == {"type": "ready"}
        start_ns = time.monotonic_ns() + int(delay_s * 1e9)
        self.send(type="go", start_ns=start_ns)
        return start_ns

    def launch(self, *argv: str | Path, **options: Any) -> None:
        """Start Python with these arguments, and then the job."""
        self.start(*argv, **options)
        self.go()

    def hang_up(self) -> None:
        """Close the connection, as if the orchestrator had died."""
        self._connection.shutdown(socket.SHUT_RDWR)

    def end(self) -> tuple[int, str, str]:
        """Wait for the process; return its exit status, output and errors."""
        output, errors = self.process.communicate(timeout=600)
        return self.process.returncode, output, errors

    def events(self, event: str | None = None) -> list[dict[str, Any]]:
        """Return the events recorded so far: all, or those of one kind."""
        lines = (self.folder / "events.jsonl").read_text().splitlines()
        return [entry for entry in map(json.loads, lines) if event in (None, entry["event"])]


def is_alive(pid: int) -> bool:
    """Return whether a process runs; a process that has ended, but is not reaped yet, does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
