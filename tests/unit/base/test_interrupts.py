"""Signals become one exception, never in the middle of a step, and the first error of a stack wins."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager

import pytest

from pipeline.base.interrupts import UndoStack

SCRIPT = """
import os, signal, sys
from pipeline.base import interrupts
interrupts.install()
log = []
try:
    with interrupts.held():
        os.kill(os.getpid(), signal.{first})
        log.append("step finished")
    log.append("not reached")
except interrupts.Interrupted as error:
    os.kill(os.getpid(), signal.SIGINT)
    log.append(f"cleaned {{error.exit_status}}")
print(log)
"""


@pytest.mark.parametrize(("first", "status"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_waits_for_the_end_of_a_held_step_and_later_ones_are_ignored(first, status):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(first=first)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == str(["step finished", f"cleaned {status}"]), done.stderr


def test_where_nobody_catches_it_the_process_ends_with_its_status_and_no_traceback():
    code = "import os; from pipeline.base import interrupts; interrupts.install(); os.kill(os.getpid(), 2)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (130, "interrupted by SIGINT\n")


@pytest.mark.parametrize("body", ["time.sleep(60)", "with interrupts.held():\n    time.sleep(0.5)\n    held = True"])
def test_a_signal_that_comes_in_a_destructor_is_not_lost(body):
    code = (
        "import os, time; from pipeline.base import interrupts; interrupts.install()\n"
        "class Dies:\n    def __del__(self):\n        os.kill(os.getpid(), 15)\n        time.sleep(0)\n"
        f"Dies()\n{body}\ntime.sleep(60)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (143, "interrupted by SIGTERM\n")


def test_what_else_a_destructor_raises_is_shown():
    code = (
        "from pipeline.base import interrupts; interrupts.install()\n"
        "class Dies:\n    def __del__(self):\n        raise OSError('of its own')\n"
        "Dies()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and "OSError: of its own" in done.stderr


def test_a_destructor_that_fails_while_an_interruption_is_dealt_with_is_shown_and_interrupts_nothing():
    code = (
        "import os, time; from pipeline.base import interrupts; interrupts.install()\n"
        "class Dies:\n    def __del__(self):\n        raise OSError('of its own')\n"
        "try:\n    os.kill(os.getpid(), 15)\n    time.sleep(60)\n"
        "finally:\n    Dies()\n    time.sleep(0.3)\n    print('cleaned')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (143, "cleaned\n") and "OSError: of its own" in done.stderr


@contextmanager
def failing(name, undone):
    try:
        yield
    finally:
        undone.append(name)
        raise OSError(f"cannot undo {name}")


def test_a_library_that_breaks_while_it_is_interrupted_shows_no_traceback():
    code = (
        "import os; from pipeline.base import interrupts; interrupts.install()\n"
        "try:\n    os.kill(os.getpid(), 2)\nfinally:\n    unbound"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (130, "interrupted by SIGINT\n")


def test_the_first_error_wins_and_names_the_failed_cleanups():
    undone: list[str] = []
    with pytest.raises(ValueError, match="the body") as caught, UndoStack() as stack:
        stack.enter_context(failing("a", undone))
        stack.enter_context(failing("b", undone))
        raise ValueError("the body")
    assert undone == ["b", "a"]
    notes = "\n".join(caught.value.__notes__)
    assert "cannot undo a" in notes and "cannot undo b" in notes


def test_a_cleanup_that_fails_alone_is_raised():
    with pytest.raises(OSError, match="cannot undo a"), UndoStack() as stack:
        stack.enter_context(failing("a", []))
