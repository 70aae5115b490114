"""Signals that ask a process to end, converted to an exception that does not interrupt indivisible steps.

The first signal raises `Interrupted` in the main thread: at once or, within `hold_interrupts()`, when its body ends.
Every later signal is ignored: the first one has already started the cleanup, and each step of a cleanup has a deadline.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from types import FrameType, TracebackType
from typing import TypeVar

T = TypeVar("T")

_FAULTS = frozenset(
    (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT, signal.SIGSYS, signal.SIGTRAP)
)
_PYTHON_IGNORES = frozenset((signal.SIGPIPE, signal.SIGXFSZ))  # Python raises OSError instead
_ENDS_NOTHING = frozenset(
    (
        *(signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH),
        *(signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
    )
)
SIGNALS = frozenset(signal.valid_signals() - _FAULTS - _PYTHON_IGNORES - _ENDS_NOTHING - {signal.SIGKILL})
"""Signals whose default action ends a process that could still end in order; includes real-time signals.

Slurm, preemption and CPU time limits send SIGUSR1, SIGUSR2, SIGXCPU and others. Source: signal(7).
"""
_AGAIN_S = 0.02
_depth = 0
_received: int | None = None
_raised = False


class Interrupted(BaseException):
    """A signal from the user or the system asked this process to end."""

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__(f"interrupted by {name_signal(signum)}")

    @property
    def exit_status(self) -> int:
        """128 + signal, as shells report it: 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + self.signum


def name_signal(signum: int) -> str:
    """Return a signal's name as in signal(7); most real-time signals are relative: `SIGRTMIN+3`."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"SIGRTMIN{signum - signal.SIGRTMIN:+d}"


def install() -> None:
    """Handle the signals in this process from now on. Only programs call this, never an import.

    A signal that the parent ignored remains ignored, as `nohup` requires. A signal that already has a handler, for
    example of a profiler, keeps the handler. An uncaught `Interrupted` ends the process with its exit status and
    without a traceback.

    Programs started by this process have the default action for each signal, and no signal is blocked. Because `exec`
    resets handlers but not ignored signals, ignored signals get a handler that does nothing.
    """
    sys.excepthook = _leave
    sys.unraisablehook = _raise_again
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if the parent ignored it, the exit status of children would be lost
    for signum in SIGNALS:
        handler = signal.getsignal(signum)
        if handler is signal.SIG_IGN:
            signal.signal(signum, _disregard)
            signal.siginterrupt(signum, False)
        elif handler in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(signum, _receive)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # last: signals that were blocked are delivered now


@contextmanager
def inherit_ignored() -> Iterator[None]:
    """Make programs started in the body ignore the signals that the parent of this process ignored.

    SIGTERM is excepted and ends these programs.
    """
    ignored = [signum for signum in SIGNALS - {signal.SIGTERM} if signal.getsignal(signum) is _disregard]
    for signum in ignored:
        signal.signal(signum, signal.SIG_IGN)
    try:
        yield
    finally:
        for signum in ignored:
            signal.signal(signum, _disregard)
            signal.siginterrupt(signum, False)


def ignore() -> None:
    """Ignore the signals, in a process that serves another one and ends with it."""
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


@contextmanager
def hold_interrupts() -> Iterator[None]:
    """Delay `Interrupted` until the end of the body; without effect outside the main thread, which handles signals."""
    global _depth
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
    if _depth == 0:
        _raise_if_received()


@contextmanager
def allow() -> Iterator[None]:
    """Raise `Interrupted` at once in this body within `hold_interrupts()`: for long work that may be interrupted.

    A signal that was received before this body is raised on entering. Only the first signal is raised.
    """
    global _depth
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    depth, _depth = _depth, 0
    try:
        _raise_if_received()
        yield
    finally:
        _depth = depth


def has_ended_work() -> bool:
    """Return whether `Interrupted` was raised in this process; only a short cleanup may follow."""
    return _raised


def check() -> None:
    """Raise `Interrupted` if a signal was received, even if it was raised already: a library may have caught it."""
    if _received is not None:
        raise Interrupted(_received)


def find_interruption(error: BaseException | None) -> Interrupted | None:
    """Find the interruption that caused an error: the error itself, or an interruption in its context."""
    while error is not None and not isinstance(error, Interrupted):
        error = error.__cause__ or error.__context__
    return error


def _leave(kind: type[BaseException], failure: BaseException, trace: TracebackType | None) -> None:
    if (error := find_interruption(failure)) is None:
        sys.__excepthook__(kind, failure, trace)
        return
    with suppress(OSError):
        sys.stdout.flush()
    sys.stderr.write(f"{error}\n")
    sys.stderr.flush()
    os._exit(error.exit_status)  # Python itself would return 1


def _raise_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Raise an interruption again that no code can catch, because it was raised in a destructor, for example.

    An error that a destructor raises during an interruption has the interruption as its context but does not end it.
    """
    global _depth, _raised
    if (interruption := find_interruption(unraisable.exc_value)) is None or interruption is find_interruption(
        sys.exception()
    ):
        sys.__unraisablehook__(unraisable)
        return
    _depth += 1  # no code could catch an interruption here either
    _raised = False
    with suppress(RuntimeError):  # a thread cannot be started because this process is ending
        threading.Thread(target=_signal_until_raised, daemon=True).start()
    _depth -= 1


def _signal_until_raised() -> None:
    while True:
        time.sleep(_AGAIN_S)
        if _raised or _received is None:
            return
        os.kill(os.getpid(), _received)


def _disregard(_signum: int, _frame: FrameType | None) -> None:
    """Do nothing."""


def _receive(signum: int, _frame: FrameType | None) -> None:
    global _received
    if _received is None:
        _received = signum
    if _depth == 0:
        _raise_if_received()


def _raise_if_received() -> None:
    global _raised
    if _received is not None and not _raised:
        _raised = True
        raise Interrupted(_received)


class UndoStack(ExitStack):
    """An `ExitStack` for undo functions: holds interrupts while entering and leaving, and raises the first error.

    A plain `ExitStack` raises the error of a cleanup and hides the error that caused the cleanup.
    """

    def enter_context(self, cm: AbstractContextManager[T, bool | None]) -> T:
        with hold_interrupts():
            return super().enter_context(cm)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        with hold_interrupts():
            try:
                return super().__exit__(kind, error, trace)
            except Exception as cleanup:
                if error is None:
                    raise
                failure: BaseException | None = cleanup
                while failure is not None and failure is not error:
                    error.add_note(f"while cleaning up: {type(failure).__name__}: {failure}")
                    failure = failure.__context__
                return False
