"""Python programs as forks of a process that has already imported their modules.

`start("run.py", ...)` replaces `subprocess.Popen([sys.executable, "run.py", ...])` with pipes. The program is a
separate process with its folder, environment, signals and exit status, but saves the four seconds of CPU time for
importing Hydra, the project and (in the sender) MLflow. It differs in effects of `exec`: the kernel shows the command
line and the environment of the server, and a signal that pytest ignores is not ignored. Tests of these effects, and one
test of every kind of start, use real processes.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import functools
import gc
import importlib
import io
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NoReturn

from pipeline.clean import processes

_PROJECT_DIR = Path(__file__).resolve().parents[2]
# Modules that run.py, the sender and the commands of the project import.
_MODULES = (
    *("hydra", "hydra.main", "hydra._internal.hydra", "pipeline.study.execution", "pipeline.scale.local_gpus"),
    *("pipeline.tracking", "pipeline.gpu.status"),
    *("listeners.host", "listeners.nvml", "listeners.smi", "listeners.gpm", "listeners.dcgm", "rich.console"),
    *("mlflow", "mlflow.store.tracking.sqlalchemy_store", "pandas", "pyarrow.parquet"),
)
_WITHOUT_THREADS = {
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
_SENDER = ["-m", "pipeline.tracking"]


class Fork:
    """A running program, with the methods of `subprocess.Popen` that tests use.

    Attributes:
        sender_pid: PID of the program's first sender, if the program is run.py.
    """

    def __init__(self, replies: io.TextIOBase, stdin: IO[str] | None, stdout: IO[str], stderr: IO[str]) -> None:
        self._replies = replies
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self.pid, self.sender_pid = map(int, replies.readline().split())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status if the program has ended."""
        return self._status_within(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the program has ended; return the exit status."""
        if (status := self._status_within(timeout)) is None:
            raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0)
        return status

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Return everything that the program writes until its end."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if self.stdin is not None:
            self.stdin.close()
        texts = {self.stdout: "", self.stderr: ""}
        readers = [
            threading.Thread(target=lambda file=file: texts.update({file: file.read()}), daemon=True) for file in texts
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(None if deadline is None else max(0, deadline - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0)
        self.wait(timeout)
        return texts[self.stdout], texts[self.stderr]

    def send_signal(self, signum: int) -> None:
        """Send a signal to the program, unless it is known to have ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # the program has ended just now
                os.kill(self.pid, signum)

    def kill(self) -> None:
        """Kill the program, as `kill -9` does."""
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Fork:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        for file in (self.stdin, self.stdout, self.stderr):
            if file is not None:
                file.close()
        self.wait()

    def _status_within(self, limit_s: float | None) -> int | None:
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._replies, selectors.EVENT_READ)
                if selector.select(limit_s):
                    # If the server has ended, no status arrives, and the program's status is unknown.
                    self.returncode = int(self._replies.readline())
                    self._replies.close()
        return self.returncode


Process = Fork | subprocess.Popen[str]


def start(
    *argv: object,
    cwd: Path = _PROJECT_DIR,
    env: Mapping[str, str] | None = None,
    has_stdin: bool = False,
    num_senders: int = 1,
    project: Path = _PROJECT_DIR,
) -> Fork:
    """Start the program `python ARGV` with pipes; ARGV is `SCRIPT ...`, `-m MODULE ...` or `-c CODE ...`.

    Args:
        project: folder of the code, if it is a copy of the project; the copy must contain this file and its imports.
        num_senders: number of senders, one for each study, that are forked too; further senders start as new
            processes.
    """
    with contextlib.ExitStack() as program_ends:

        def pipe(*, is_theirs_to_write: bool) -> tuple[int, int]:
            """Return the two ends of a pipe: for this process, and for the program."""
            ends = os.pipe() if is_theirs_to_write else os.pipe()[::-1]
            program_ends.callback(os.close, ends[1])
            return ends

        own_ends, output_ends = zip(*(pipe(is_theirs_to_write=True) for _ in range(3)), strict=True)
        if has_stdin:
            stdin, of_stdin = pipe(is_theirs_to_write=False)
        else:
            stdin, of_stdin = None, os.open(os.devnull, os.O_RDONLY)
            program_ends.callback(os.close, of_stdin)
        request = {
            "argv": list(map(str, argv)),
            "cwd": str(cwd),
            "env": dict(os.environ if env is None else env),
            "num_senders": num_senders,
        }
        socket.send_fds(_server(project), [json.dumps(request).encode()], [of_stdin, *output_ends])
    out, err, replies = map(open, own_ends)
    return Fork(replies, None if stdin is None else open(stdin, "w"), out, err)


