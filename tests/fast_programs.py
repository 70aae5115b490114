"""Programs of the simulated driver as forks of one process that has imported them.

A program of a machine asks that process over a socket, waits until its fork has ended, and ends with its status. To
whoever starts it or looks at the processes it is the program; it takes a sixth of the CPU time.
"""

from __future__ import annotations

import array
import functools
import importlib
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pipeline.base.paths import PROJECT_DIR
from pipeline.simulation.mps.control import write_executable

_MODULES = {"nvidia-smi": "pipeline.simulation.smi.program", "dcgmi": "pipeline.simulation.dcgmi"}
# Only what is compiled into the interpreter is imported.
_CLIENT = """
import sys, _socket
s = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
s.connect(sys.argv[1])
s.sendmsg([chr(0).join(sys.argv[2:]).encode()], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, {fds!r})])
sys.exit(int(s.recv(16) or 1))
""".format(fds=array.array("i", [1, 2]).tobytes())


def use_in(folder: Path, state_file: Path) -> None:
    """Replace the programs that `write_programs` has written into the folder, for what ends by itself."""
    _, path = _server()
    for name in _MODULES:
        argv = [sys.executable, "-I", "-S", "-c", _CLIENT, path, name, "--state-file", str(state_file.absolute())]
        write_executable(folder / name, f"exec {shlex.join(argv)}")


@functools.cache
def _server() -> tuple[subprocess.Popen[bytes], str]:
    """The process that forks, which ends with this one, and the path of its socket."""
    path = str(Path(tempfile.mkdtemp(prefix="programs-"), "socket"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen(16)
        argv = [sys.executable, "-m", "tests.fast_programs", str(listening.fileno())]
        # Its input is a pipe that nobody writes: it is at its end when this process is gone.
        server = subprocess.Popen(argv, cwd=PROJECT_DIR, pass_fds=[listening.fileno()], stdin=subprocess.PIPE)
    return server, path


def serve(listening: socket.socket) -> None:
    """Fork a program for each connection, until the input ends."""
    mains = {name: importlib.import_module(module).main for name, module in _MODULES.items()}
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while listening in select.select([listening, sys.stdin], [], [])[0]:
        connection, _ = listening.accept()
        with connection:
            if os.fork() == 0:
                _become(connection, mains)
    shutil.rmtree(Path(listening.getsockname()).parent)


def _become(connection: socket.socket, mains: Mapping[str, Callable[[Sequence[str]], int]]) -> None:
    """Be the program that the other side asks for; does not return."""
    status = 1
    try:
        data, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 2)
        for number, descriptor in enumerate(descriptors, start=1):
            os.dup2(descriptor, number)
            os.close(descriptor)
        name, *arguments = data.decode().split("\0")
        status = mains[name](arguments)
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001  an interpreter reports each
        traceback.print_exc()
    finally:
        connection.send(str(status).encode())
        os._exit(0)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
