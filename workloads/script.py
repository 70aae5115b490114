"""A job that runs any program unchanged: `python workloads/script.py SCRIPT [ARGS...]`.

A Python file is run by this interpreter, and an executable file directly. A bare name, such as `torchrun`, is searched
for in the folder of this interpreter, then on PATH. The script is a child process in the same process group, with the
same output, working directory and environment, but without a connection to the orchestrator. The measured time is from
the script's start, immediately after the common start of the group, to its exit. This process exits with the script's
status.

When the orchestrator sends stop, the script gets SIGTERM, and SIGKILL after 30 seconds; the job then succeeds,
whatever the script's status. Signals that request this process to end, such as SIGTERM and SIGUSR1, are forwarded to
the script, so the script gets a signal to the process group twice. Orphans of the script become children of this
process, whatever their session. Processes that outlive the script by five seconds are killed, and the job fails.

This module uses only the standard library of Python 3.8 or newer, and imports little (no `argparse`), so that this
process needs few resources next to the script. It uses `posix_spawn`, which sets the signal mask and avoids a fork of a
multi-threaded process.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import sys
import threading
import time

if __name__ == "__main__":  # reason: see workloads/__init__.py
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120

from workloads import client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_LOOK_S = 0.2
_HELPERS_END_S = 5.0  # time for helper processes, which may send the last data of a run to a tracking service
_TERM_S = 0.5
_STOP_S = 30.0  # time in which a script ends after SIGTERM, for example after it has written a checkpoint
_SHOWN_BYTES = 200
_CANNOT_START = 126  # exit status of a shell in this case
_OF_INTERPRETERS = (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC)
_PR_SET_CHILD_SUBREAPER = 36  # Source: linux/prctl.h
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)  # reset for the script, because a shell does not ignore them
_NOT_PASSED_ON = (
    *(signal.SIGKILL, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU, signal.SIGCONT, signal.SIGCHLD),
    *(signal.SIGURG, signal.SIGWINCH, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT),
    *(signal.SIGSYS, signal.SIGTRAP, *_IGNORED_BY_PYTHON),
)
_PASSED_ON = tuple(signal.valid_signals().difference(_NOT_PASSED_ON))  # signals that request a process to end


class ScriptError(SystemExit):
    """The script failed.

    If uncaught, this exception ends the process with the script's status, or 128 plus the number of its signal.
    """

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.code = status


class LeftRunningError(ScriptError):
    """The script exited, but left processes running."""


def run(job: client.NullJob, argv: list[str]) -> None:
    """Start the script together with the group's other jobs, and wait until the script exits.

    Raises:
        FileNotFoundError: the script does not exist; raised before the job is ready.
        ScriptError: the script cannot be started, or exited with a status other than 0 before it was stopped.
        LeftRunningError: the script exited with status 0, but left processes running.
    """
    script, command = argv[0], _command(argv)
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    job.ready()
    job.phase("train")
    pid = _start(command)
    job.process(pid)
    threading.Thread(target=_end_on_stop, args=(job, pid), name="script-stop", daemon=True).start()
    with _watch_output(job):
        end = _wait_for_end(pid)
        job.process_ended(end.si_status)
    was_stopped = job.stopping
    survivors = _end_survivors()
    if was_stopped:
        return
    if end.si_code != os.CLD_EXITED:
        raise ScriptError(f"{script} was killed by signal {end.si_status}", 128 + end.si_status)
    if end.si_status != 0:
        raise ScriptError(f"{script} ended with status {end.si_status}", end.si_status)
    if survivors:
        running = f"{len(survivors)} process{'es' if len(survivors) > 1 else ''} running ({', '.join(survivors)})"
        raise LeftRunningError(f"{script} ended but left {running}, now killed; let it wait for its children", 1)


def _command(argv: list[str]) -> list[str]:
    script, *arguments = argv
    if os.path.isfile(script):  # noqa: PTH113
        is_python = script.endswith(".py") or not os.access(script, os.X_OK)
        return [sys.executable, *argv] if is_python else [os.path.abspath(script), *arguments]  # noqa: PTH100
    if script == "python":
        return [sys.executable, *arguments]
    folders = [os.path.dirname(sys.executable), *os.get_exec_path()]  # noqa: PTH120
    places = [] if os.path.dirname(script) else [os.path.join(folder, script) for folder in folders]  # noqa: PTH118, PTH120
    for place in places:
        if os.path.isfile(place) and os.access(place, os.X_OK):  # noqa: PTH113
            return [place, *arguments]
    raise FileNotFoundError(f"{script}: no such script or program (looked for in {os.getcwd()} and on PATH)")  # noqa: PTH109


def _start(command: list[str]) -> int:
    """Start the script and forward signals to it from its start on; return its PID."""
    environ = {name: value for name, value in os.environ.items() if name != client.FOLDER_VARIABLE}
    old = signal.pthread_sigmask(signal.SIG_BLOCK, _PASSED_ON)
    try:
        default = (*_PASSED_ON, *_IGNORED_BY_PYTHON)
        pid = os.posix_spawn(command[0], command, environ, setsigmask=(), setsigdef=default)

        for number in _PASSED_ON:
            signal.signal(number, lambda received, _: os.kill(pid, received))
    except OSError as error:
        raise _cannot_start(command[0], error) from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)
    return pid


def _cannot_start(program: str, error: OSError) -> ScriptError:
    first = b""
    with contextlib.suppress(OSError), open(program, "rb") as file:  # noqa: PTH123
        first = file.readline(_SHOWN_BYTES).rstrip(b"\n")
    message = f"{program} cannot be started: {error.strerror}"
    if first.startswith(b"#!") and error.errno in _OF_INTERPRETERS:
        message += f"; check the interpreter in its first line, {first.decode(errors='backslashreplace')!r}"
    elif error.errno == errno.ENOEXEC:
        message += "; begin it with a line such as #!/bin/sh, or write `sh` before it"
    sys.stderr.write(f"{message}\n")
    return ScriptError(message, _CANNOT_START)


def _end_on_stop(job: client.NullJob, pid: int) -> None:
    if job.wait_stop():
        os.kill(os.getpid(), signal.SIGTERM)  # forwarded to the script
        time.sleep(_STOP_S)
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_IGN:  # the script has not ended
            os.kill(pid, signal.SIGKILL)


def _wait_for_end(pid: int) -> os.waitid_result:
    """Wait until the script exits, reaping its orphans meanwhile; then stop forwarding signals."""
    while True:
        # WNOWAIT does not reap the script, so its PID cannot be reused while signals are forwarded to it.
        end = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        assert end is not None
        if end.si_pid == pid:
            for number in _PASSED_ON:
                signal.signal(number, signal.SIG_IGN)
        os.waitpid(end.si_pid, 0)
        if end.si_pid == pid:
            return end


def _end_survivors() -> list[str]:
    if _are_gone(_HELPERS_END_S):
        return []
    survivors = _children()
    signum = signal.SIGTERM
    end_s = time.monotonic() + 4 * _TERM_S
    while time.monotonic() < end_s:
        for pid in _children():  # including processes whose parent has just ended
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signum)
        if _are_gone(_TERM_S):
            break
        signum = signal.SIGKILL
    return [f"{pid} {name}" for pid, name in survivors.items()]


def _are_gone(limit_s: float) -> bool:
    """Wait until all children have exited, up to a limit; return whether all have exited."""
    end_s = time.monotonic() + limit_s
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < end_s:
            if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG) is None:
                time.sleep(0.01)
        return False
    return True


def _children() -> dict[int, str]:
    names = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", errors="replace") as file:  # noqa: PTH123
            name, _, fields = file.read().partition("(")[2].rpartition(")")
            if fields.split()[1] == str(os.getpid()):
                names[int(entry)] = name
    return names


@contextlib.contextmanager
def _watch_output(job: client.NullJob) -> Iterator[None]:
    """If the job watches its output, record when the output grows, so that each line has a time.

    The script writes directly to the output files, so watching does not slow it down.
    """
    if not job.watches_output:
        yield
        return
    over = threading.Event()

    def watch() -> None:
        seen = (0, 0)
        while not over.wait(_LOOK_S):
            sizes = (os.fstat(1).st_size, os.fstat(2).st_size)
            if sizes != seen:
                job.output_size(*sizes)
                seen = sizes

    watcher = threading.Thread(target=watch, name="script-output", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def main() -> None:
    """Run the script given on the command line."""
    if len(sys.argv) < 2:
        sys.stderr.write("usage: script.py SCRIPT [ARGS...]\n")
        raise SystemExit(2)
    with client.attach() as job:
        run(job, sys.argv[1:])


if __name__ == "__main__":
    main()
