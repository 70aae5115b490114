"""A tracking server on loopback, in a separate process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType


def start_server(
    folder: Path,
    port: int,
    limit_s: float = 60,
    *,
    database: str | None = None,
    artifacts: str | None = None,
    environ: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.Popen[bytes]:
    """Start a server with database and artifacts in the folder, or at another address; return when it answers."""
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", database or f"sqlite:///{folder}/server.db"]
    command += ["--artifacts-destination", artifacts or str(folder / "served")]
    server = subprocess.Popen(
        command,
        env={**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **environ},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + limit_s
    while not _answers(port):
        assert server.poll() is None, "the server ended"
        assert time.monotonic() < deadline, f"the server does not answer after {limit_s:g} s"
        time.sleep(0.05)
    return server


def kill(server: subprocess.Popen[bytes]) -> None:
    """Kill a server and its worker processes at once."""
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()


def _answers(port: int) -> bool:
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).status == 200
    except (urllib.error.URLError, OSError):
        return False
