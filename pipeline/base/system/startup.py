"""The start of a program: standard streams whose errors do not end it, and signals that end it with a cleanup.

Programs call this in their first lines; importing this module has no effect. Some of the CPU time limit (`ulimit -t`)
is reserved for cleanup: at the soft limit the kernel sends SIGXCPU, which `interrupts` handles; at the hard limit it
sends SIGKILL. If both limits are equal, it sends only SIGKILL. The soft limit of this process is therefore lowered; its
child processes get the original limits.
"""

from __future__ import annotations

import errno
import io
import os
import resource
import select
import sys
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from pipeline.base.system import interrupts

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from _typeshed import ReadableBuffer


_WARNINGS = "PYTHONWARNINGS"
_IGNORED_BY_PYTHON = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)
_WITHOUT_READER = frozenset((errno.EPIPE, errno.EIO))  # a pipe or terminal whose other end is closed

job_variables: dict[str, str] = {}
"""Environment variables that apply to the measured programs but not to the orchestrator."""


def begin() -> None:
    """Start a program that a signal can end at any time; exit if there is no working directory."""
    open_streams()
    drop_warning_errors()
    reserve_cpu_time()
    interrupts.install()
    try:
        os.getcwd()  # noqa: PTH109  pathlib is not imported yet
    except OSError as error:
        sys.stderr.write(
            f"error: the working directory cannot be used: {error.strerror}; change to another directory\n"
        )
        sys.exit(2)


def run(main: Callable[[], int]) -> NoReturn:
    """Run a program whose output is its result: if the output cannot be written, the exit status is at least 1."""
    begin()
    try:
        status = main()
    except SystemExit as end:  # from argparse
        if not isinstance(end.code, int | None):
            raise
        status = end.code or 0
    sys.exit(check_output(status))


def open_streams() -> None:
    """Open the three standard streams, which discard output that cannot be written without raising an error.

    If the parent closed a descriptor, it would otherwise be reused for the next opened file, which would then receive
    the output.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest free number
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = open_stream(1, sys.stdout, is_by_line=os.isatty(1))
    sys.stderr = open_stream(2, sys.stderr, is_by_line=True)


def open_stream(descriptor: int, before: TextIO | None = None, *, is_by_line: bool = False) -> TextIO:
    """Open a descriptor as a text stream in the encoding of the previous one; unsupported characters are escaped."""
    return io.TextIOWrapper(
        io.BufferedWriter(_Output(descriptor, "wb", closefd=False)),
        encoding="utf-8" if before is None else before.encoding,
        errors="backslashreplace",
        line_buffering=is_by_line,
        write_through=getattr(before, "write_through", False),
    )


def drop_warning_errors() -> None:
    """Prevent library warnings from raising errors here: PYTHONWARNINGS=error applies to the user's programs only."""
    if _WARNINGS in os.environ:
        job_variables[_WARNINGS] = os.environ.pop(_WARNINGS)
    if any(action == "error" for action, *_ in warnings.filters):
        warnings.resetwarnings()
        for category in _IGNORED_BY_PYTHON:
            warnings.simplefilter("ignore", category)


def check_output(status: int) -> int:
    """Return an exit status, changed from 0 to 1 if output was lost although it had a reader."""
    with suppress(ValueError):  # the stream is closed
        sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return max(status, 1) if isinstance(raw, _Output) and raw.is_incomplete else status


def accept_lost_output() -> None:
    """Reset the record of lost output, because the content of the output is also stored."""
    with suppress(ValueError):  # the stream is closed
        sys.stdout.flush()
    if isinstance(raw := getattr(getattr(sys.stdout, "buffer", None), "raw", None), _Output):
        raw.is_incomplete = False


class _Output(io.FileIO):
    """A standard stream that raises no error after its reader has ended.

    Attributes:
        is_incomplete: whether output was lost although it had a reader, as on a full disk.
    """

    is_incomplete = False

    def write(self, data: ReadableBuffer) -> int:
        """Write a text; discard it if it cannot be written."""
        while True:
            try:
                written = super().write(data)
            except OSError as error:
                self._lose(error)
                return memoryview(data).nbytes
            if written is not None:
                return written
            select.select([], [self], [])  # another program has made the descriptor non-blocking

    def _lose(self, error: OSError) -> None:
        if error.errno in _WITHOUT_READER:  # child processes get the null device too
            nobody = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nobody, self.fileno())
            os.close(nobody)
        elif not self.is_incomplete:
            self.is_incomplete = True
            if self.fileno() == 1:
                sys.stderr.write(f"error: standard output cannot be written: {error.strerror}\n")


_MOST_S = 10
"""Reserved CPU time; at most a tenth of the limit. Ending two jobs that ignore SIGTERM took 2.2 s."""
_given: tuple[int, int] | None = None


def reserve_cpu_time() -> None:
    """Lower the soft limit of this process if reaching it would mean SIGKILL. Only programs call this."""
    global _given
    soft, hard = resource.getrlimit(resource.RLIMIT_CPU)
    if hard != resource.RLIM_INFINITY and soft == hard > 1:
        _given = soft, hard
        resource.setrlimit(resource.RLIMIT_CPU, (hard - max(1, min(_MOST_S, hard // 10)), hard))


def hand_on_limit(pid: int) -> None:
    """Give a newly started child the original limits of this process."""
    if _given is not None:
        with suppress(OSError):  # the child has ended
            resource.prlimit(pid, resource.RLIMIT_CPU, _given)
