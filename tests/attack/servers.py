"""A tracking server behind a proxy that delays, cuts, refuses and answers 500: what was not sent is sent later."""

from __future__ import annotations

import functools
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from random import Random

from tests import fail_everywhere
from tests.attack.bench import SHORT, Bench, Outcome
from tests.support import forks

_START_LIMIT_S = 300
_ERROR = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
_RUNNING = """
SELECT runs.name FROM runs JOIN experiments USING (experiment_id)
WHERE experiments.name = '{}' AND runs.status = 'RUNNING'
"""
_starting = threading.Lock()
_started: list[subprocess.Popen[bytes]] = []


def attack(bench: Bench, random: Random) -> Outcome:
    """Send a study through the proxy; then send the rest without a fault."""
    server = _server(bench.folder.parent)
    experiment = f"servers-{random.getrandbits(32):08x}-rehearsal"
    study = [f"scenario={random.choice(('naive', 'mps'))}", "degree=2", *SHORT, f"tracking.experiment={experiment}"]
    outcome = Outcome("sent later what was not sent")
    root = bench.folder / "behind"
    with Proxy(server.port, random) as proxy:
        process = bench.start(*study, "tracking=server", f"tracking.uri=http://127.0.0.1:{proxy.port}", root=root)
        outcome.problems += bench.end(process)
        proxy.is_faulty = False
        if process.returncode == 2 and not root.exists():
            return outcome  # refused before anything was made: the server did not answer
        flushed = forks.run("-m", "pipeline.tracking", "flush", "--root", root, timeout=300)
    if flushed.returncode != 0:
        outcome.problems.append(f"flush without faults ended with {flushed.returncode}: {flushed.stderr[-1500:]}")
    outcome.problems += bench.problems_after(root)
    outcome.problems += bench.wrong_figures(experiment, server.database)
    results = bench.results_of(experiment, server.database)
    if not results and process.returncode == 0:
        outcome.problems.append("the study ended well, and the server has nothing of it")
    if any(number != 1 for number in results.values()):
        outcome.problems.append(f"results a group: {results}")
    if running := fail_everywhere.query(server.database, _RUNNING.format(experiment)):
        outcome.problems.append(f"still running: {running}")
    if spooled_files := sorted(path for path in (root / "spool").rglob("*") if path.is_file()):
        outcome.problems.append(f"left in the spool: {spooled_files}")
    outcome.problems = [f"faults {proxy.faults}: {problem}" for problem in outcome.problems]
    return outcome


class Server:
    """MLflow's own server on this machine."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.database = folder / "server.db"
        store = ["--backend-store-uri", f"sqlite:///{self.database}", "--artifacts-destination", str(folder / "kept")]
        argv = [sys.executable, "-m", "mlflow", "server", *store, "--host", "127.0.0.1", "--port", str(self.port)]
        with (folder / "server.txt").open("wb") as out:
            environ = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true"}
            _started.append(
                subprocess.Popen([*argv, "--workers", "1"], stdout=out, stderr=out, env=environ, start_new_session=True)
            )
        deadline = time.monotonic() + _START_LIMIT_S
        while time.monotonic() < deadline:
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                return
            time.sleep(0.2)
        raise TimeoutError(f"MLflow's server does not answer; see {folder / 'server.txt'}")


def _server(folder: Path) -> Server:
    with _starting:
        return _get_server(folder)


@functools.cache
def _get_server(folder: Path) -> Server:
    return Server(folder)


def end() -> None:
    """End the server, if one was started."""
    while _started:
        server = _started.pop()
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


class Proxy:
    """Passes connections on to a port of this machine; while it is faulty, not all of them, or not whole."""

    def __init__(self, port: int, random: Random) -> None:
        self._to, self._random = port, random
        self.is_faulty, self.faults = True, list[str]()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._share = random.choice((0.05, 0.2, 0.5, 1.0))  # of connections that have a fault

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        # A listener that is only closed would go on in `accept`.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            fault = None
            if self.is_faulty and self._random.random() < self._share:
                fault = self._random.choice(("refused", "500", "cut", "delayed", "silent"))
                self.faults.append(fault)
            threading.Thread(target=self._serve, args=(connection, fault), daemon=True).start()

    def _serve(self, connection: socket.socket, fault: str | None) -> None:
        with connection, suppress(OSError):
            if fault == "500":
                connection.recv(65536)
                connection.sendall(_ERROR)
            elif fault == "silent":
                connection.recv(65536)
                time.sleep(8)  # longer than a client waits
            elif fault != "refused":
                self._pass_on(connection, fault)

    def _pass_on(self, connection: socket.socket, fault: str | None) -> None:
        remaining_bytes = self._random.choice((0, 50, 500, 5000)) if fault == "cut" else None
        with socket.create_connection(("127.0.0.1", self._to)) as server, selectors.DefaultSelector() as selector:
            selector.register(connection, selectors.EVENT_READ, server)
            selector.register(server, selectors.EVENT_READ, connection)
            while True:
                for key, _ in selector.select():
                    source, sink = key.fileobj, key.data
                    assert isinstance(source, socket.socket)
                    data = source.recv(65536)
                    if fault == "delayed":
                        time.sleep(self._random.uniform(0, 1))
                    if remaining_bytes is not None and source is server:
                        data, remaining_bytes = data[:remaining_bytes], remaining_bytes - len(data)
                    if not data:
                        return
                    sink.sendall(data)
                    if remaining_bytes is not None and remaining_bytes <= 0:
                        return
