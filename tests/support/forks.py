"""Python programs as forks of a process that has imported what they import.

`start("run.py", ...)` stands for `subprocess.Popen([sys.executable, "run.py", ...])` with pipes: a process of its own
with its folder, environment, signals and exit status, without the four seconds of CPU time that importing Hydra, the
project and, in the process that talks to MLflow, MLflow takes. It differs in what comes from `exec`: the kernel shows
the command line and the environment of the server, and a signal that pytest ignores is not ignored. Tests of those, and
one of every kind of start, use real processes.
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

_PROJECT_DIR = Path(__file__).resolve().parents[2]
# What run.py, the process that talks to MLflow and the commands of the project import, sooner or later.
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
    """A program that runs, with the part of the interface of `subprocess.Popen` that tests use.

    Attributes:
        sender_pid: the first process that talks to MLflow for it, if it is run.py.
    """

    def __init__(self, replies: io.TextIOBase, stdin: IO[str] | None, stdout: IO[str], stderr: IO[str]) -> None:
        self._replies = replies
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr
        self.pid, self.sender_pid = map(int, replies.readline().split())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status, if it has ended."""
        return self._status_within(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, once it has ended."""
        if (status := self._status_within(timeout)) is None:
            raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0)
        return status

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it writes until its end."""
        deadline = None if timeout is None else time.monotonic() + timeout
        if self.stdin is not None:
            self.stdin.close()
        said = {self.stdout: "", self.stderr: ""}
        readers = [
            threading.Thread(target=lambda file=file: said.update({file: file.read()}), daemon=True) for file in said
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join(None if deadline is None else max(0, deadline - time.monotonic()))
            if reader.is_alive():
                raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0)
        self.wait(timeout)
        return said[self.stdout], said[self.stderr]

    def send_signal(self, signum: int) -> None:
        """Signal it, unless it is known to have ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended just now
                os.kill(self.pid, signum)

    def kill(self) -> None:
        """End it, as `kill -9` does."""
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
                    # Nothing comes if the server is gone; then nobody knows how the program ended.
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
    """Start what `python ARGV` would: `SCRIPT ...`, `-m MODULE ...` or `-c CODE ...`, with pipes.

    Args:
        project: the folder whose code it runs, if it is a copy: with this file and what it imports.
        num_senders: processes that talk to MLflow, one a study, that are forked too; further
            ones start from nothing.
    """
    with contextlib.ExitStack() as theirs:

        def pipe(*, is_theirs_to_write: bool) -> tuple[int, int]:
            """Our end and theirs."""
            ends = os.pipe() if is_theirs_to_write else os.pipe()[::-1]
            theirs.callback(os.close, ends[1])
            return ends

        ours, given = zip(*(pipe(is_theirs_to_write=True) for _ in range(3)), strict=True)
        if has_stdin:
            stdin, of_stdin = pipe(is_theirs_to_write=False)
        else:
            stdin, of_stdin = None, os.open(os.devnull, os.O_RDONLY)
            theirs.callback(os.close, of_stdin)
        request = {
            "argv": list(map(str, argv)),
            "cwd": str(cwd),
            "env": dict(os.environ if env is None else env),
            "num_senders": num_senders,
        }
        socket.send_fds(_server(project), [json.dumps(request).encode()], [of_stdin, *given])
    out, err, replies = map(open, ours)
    return Fork(replies, None if stdin is None else open(stdin, "w"), out, err)


def start_real(
    *argv: object, cwd: Path = _PROJECT_DIR, env: Mapping[str, str] | None = None, has_stdin: bool = False
) -> subprocess.Popen[str]:
    """Start `python ARGV` from nothing, as a user does."""
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
    """Run a program to its end."""
    with start(*argv, **options) as fork:
        try:
            out, err = fork.communicate(timeout)
        finally:
            fork.kill()
    return subprocess.CompletedProcess(argv, fork.wait(), out, err)


_common_folder: Path | None = None


def share_with_other_workers(folder: Path) -> None:
    """Take the process that forks programs of this project from a folder that all workers of this pytest have."""
    global _common_folder
    _common_folder = folder


@functools.cache
def _server(project: Path) -> socket.socket:
    """Our end of the socket of the process that forks the programs of a folder.

    It starts with the first program of any worker and ends with the last of them.
    """
    from pipeline.base.system import locks

    is_common = _common_folder is not None and project == _PROJECT_DIR
    path = (_common_folder if is_common and _common_folder else Path(tempfile.mkdtemp(prefix="forks-"))) / "forks"
    ours = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with locks.hold_lock(path.with_suffix(".lock")):
        server = None if path.exists() else _start_server(project, path)
        ours.connect(str(path))

    @atexit.register
    def end() -> None:
        ours.close()
        if server is not None:
            server.wait()
            if not is_common:
                shutil.rmtree(path.parent)

    return ours


def _start_server(project: Path, path: Path) -> subprocess.Popen[bytes]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(path))
        listening.listen(64)
        argv = [sys.executable, "-m", "tests.support.forks", str(listening.fileno())]
        environ = os.environ | _WITHOUT_THREADS
        return subprocess.Popen(argv, cwd=project, env=environ, pass_fds=[listening.fileno()], stdin=subprocess.DEVNULL)


def serve(listening: socket.socket) -> None:
    """Fork a program for each request, until everyone who has asked for some is gone, and say how each ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in _MODULES:
        importlib.import_module(module)
    from mlflow.tracking import MlflowClient  # noqa: F401

    _compose()
    shorten_waits()
    assert len(os.listdir("/proc/self/task")) == 1, "a thread would be missing in a fork"
    gc.collect()
    gc.freeze()
    running: dict[int, tuple[int, int]] = {}  # of the descriptor of each process: its number, and who hears its end
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
    """Who is on a simulated GPU stays: nobody has to see first whether it is a process that only starts CUDA."""
    from pipeline.prepare.device import gpu_reader

    gpu_reader._STARTS_WITHIN_S = 0.2


def _compose() -> None:
    """Keep what OmegaConf and ANTLR make of the configuration, and its schema; else Hydra starts anew in a fork."""
    from hydra.core.config_store import ConfigStore
    from hydra.core.singleton import Singleton

    from tests.support import experiments

    before = Singleton.get_state()
    experiments.composed_by_hydra([])
    store = ConfigStore.instance()
    Singleton.set_state(before)
    Singleton._instances[ConfigStore] = store


def _become(request: Mapping[str, Any], standard: Sequence[int], hears: int) -> None:
    """Be the program that a request names; does not return."""
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
    """Fork the processes that will talk to MLflow now, as children with nothing of our own state; the first's number.

    Each `Popen` of a sender wakes one; the others end when we do.
    """
    prepared = [_prepare_sender() for _ in range(num_senders)]
    first = prepared[0][0]

    class Popen(subprocess.Popen[Any]):
        def _execute_child(self, args: Any, *others: Any) -> None:
            is_sender = isinstance(args, list) and [sys.executable, "-P", *_SENDER] == args[:4]
            if not prepared or not is_sender:
                super()._execute_child(args, *others)  # type: ignore[misc]
                return
            self.pid, ours = prepared.pop(0)
            cwd, env, has_session = others[4], others[5], others[20]
            reading, writing = others[9], others[12]
            assert cwd is None and min(reading, writing) >= 0
            sys.audit("subprocess.Popen", args[0], args, cwd, env)
            request = {"argv": args[2:], "env": dict(env), "has_session": has_session}
            with ours:
                socket.send_fds(ours, [json.dumps(request).encode()], [reading, writing, 2])
            self._child_created = True
            self._close_pipe_fds(*others[9:15])  # type: ignore[attr-defined]

    subprocess.Popen = Popen  # type: ignore[misc]
    return first


def _prepare_sender() -> tuple[int, socket.socket]:
    """Fork a process that becomes a sender when it is asked, and ends if it is not; its number and our end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if (pid := os.fork()) == 0:
        ours.close()
        _become_sender(theirs)
    theirs.close()
    return pid, ours


def _become_sender(asked: socket.socket) -> NoReturn:
    """Be a sender once one is asked for."""
    data, standard, _, _ = socket.recv_fds(asked, 1 << 20, 3)
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
    """Run a program as the interpreter would; does not return."""
    os.environ.clear()
    os.environ.update(environ)
    tempfile.tempdir = None
    first = {"-m": os.getcwd(), "-c": ""}.get(argv[0], str(Path(argv[0]).resolve().parent))
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:] = [first, *paths, *_OWN_PATH]
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    # From here on it is the program that is interrupted. A script of ours handles that itself in its first lines; what
    # comes before them ends silently here, where an interpreter would say which of its own modules it was in.
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
        os._exit(status[0])  # taking down what the server imported would take longer than many a program


@contextlib.contextmanager
def _exit_status() -> Iterator[list[int]]:
    """The exit status of the body, as the interpreter finds it."""
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


# The interpreter's own: without the folder of the program and what PYTHONPATH added.
_OWN_PATH = [
    path
    for path in sys.path
    if path not in {"", str(_PROJECT_DIR), *os.environ.get("PYTHONPATH", "").split(os.pathsep)}
]

if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