def start_real(
    *argv: object, cwd: Path = _PROJECT_DIR, env: Mapping[str, str] | None = None, has_stdin: bool = False
) -> subprocess.Popen[str]:
    """Start `python ARGV` as a new process, as a user does."""
    return subprocess.Popen(
        [sys.executable, *map(str, argv)],
        cwd=cwd,
        env=env,
        stdin=subprocess.PIPE if has_stdin else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*argv: object, timeout: float = 600, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program until it exits."""
    with start(*argv, **options) as fork:
        try:
            out, err = fork.communicate(timeout)
        finally:
            fork.kill()
    return subprocess.CompletedProcess(argv, fork.wait(), out, err)


_common_folder: Path | None = None


def share_with_other_workers(folder: Path) -> None:
    """Use one server for this project for all workers of this pytest run; its socket is in this folder."""
    global _common_folder
    _common_folder = folder


@functools.cache
def _server(project: Path) -> socket.socket:
    """Return a connection to the server that forks the programs of a folder.

    The server starts with the first program of any worker, and ends when all workers have closed their connections.
    """
    from pipeline.base.system import locks

    is_common = _common_folder is not None and project == _PROJECT_DIR
    path = (_common_folder if is_common and _common_folder else Path(tempfile.mkdtemp(prefix="forks-"))) / "forks"
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with locks.hold_lock(path.with_suffix(".lock")):
        server = None if path.exists() else _start_server(project, path)
        connection.connect(str(path))

    @atexit.register
    def end() -> None:
        connection.close()
        if server is not None:
            server.wait()
            if not is_common:
                shutil.rmtree(path.parent)

    return connection


def _start_server(project: Path, path: Path) -> subprocess.Popen[bytes]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(path))
        listening.listen(64)
        argv = [sys.executable, "-m", "tests.support.forks", str(listening.fileno())]
        environ = os.environ | _WITHOUT_THREADS
        environ.pop(processes.MARK_VARIABLE, None)  # a test may end all processes with the mark that it has set itself
        return subprocess.Popen(argv, cwd=project, env=environ, pass_fds=[listening.fileno()], stdin=subprocess.DEVNULL)


def serve(listening: socket.socket) -> None:
    """Fork a program for each request and report its exit status, until all clients have closed their connections."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in _MODULES:
        importlib.import_module(module)
    from mlflow.tracking import MlflowClient  # noqa: F401

    _compose()
    shorten_waits()
    assert len(os.listdir("/proc/self/task")) == 1, "the server has threads, which a fork would not have"
    gc.collect()
    gc.freeze()
    running: dict[int, tuple[int, int]] = {}  # by pidfd: PID, and descriptor for the status
    num_clients = 0
    with selectors.DefaultSelector() as selector:
        selector.register(listening, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is listening:
                    selector.register(listening.accept()[0], selectors.EVENT_READ)
                    num_clients += 1
                    continue
                if key.fd in running:
                    selector.unregister(key.fd)
                    pid, hears = running.pop(key.fd)
                    os.close(key.fd)
                    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                    with contextlib.suppress(BrokenPipeError):
                        os.write(hears, f"{status}\n".encode())
                    os.close(hears)
                    continue
                client = key.fileobj
                assert isinstance(client, socket.socket)
                data, descriptors, _, _ = socket.recv_fds(client, 1 << 20, 4)
                if not data:
                    selector.unregister(client)
                    client.close()
                    num_clients -= 1
                    if num_clients == 0:
                        return
                    continue
                *standard, hears = descriptors
                if (pid := os.fork()) == 0:
                    selector.close()
                    _become(json.loads(data), standard, hears)
                watched = os.pidfd_open(pid)
                running[watched] = pid, hears
                selector.register(watched, selectors.EVENT_READ)
                for descriptor in standard:
                    os.close(descriptor)


def shorten_waits() -> None:
    """Shorten the time in which a GPU process may be one that only starts CUDA; a simulated GPU has none of these."""
    from pipeline.prepare.device import gpu_reader

    gpu_reader._STARTS_WITHIN_S = 0.2


def _compose() -> None:
    """Compose a configuration, so that forks inherit the caches of OmegaConf and ANTLR; then reset Hydra."""
    from hydra.core.config_store import ConfigStore
    from hydra.core.singleton import Singleton

    from tests.support import experiments

    before = Singleton.get_state()
    experiments.composed_by_hydra([])
    store = ConfigStore.instance()
    Singleton.set_state(before)
    Singleton._instances[ConfigStore] = store


def _become(request: Mapping[str, Any], standard: Sequence[int], hears: int) -> None:
    """Run the program that a request names; this function does not return."""
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
    hears = os.dup2(hears, len(standard))
    os.closerange(hears + 1, 1024)
    os.chdir(request["cwd"])
    sender_pid = 0 if request["argv"][0] == "-m" else _prepare_senders(request["num_senders"])
    os.write(hears, f"{os.getpid()} {sender_pid}\n".encode())
    os.close(hears)
    _run(request["argv"], request["env"])


def _prepare_senders(num_senders: int) -> int:
    """Fork the later senders now, before this process has any state of its own; return the PID of the first.

    Each `Popen` of a sender uses one of these processes; unused ones end with this process.
    """
    prepared = [_prepare_sender() for _ in range(num_senders)]
    first = prepared[0][0]

    class Popen(subprocess.Popen[Any]):
        def _execute_child(self, args: Any, *arguments: Any) -> None:
            is_sender = isinstance(args, list) and [sys.executable, "-P", *_SENDER] == args[:4]
            if not prepared or not is_sender:
                super()._execute_child(args, *arguments)  # type: ignore[misc]
                return
            self.pid, connection = prepared.pop(0)
            cwd, env, has_session = arguments[4], arguments[5], arguments[20]
            reading, writing = arguments[9], arguments[12]
            assert cwd is None and min(reading, writing) >= 0
            sys.audit("subprocess.Popen", args[0], args, cwd, env)
            request = {"argv": args[2:], "env": dict(env), "has_session": has_session}
            with connection:
                socket.send_fds(connection, [json.dumps(request).encode()], [reading, writing, 2])
            self._child_created = True
            self._close_pipe_fds(*arguments[9:15])  # type: ignore[attr-defined]

    subprocess.Popen = Popen  # type: ignore[misc]
    return first


def _prepare_sender() -> tuple[int, socket.socket]:
    """Fork a process that becomes a sender on request; return its PID, and this process's end of the connection."""
    connection, sender_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if (pid := os.fork()) == 0:
        connection.close()
        _become_sender(sender_end)
    sender_end.close()
    return pid, connection


def _become_sender(connection: socket.socket) -> NoReturn:
    """Wait for a request, then run as a sender; exit if the connection is closed."""
    data, standard, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    if not data:
        os._exit(0)
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
    os.closerange(3, 1024)
    request = json.loads(data)
    if request["has_session"]:
        os.setsid()
    _run(request["argv"], request["env"])


def _run(argv: list[str], environ: Mapping[str, str]) -> NoReturn:
    """Run a program as the interpreter would; this function does not return."""
    os.environ.clear()
    os.environ.update(environ)
    tempfile.tempdir = None
    first = {"-m": os.getcwd(), "-c": ""}.get(argv[0], str(Path(argv[0]).resolve().parent))
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [first, *paths, *_OWN_PATH]
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    # From here on, an interrupt ends the program. Scripts of the project handle it from their first lines on; before
    # these lines, the process ends silently, whereas an interpreter would print a traceback of its own modules.
    is_script = argv[0] not in ("-m", "-c")
    signal.signal(signal.SIGINT, signal.SIG_DFL if is_script else signal.default_int_handler)
    try:
        with _exit_status() as status:
            if argv[0] == "-m":
                sys.argv = argv[1:]
                sys.modules.pop(argv[1], None)
                runpy.run_module(argv[1], run_name="__main__", alter_sys=True)
            elif argv[0] == "-c":
                sys.argv = ["-c", *argv[2:]]
                scope = {"__name__": "__main__", "__builtins__": builtins}
                exec(compile(argv[1], "<string>", "exec"), scope)
            else:
                sys.argv = argv
                runpy.run_path(argv[0], run_name="__main__")
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
    finally:
        os._exit(status[0])  # a normal exit would take longer than many programs


@contextlib.contextmanager
def _exit_status() -> Iterator[list[int]]:
    """Return the exit status of the body, as the interpreter determines it."""
    status = [1]
    try:
        yield status
        status[0] = 0
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            status[0] = (end.code or 0) & 0xFF
        else:
            print(end.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001  an interpreter reports each
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]


# The interpreter's own entries, without the folder of the program and the entries of PYTHONPATH.
_OWN_PATH = [
    path
    for path in sys.path
    if path not in {"", str(_PROJECT_DIR), *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
]

if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
