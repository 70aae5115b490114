"""A tracking server on loopback, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path


def start_server(folder: Path, port: int, limit_s: float = 60) -> subprocess.Popen[bytes]:
    """Start a server whose database and artifacts lie in the folder; returns it once it answers."""
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += [
        "--backend-store-uri",
        f"sqlite:///{folder}/server.db",
        "--artifacts-destination",
        str(folder / "served"),
    ]
    server = subprocess.Popen(
        command,
        env=os.environ | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + limit_s
    while not _answers(port):
        assert server.poll() is None, "the server ended"
        assert time.monotonic() < deadline, f"the server does not answer after {limit_s:g} s"
        time.sleep(0.05)
    return server


def _answers(port: int) -> bool:
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).status == 200
    except (urllib.error.URLError, OSError):
        return False
