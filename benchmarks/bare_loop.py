"""Run the same jobs without the orchestrator.

A loop starts the jobs, and releases and stops them over a socket; no sensor is sampled. Under MPS, only the control
program starts and ends the daemon. Rates are computed by the code that the orchestrator uses.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.domain.window import WindowKind
from pipeline.base.domain.work_units import SAMPLES, rate_of
from pipeline.launch import event_reader
from pipeline.observe.throughput import compute_step_figures

_MPS_CONTROL = "nvidia-cuda-mps-control"
PEAK_MEMORY = "memory_allocated_peak_mib"


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurement of several copies of a program.

    Attributes:
        rate: total rate of all copies, in work units per second.
        peak_mib: the largest peak of GPU memory that torch allocated in a copy; `None` without a GPU.
    """

    rate: float
    peak_mib: float | None


@contextmanager
def mps() -> Iterator[Mapping[str, str]]:
    """Run an MPS daemon in a temporary folder; yield the environment variables that its clients need."""
    with tempfile.TemporaryDirectory(prefix="mps-") as name:
        environ = {"CUDA_MPS_PIPE_DIRECTORY": f"{name}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{name}/log"}
        for folder in environ.values():
            Path(folder).mkdir()
        subprocess.run([_MPS_CONTROL, "-d"], env=os.environ | environ, check=True)
        try:
            yield environ
        finally:
            subprocess.run([_MPS_CONTROL], input="quit\n", text=True, env=os.environ | environ, check=True)


def throughput(
    argv: Sequence[str], num_jobs: int, environ: Mapping[str, str], *, settle_s: float, seconds: float
) -> Measured:
    """Measure `num_jobs` copies of a script in one common window, from their event files.

    Args:
        argv: script and arguments, without the interpreter.
        num_jobs: number of copies.
        environ: variables that the copies get in addition to this process's environment.
        settle_s: time from the start of the work to the start of the window.
        seconds: length of the window.
    """
    with tempfile.TemporaryDirectory(prefix="bare-") as name:
        folder = Path(name)
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(folder / "s"))
        server.listen(num_jobs)
        processes = [_start(argv, index, folder, environ) for index in range(num_jobs)]
        connections = [server.accept()[0] for _ in processes]
        for connection in connections:
            _wait_for(connection, "ready")
        start_ns = time.monotonic_ns() + 50_000_000
        _tell(connections, type="go", start_ns=start_ns)
        time.sleep(max(0.0, (start_ns - time.monotonic_ns()) / 1e9) + settle_s + seconds)
        stop_ns = time.monotonic_ns()
        _tell(connections, type="stop")
        for process in processes:
            if process.wait() != 0:
                raise RuntimeError(f"a job of the bare loop ended with status {process.returncode}")
        window = (stop_ns - int(seconds * 1e9), stop_ns)
        logs = [event_reader.read(folder / str(index) / "events.jsonl") for index in range(num_jobs)]
        return Measured(
            rate=sum(compute_step_figures(WindowKind.STEADY, SAMPLES, log, [window])[rate_of(SAMPLES)] for log in logs),
            peak_mib=max((value for log in logs for *_, value in log.metrics.get(PEAK_MEMORY, ())), default=None),
        )


def _start(argv: Sequence[str], index: int, folder: Path, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    job_folder = folder / str(index)
    job_folder.mkdir()
    (job_folder / "job.json").write_text(json.dumps({"index": index, "socket": str(folder / "s")}))
    with (job_folder / "log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, *argv],
            env={**os.environ, **environ, "COLLOCATION_JOB": str(job_folder)},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _wait_for(connection: socket.socket, kind: str) -> None:
    text = ""
    while f'"{kind}"' not in text:
        data = connection.recv(4096)
        if not data:
            raise RuntimeError("a job of the bare loop ended before it was ready")
        text += data.decode()


def _tell(connections: Sequence[socket.socket], **message: object) -> None:
    for connection in connections:
        connection.sendall((json.dumps(message) + "\n").encode())


def median_wall_s(script: Path, num_jobs: int, runs: int) -> float:
    """Return the median time in seconds from the start of `num_jobs` copies of a script to the end of the last copy."""
    times = []
    for _ in range(runs):
        begin = time.monotonic()
        processes = [subprocess.Popen([sys.executable, str(script)]) for _ in range(num_jobs)]
        for process in processes:
            process.wait()
        times.append(time.monotonic() - begin)
    return statistics.median(times)
