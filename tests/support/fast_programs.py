"""Programs of the simulated driver as forks of one process that has imported them, which takes a sixth of the CPU time.

A program of a machine sends a request to that process over a socket, waits until the fork has ended, and exits with the
fork's status. For processes that start the program or list processes, there is no difference.
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

from pipeline.base.system.paths import PROJECT_DIR
from pipeline.clean import processes
from pipeline.simulation.mps.control_program import MPS_CONTROL, write_executable

_MODULES = {
    "nvidia-smi": "pipeline.simulation.nvidia_smi",
    "dcgmi": "pipeline.simulation.dcgmi",
    MPS_CONTROL: "pipeline.simulation.mps.control_program",
}
_TEMPORARY = tempfile.gettempdir()
"""The folder for temporary files, read before a test sets another folder."""
_OF_MPS = ("CUDA_MPS_PIPE_DIRECTORY", "SIMULATED_MPS")
"""Environment variables that a command of MPS reads."""
# The client imports only modules that are compiled into the interpreter.
_CLIENT = """
import sys, _socket
s = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
s.connect(sys.argv[1])
s.sendmsg([chr(0).join(sys.argv[2:]).encode()], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, {fds!r})])
sys.exit(int(s.recv(16) or 1))
""".format(fds=array.array("i", range(3)).tobytes())


def use_in(folder: Path, state_file: Path) -> None:
    """Replace the programs that `write_programs` has written to the folder; the daemon is not replaced."""
    for name in ("nvidia-smi", "dcgmi"):
        argv = [*_asking(name), "--state-file", str(state_file.absolute())]
        write_executable(folder / name, f"exec {shlex.join(argv)}")
    use_mps(folder / MPS_CONTROL)


def use_mps(program: Path) -> None:
    """Make forks run the commands of this control program; a daemon is still a separate process.

    Args:
        program: program that `write_program` has written.
    """
    started = program.read_text(encoding="utf-8").splitlines()[1]  # VARIABLES exec COMMAND "$@"
    (settings,) = (word for word in shlex.split(started) if word.startswith("SIMULATED_MPS="))
    variables = " ".join(f'"${name}"' for name in _OF_MPS)
    write_executable(
        program,
        f'for word; do [ "$word" = -d ] && {started}; done\n'
        f"SIMULATED_MPS={shlex.quote(settings.partition('=')[2])}\n"
        f"exec {shlex.join(_asking(MPS_CONTROL))} {variables}",
    )


def _asking(name: str) -> list[str]:
    """Return the command line that requests a program from the server."""
    return [sys.executable, "-I", "-S", "-c", _CLIENT, _server()[1], name]


@functools.cache
def _server() -> tuple[subprocess.Popen[bytes], str]:
    """Return the server process, which ends with this process, and the path of its socket."""
    path = str(Path(tempfile.mkdtemp(prefix="programs-", dir=_TEMPORARY), "socket"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(path)
        listening.listen(16)
        argv = [sys.executable, "-m", "tests.support.fast_programs", str(listening.fileno())]
        # A test may end all processes with the mark that it has set itself.
        environ = {name: text for name, text in os.environ.items() if name != processes.MARK_VARIABLE}
        # The server's input is a pipe to which nobody writes; it is at its end when this process has ended.
        server = subprocess.Popen(
            argv, cwd=PROJECT_DIR, env=environ, pass_fds=[listening.fileno()], stdin=subprocess.PIPE
        )
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
    """Run the program that the other side requests; this function does not return."""
    status = 1
    try:
        data, descriptors, _, _ = socket.recv_fds(connection, 1 << 16, 3)
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        name, *arguments = data.decode().split("\0")
        if name == MPS_CONTROL:
            os.environ.update(zip(_OF_MPS, arguments, strict=False))
            del arguments[: len(_OF_MPS)]
        status = mains[name](arguments)
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001  an interpreter reports each
        traceback.print_exc()
    finally:
        connection.send(str(status).encode())
        os._exit(0)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
