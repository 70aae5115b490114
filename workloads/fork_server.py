"""A server that starts jobs as forks of a process that has already imported their modules.

    python workloads/fork_server.py DESCRIPTOR MODULE

The orchestrator runs this server with the interpreter of the jobs. They exchange one JSON object per line over the
socket DESCRIPTOR. The server imports MODULE, reports whether it can fork, and then starts one job per request. A forked
job has the session, environment, files and arguments of its request and runs its program as `__main__`, like a freshly
started process. The server uses only the standard library of Python 3.8 or newer.

A fork must not inherit CUDA, a thread, or the pool that OpenMP creates at its first parallel operation, because the
child would wait for the pool's threads forever. So the server only imports, and if it then has a thread or an open GPU,
it reports that it cannot fork. Closing the socket ends the server and every remaining job.
"""

# ruff: noqa: PTH100, PTH120, PTH208, PTH115

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import mmap
import os
import runpy
import signal
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

MARK_VARIABLE = "COLLOCATION_GROUP"
mappings: list[mmap.mmap] = []
"""The mapping of a forked job, which stays until the process ends."""


class Server:
    """A loop that forks on request, until the peer closes the socket."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._pids: set[int] = set()

    def serve(self) -> dict[str, Any] | None:
        """Handle requests until the peer closes the socket.

        Returns:
            `None` in the server; the request of the job in a forked job.

        When the server leaves this function, even by an exception, it kills the remaining jobs.
        """
        own_pid = os.getpid()
        try:
            for request in self._requests():
                if "argv" in request:
                    answer = self._fork(request)
                    if answer is None:
                        return request
                elif "status" in request:
                    ended = os.waitid(os.P_PID, request["status"], os.WEXITED | os.WNOWAIT)
                    assert ended is not None
                    status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
                    answer = {"status": status}
                else:
                    os.waitpid(request["reap"], 0)
                    self._pids.discard(request["reap"])
                    answer = {}
                try:
                    send(self._control, answer)
                except OSError:  # the peer has closed the socket
                    break
        finally:
            if os.getpid() == own_pid:  # false in a forked job, which leaves this block too
                for pid in self._pids:  # these jobs are not reaped yet, so their PIDs are not reused
                    with contextlib.suppress(OSError):
                        os.killpg(pid, signal.SIGKILL)
        return None

    def _requests(self) -> Iterator[dict[str, Any]]:
        with contextlib.suppress(OSError):  # the peer closed the socket before it read the last reply
            yield from map(json.loads, self._control.makefile("r", encoding="utf-8"))

    def _fork(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Start a job and reply with its PID once the job has its own session; return `None` in the job itself."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(reading)
                os.close(self._control.detach())
                self._become(request)
            except BaseException as error:  # noqa: BLE001  the server has to hear of it
                os.write(writing, f"{type(error).__name__}: {error}".encode()[:4000])
                os._exit(127)
            os.close(writing)
            return None
        os.close(writing)
        with os.fdopen(reading, "rb") as file:
            reason = file.read().decode()
        if reason:
            os.waitpid(pid, 0)
            return {"reason": reason}
        self._pids.add(pid)
        return {"pid": pid}

    def _become(self, request: dict[str, Any]) -> None:
        environ: dict[str, str] = request["environ"]
        # /proc shows the environment with which a process was started, here that of the server. If a child of the job
        # calls setsid, the orchestrator finds the child only by the mark of the job's group. It is the name of a memory
        # mapping, which forks inherit and closing all files does not remove; a new program has it in its environment.
        descriptor = os.memfd_create(f"{MARK_VARIABLE}={environ[MARK_VARIABLE]}")
        os.ftruncate(descriptor, 1)
        mappings.append(mmap.mmap(descriptor, 1))
        os.close(descriptor)
        os.setsid()
        os.environ.clear()
        os.environ.update(environ)
        for descriptor, path, flags in (
            (0, os.devnull, os.O_RDONLY),
            (1, request["stdout"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
            (2, request["stderr"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
        ):
            opened = os.open(path, flags, 0o644)
            os.dup2(opened, descriptor)
            os.close(opened)
        if request.get("folder"):
            os.chdir(request["folder"])
        gc.unfreeze()
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed()  # without a new seed, all jobs would draw the same numbers


def send(control: socket.socket, message: dict[str, Any]) -> None:
    """Send one message."""
    control.sendall((json.dumps(message) + "\n").encode())


def find_obstacle() -> str | None:
    """Return the reason why this process cannot be forked, if there is one."""
    if (pid := os.fork()) == 0:  # a fork makes OpenBLAS end the threads that it started at import
        os._exit(0)
    os.waitpid(pid, 0)
    threads = len(os.listdir("/proc/self/task"))
    if threads > 1:
        return f"its imports started {threads - 1} threads"
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{descriptor}")
        except OSError:
            continue
        if target.startswith("/dev/nvidia"):
            return f"its imports opened {target}"
    return None


def main() -> None:
    """Import the module, fork on request, and run the job's program in each fork."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        importlib.import_module(sys.argv[2])
        reason = find_obstacle()
    except Exception as error:  # noqa: BLE001  whatever the import raises, jobs can still start from nothing
        reason = f"{type(error).__name__}: {error}"
    send(control, {"reason": reason})
    if reason:
        return
    gc.collect()
    gc.freeze()  # keep memory shared: the garbage collector would write into every object
    request = Server(control).serve()
    if request is None:
        os._exit(0)  # exit immediately, because the peer waits and torch's teardown takes 0.1 s
    sys.argv = request["argv"]
    sys.path[0] = os.path.dirname(sys.argv[0])
    sys.path += filter(None, request["environ"].get("PYTHONPATH", "").split(os.pathsep))
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
