"""The start of a program: standard streams that cannot make it fail, and signals that end it in order.

Only programs call this, in their first lines, never an import.
"""

from __future__ import annotations

import errno
import io
import os
import select
import sys
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

from pipeline.base.system import cpu_limit, interrupts

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from _typeshed import ReadableBuffer

_WARNINGS = "PYTHONWARNINGS"
_IGNORED_BY_PYTHON = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)
_WITHOUT_READER = frozenset((errno.EPIPE, errno.EIO))  # a pipe or terminal whose other end is closed

job_variables: dict[str, str] = {}
"""Environment variables meant for the measured programs, which we do not follow ourselves."""


def begin() -> None:
    """Start a program that a signal can end at any time; exit if there is no working directory."""
    open_streams()
    drop_warning_errors()
    cpu_limit.reserve_time()
    interrupts.install()
    try:
        os.getcwd()  # noqa: PTH109  without pathlib, which nothing else needs yet
    except OSError as error:
        sys.stderr.write(f"error: the working directory cannot be used: {error.strerror}; change to another one\n")
        sys.exit(2)


def run(main: Callable[[], int]) -> NoReturn:
    """Run a program whose output is its result: if that cannot be written, the exit status is at least 1."""
    begin()
    try:
        status = main()
    except SystemExit as end:  # from argparse
        if not isinstance(end.code, int | None):
            raise
        status = end.code or 0
    sys.exit(check_output(status))


def open_streams() -> None:
    """Open three standard streams, and discard without an error what cannot be written to them.

    Otherwise a descriptor that the parent closed would be reused for the next opened file, into which output would go.
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
    """Prevent that library warnings raise errors here: PYTHONWARNINGS=error is meant for the user's programs."""
    if _WARNINGS in os.environ:
        job_variables[_WARNINGS] = os.environ.pop(_WARNINGS)
    if any(action == "error" for action, *_ in warnings.filters):
        warnings.resetwarnings()
        for category in _IGNORED_BY_PYTHON:
            warnings.simplefilter("ignore", category)


def check_output(status: int) -> int:
    """Return an exit status, changed from 0 to 1 if output was lost that had a reader."""
    with suppress(ValueError):  # it is closed
        sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return max(status, 1) if isinstance(raw, _Output) and raw.is_incomplete else status


def accept_lost_output() -> None:
    """Count output lost so far as written, because its content is stored elsewhere."""
    with suppress(ValueError):  # it is closed
        sys.stdout.flush()
    if isinstance(raw := getattr(getattr(sys.stdout, "buffer", None), "raw", None), _Output):
        raw.is_incomplete = False


class _Output(io.FileIO):
    """A standard stream that outlives its reader.

    Attributes:
        is_incomplete: whether output was lost that had a reader, as on a full disk.
    """

    is_incomplete = False

    def write(self, data: ReadableBuffer) -> int:
        """Write a text; discard what cannot be written."""
        while True:
            try:
                written = super().write(data)
            except OSError as error:
                self._lose(error)
                return memoryview(data).nbytes
            if written is not None:
                return written
            select.select([], [self], [])  # another program has made it non-blocking

    def _lose(self, error: OSError) -> None:
        if error.errno in _WITHOUT_READER:  # child processes get the null device too
            nobody = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nobody, self.fileno())
            os.close(nobody)
        elif not self.is_incomplete:
            self.is_incomplete = True
            if self.fileno() == 1:
                sys.stderr.write(f"error: standard output cannot be written: {error.strerror}\n")
