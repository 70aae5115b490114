"""Every signal that asks a process to end, as one exception that never breaks a step in the middle.

The first signal raises `Interrupted` in the main thread, at once or, inside `hold_interrupts()`, at its end.
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
_PYTHON_IGNORES = frozenset((signal.SIGPIPE, signal.SIGXFSZ))  # it makes an OSError of each
_ENDS_NOTHING = frozenset(
    (
        *(signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH),
        *(signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
    )
)
SIGNALS = frozenset(signal.valid_signals() - _FAULTS - _PYTHON_IGNORES - _ENDS_NOTHING - {signal.SIGKILL})
"""Those whose default action ends a process, and after which it can still end in order; the real-time ones as well.

Slurm, preemption and limits of CPU time send SIGUSR1, SIGUSR2, SIGXCPU and others. Source: signal(7).
"""
_AGAIN_S = 0.02
_depth = 0
_received: int | None = None
_raised = False


class Interrupted(BaseException):
    """The user or the system asked this process to end."""

    def __init__(self, signum: int) -> None:
        self.signum = signum
        super().__init__(f"interrupted by {name_signal(signum)}")

    @property
    def exit_status(self) -> int:
        """128 + signal, as shells report it: 130 after Ctrl-C, 143 after SIGTERM."""
        return 128 + self.signum


def name_signal(signum: int) -> str:
    """Name a signal as signal(7) does; most of the real-time ones have no name of their own: `SIGRTMIN+3`."""
    try:
        return signal.Signals(signum).name
    except ValueError:
        return f"SIGRTMIN{signum - signal.SIGRTMIN:+d}"


def install() -> None:
    """Handle the signals in this process from now on. Only programs call this, never an import.

    A signal that the starter of this process had ignored ends nothing: that is how `nohup` works. One that somebody
    handles already, as a profiler does, stays theirs. Where nobody catches `Interrupted`, the process ends with its
    exit status and without a traceback.

    Programs that this process starts have the default action of each of them, and none blocked: a handler does not
    outlive `exec`, but an ignored signal does, so what was ignored gets a handler that does nothing.
    """
    sys.excepthook = _leave
    sys.unraisablehook = _raise_again
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored by the starter, nobody would know how children ended
    for signum in SIGNALS:
        handler = signal.getsignal(signum)
        if handler is signal.SIG_IGN:
            signal.signal(signum, _disregard)
            signal.siginterrupt(signum, False)
        elif handler in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(signum, _receive)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # last: what was blocked, and has come, comes now


@contextmanager
def inherit_ignored() -> Iterator[None]:
    """Let programs that are started in the body ignore what the starter of this process had ignored.

    But for SIGTERM, by which they are ended.
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
    """Ignore the signals, in a process that serves another one and ends when that does."""
    for signum in SIGNALS:
        signal.signal(signum, signal.SIG_IGN)


@contextmanager
def hold_interrupts() -> Iterator[None]:
    """Delay `Interrupted` until the body is done; in the main thread, as no other gets signals."""
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
    """Raise `Interrupted` at once inside the body, within a held part: for work that may take long and loses nothing.

    A signal that came in the held part is raised on entering. After the first, no further one is raised.
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
    """Return whether `Interrupted` was raised in this process: what is left is cleanup, and must not take long."""
    return _raised


def find_interruption(error: BaseException | None) -> Interrupted | None:
    """Return the interruption behind an error: itself, or what a library was handling when it failed."""
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
    os._exit(error.exit_status)  # Python itself would say 1


def _raise_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Deal with what was raised where nobody can catch it, as in a destructor: an interruption comes once more.

    An error that a destructor raises while an interruption is dealt with comes from that one, but did not swallow it.
    """
    global _depth, _raised
    if (interruption := find_interruption(unraisable.exc_value)) is None or interruption is find_interruption(
        sys.exception()
    ):
        sys.__unraisablehook__(unraisable)
        return
    _depth += 1  # nor would anybody catch it here
    _raised = False
    with suppress(RuntimeError):  # this process is about to end anyway
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
    """An `ExitStack` for things that must be undone: entering and leaving are held, and the first error wins.

    A plain `ExitStack` reports the error of a cleanup and hides the one that made the cleanup necessary.
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
