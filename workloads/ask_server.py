"""Start any HTTP server and send requests to it, as a job or by hand: `python workloads/ask_server.py --help`.

The server is a command that listens on a given port: vLLM, Ray Serve, Triton, your own. Each line of a file is the body
of a request; the lines are sent in order, again and again. Every response must have status 200; its content is not
checked.
"""

from __future__ import annotations

import argparse
import http.client
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":  # reason: see workloads/__init__.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from workloads import client, program
from workloads.serving.arrivals import arrival_process
from workloads.serving.http_client import STREAMED_ERROR
from workloads.serving.options import PORT, Server
from workloads.serving.request_sender import Sender

if TYPE_CHECKING:
    from collections.abc import Sequence

_TERM_S = 10.0
_LOOK_S = 0.05
_LONGEST_S = 86_400.0  # timeout of one answer; the timeout of a socket is limited to 2^31 ms
_SHOWN_CHARACTERS = 300
_NOT_YET = frozenset({404, 425, 429, 500, 502, 503, 504})
"""Statuses that servers return while they load. They include 404: some servers add a path once its model is loaded."""


Prepare = Callable[["RunningServer"], "Sequence[bytes | None]"]


def run(
    args: argparse.Namespace, job: client.NullJob, first: bytes | None = None, prepare: Prepare | None = None
) -> None:
    """Start the server, wait until it answers, warm it up, wait at the group's barrier, and send requests.

    Args:
        args: the options of the server.
        job: the job that records the requests.
        first: body of the request that is repeated until the server answers, if `prepare` is given.
        prepare: returns the bodies for a server that answers; by default, they are read from a file.
    """
    with ExitStack() as stack:
        job.phase("build")
        port = program.find_free_port()
        server = stack.enter_context(RunningServer(args.command, port))
        if job.client_cpus:  # the server keeps those with which it was started
            os.sched_setaffinity(0, job.client_cpus)
            job.param(client_cpus=",".join(map(str, job.client_cpus)))
        job.param(**program.record_options(args))
        bodies = [first] if prepare else read_bodies(args.requests_file)
        server.wait_until_it_answers(args.path, bodies[0], args.ready_s)
        if prepare is not None:
            bodies = prepare(server)
        job.param(distinct_requests=len(bodies))
        job.phase("warmup")
        for number in range(args.warmup_requests):
            server.ask(args.path, bodies[number % len(bodies)])
        sender = stack.enter_context(
            Sender(
                job,
                "other",
                port,
                [add_head(args.path, body, port) for body in bodies],
                arrival_process(args, job),
                epoch_requests=args.requests if args.epochs else 0,
                drain_s=args.drain_s,
            )
        )
        job.ready()
        job.phase("serve")
        sender.begin(time.monotonic_ns())
        while not job.stopping and not sender.is_over(_LOOK_S):
            server.check()
        server.check()
        sender.check()


class ServerEndedError(RuntimeError):
    """The server exited before it was stopped. The job's output includes the server's output, with the reason."""


class RunningServer:
    """A context manager that starts the server on entry and ends it on exit."""

    def __init__(self, command: str, port: int) -> None:
        self._words = [word.replace(PORT, str(port)) for word in shlex.split(command)]
        self._port = port

    def __enter__(self) -> RunningServer:
        # Programs of the job's environment come first, such as `vllm`; the environment may not be activated.
        path = os.pathsep.join(filter(None, (str(Path(sys.executable).parent), os.environ.get("PATH"))))
        try:
            self._process = subprocess.Popen(self._words, stdin=subprocess.DEVNULL, env=os.environ | {"PATH": path})
        except OSError as error:
            raise RuntimeError(
                f"the server cannot be started: {error.strerror}; check the command: {shlex.join(self._words)}"
            ) from error
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Terminate the server; kill it if it does not exit in time."""
        self._process.terminate()
        try:
            self._process.wait(_TERM_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def check(self) -> None:
        """Raise `ServerEndedError` if the server has exited."""
        if (status := self._process.poll()) is not None:
            raise ServerEndedError(f"the server ended with status {status}: {shlex.join(self._words)}")

    def wait_until_it_answers(self, path: str, body: bytes | None, ready_s: float) -> None:
        """Repeat the request until it is answered.

        Raises:
            ServerEndedError: the server exited.
            RuntimeError: the server refused the request, does not use HTTP, or did not answer in time.
        """
        end_s, state = time.monotonic() + ready_s, "nothing listens"
        while time.monotonic() < end_s:
            self.check()
            try:
                status, text = self._request(path, body, min(end_s - time.monotonic(), _LONGEST_S))
            except OSError as error:
                state = f"nothing listens ({error})"
            except http.client.HTTPException as error:
                raise RuntimeError(
                    f"the server on port {self._port} does not answer with HTTP ({error!r}); use a command that serves "
                    f"HTTP on {PORT}"
                ) from error
            else:
                if _is_answer(status, text):
                    return
                state = f"status {status}: {text[:_SHOWN_CHARACTERS]}"
                if status not in _NOT_YET:
                    raise RuntimeError(f"the server refuses {path}: {state}; check path and requests_file")
            time.sleep(_LOOK_S)
        raise RuntimeError(
            f"the server did not answer {path} on port {self._port} within {ready_s:g} s ({state}); check that the "
            f"command listens on {PORT}, or raise ready_s"
        )

    def ask(self, path: str, body: bytes | None) -> str:
        """Return the answer to a request; raise `RuntimeError` if the status is not 200, or an event is an error."""
        status, text = self._request(path, body, None)
        if not _is_answer(status, text):
            shown = text[:_SHOWN_CHARACTERS]
            raise RuntimeError(f"the server refuses {path}: status {status}: {shown}; check path and requests_file")
        return text

    def _request(self, path: str, body: bytes | None, timeout_s: float | None) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=timeout_s)
        try:
            connection.request(*_describe_request(path, body))
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")
        finally:
            connection.close()


def _is_answer(status: int, text: str) -> bool:
    return status == 200 and not STREAMED_ERROR.search(text.encode())


def _describe_request(path: str, body: bytes | None) -> tuple[str, str, bytes | None, dict[str, str]]:
    return ("GET", path, None, {}) if body is None else ("POST", path, body, {"Content-Type": "application/json"})


def add_head(path: str, body: bytes | None, port: int) -> bytes:
    """Return the bytes of a request: its head and its body."""
    method, path, _, fields = _describe_request(path, body)
    fields |= {"Host": f"127.0.0.1:{port}", "Content-Length": str(len(body or b""))}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


def read_bodies(file: Path | None) -> Sequence[bytes | None]:
    """Return the bodies of the requests; `None` is a request without a body."""
    if file is None:
        return [None]
    bodies = [line for line in file.read_bytes().splitlines() if line.strip()]
    if not bodies:
        raise ValueError(f"{file} has no request; write one body in each line")
    return bodies


if __name__ == "__main__":
    program.run_program(Server, run)
