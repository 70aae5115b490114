"""A separate PostgreSQL cluster on loopback, with its own folder and processes, from Debian's package."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.slurm_cluster import free_ports

_OWNER = "postgres"


def _program(name: str) -> str | None:
    """Return the folder of PostgreSQL's programs; Debian has one folder for each version."""
    places = sorted(map(str, Path("/usr/lib/postgresql").glob("*/bin")), reverse=True)
    return shutil.which(name, path=os.pathsep.join([*places, os.environ["PATH"]]))


def missing() -> str:
    """Return the reason why this machine cannot run a cluster; empty if it can."""
    absent = [name for name in ("initdb", "postgres", "psql") if _program(name) is None]
    return f"{', '.join(absent)}: not installed (Debian: postgresql)" if absent else ""


@contextmanager
def cluster(folder: Path, limit_s: float = 60) -> Iterator[str]:
    """Run a cluster in a new folder; yield SQLAlchemy's address of the database `mlflow`."""
    owner = _OWNER if os.getuid() == 0 else None  # PostgreSQL does not run as root
    folder.mkdir()
    if owner is not None:
        shutil.chown(folder, owner)
    (port,) = free_ports(1)

    def argv(name: str, *arguments: object) -> list[str]:
        return [_program(name) or name, *map(str, arguments)]

    initdb = argv("initdb", "--pgdata", folder / "data", "--auth=trust", "--username=mlflow", "--no-sync")
    subprocess.run(initdb, user=owner, cwd=folder, check=True, capture_output=True)
    settings = ["listen_addresses=127.0.0.1", f"port={port}", f"unix_socket_directories={folder}", "fsync=off"]
    command = argv("postgres", "-D", folder / "data", *(word for setting in settings for word in ("-c", setting)))
    with (folder.parent / f"{folder.name}.log").open("wb") as log:
        server = subprocess.Popen(command, user=owner, cwd=folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    try:
        connect = argv("psql", f"--port={port}", "--host=127.0.0.1", "--username=mlflow", "postgres", "--command")
        deadline = time.monotonic() + limit_s
        while subprocess.run([*connect, "create database mlflow"], capture_output=True, check=False).returncode:
            assert server.poll() is None and time.monotonic() < deadline, Path(log.name).read_text()[-2000:]
            time.sleep(0.1)
        yield f"postgresql+psycopg2://mlflow@127.0.0.1:{port}/mlflow"
    finally:
        server.send_signal(signal.SIGINT)  # this signal requests a fast shutdown
        server.wait(30)
