"""Signals become one exception, never in the middle of a step, and the first error of a stack wins."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

from pipeline.base.system.interrupts import UndoStack

SCRIPT = """
import os, signal, sys
from pipeline.base.system import interrupts
interrupts.install()
log = []
try:
    with interrupts.hold_interrupts():
        os.kill(os.getpid(), signal.{first})
        log.append("step finished")
    log.append("not reached")
except interrupts.Interrupted as error:
    os.kill(os.getpid(), signal.SIGINT)
    log.append(f"cleaned {{error.exit_status}}")
print(log)
"""


@pytest.mark.parametrize(("first", "status"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGUSR1", 138)])
def test_a_signal_waits_for_the_end_of_a_held_step_and_later_ones_are_ignored(first, status):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(first=first)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == str(["step finished", f"cleaned {status}"]), done.stderr


def test_where_nobody_catches_it_the_process_ends_with_its_status_and_no_traceback():
    code = "import os; from pipeline.base.system import interrupts; interrupts.install(); os.kill(os.getpid(), 2)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (130, "interrupted by SIGINT\n")


# Each signal in a fork: the status by which it ended, or None where it ran to its end.
ENDS_BY = """
import json, os, resource, signal, sys, time
from pipeline.base.system import interrupts
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
for number in {ignored}:
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, {blocked})
statuses = {{}}
for number in {sent}:
    sys.stdout.flush()
    if (pid := os.fork()) == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        interrupts.install()
        os.kill(os.getpid(), number)
        time.sleep({wait_s})
        os._exit(0)
    statuses[int(number)] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(json.dumps(statuses))
"""


def ends_by(sent: str, ignored: str = "()", blocked: str = "()", wait_s: float = 60) -> dict[int, int]:
    """How a program ends that gets a signal, by its number: its status, negative where the kernel ended it."""
    code = ENDS_BY.format(sent=sent, ignored=ignored, blocked=blocked, wait_s=wait_s)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    return {int(number): status for number, status in json.loads(done.stdout).items()}


def test_every_signal_that_would_end_the_process_ends_it_in_order():
    theirs = (signal.SIGPIPE, signal.SIGXFSZ)  # Python ignores them
    faults = (
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGABRT,
        signal.SIGSYS,
        signal.SIGTRAP,
    )
    endings = ends_by(
        "sorted(signal.valid_signals() - {signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})", wait_s=0.02
    )
    expected = {
        number: -number if number in (*faults, signal.SIGKILL) else 128 + number
        for number in endings.keys() - {*theirs, signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH}
    }
    assert endings == dict.fromkeys(endings, 0) | expected
    assert {signal.SIGUSR1, signal.SIGXCPU, signal.SIGALRM, signal.SIGQUIT, signal.SIGRTMIN + 3} <= expected.keys()


def test_what_the_starter_ignored_ends_nothing_and_what_it_blocked_does():
    sent = "(signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM)"
    endings = ends_by(sent, ignored="(signal.SIGHUP, signal.SIGUSR1)", blocked=sent, wait_s=0.02)
    assert endings == {signal.SIGHUP: 0, signal.SIGUSR1: 0, signal.SIGUSR2: 140, signal.SIGTERM: 143}


def test_children_have_default_actions_and_none_blocked_whatever_the_starter_did():
    code = (
        "import signal, subprocess; from pipeline.base.system import interrupts\n"
        "for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGRTMIN): signal.signal(number, signal.SIG_IGN)\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR2})\n"
        "interrupts.install()\n"
        "show = ['grep', '-E', 'Sig(Blk|Ign)', '/proc/self/status']\n"
        "subprocess.run(show)\n"
        "with interrupts.inherit_ignored():\n    subprocess.run(show)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    of_libc = 3 << 31  # 32 and 33, which a program that `make` has started may ignore, and nobody can set
    masks = [int(line.split()[1], 16) & ~of_libc for line in done.stdout.splitlines()]
    ignored = sum(1 << number - 1 for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGRTMIN))
    assert masks == [0, 0, 0, ignored], done.stdout + done.stderr


def test_a_handler_of_somebody_else_stays():
    code = (
        "import os, signal; from pipeline.base.system import interrupts\n"
        "signal.signal(signal.SIGPROF, lambda *_: print('profiled'))\n"
        "interrupts.install()\nos.kill(os.getpid(), signal.SIGPROF)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "profiled\n")


@pytest.mark.slow
def test_at_its_limit_of_cpu_time_a_program_still_ends_in_order_and_its_children_have_the_whole():
    code = (
        "import resource, subprocess, sys; from pipeline.base.system import cpu_limit, interrupts\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (2, 2)); cpu_limit.reserve_time(); interrupts.install()\n"
        "child = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
        "cpu_limit.hand_on_limit(child.pid)\n"
        "print(resource.prlimit(child.pid, resource.RLIMIT_CPU), flush=True)\n"
        "while True: pass"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (128 + signal.SIGXCPU, "(2, 2)\n")
    assert "interrupted by SIGXCPU\n" in done.stderr


@pytest.mark.parametrize(
    "body", ["time.sleep(60)", "with interrupts.hold_interrupts():\n    time.sleep(0.5)\n    held = True"]
)
def test_a_signal_that_comes_in_a_destructor_is_not_lost(body):
    code = (
        "import os, time; from pipeline.base.system import interrupts; interrupts.install()\n"
        "class Dies:\n    def __del__(self):\n        os.kill(os.getpid(), 15)\n        time.sleep(0)\n"
        f"Dies()\n{body}\ntime.sleep(60)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (143, "interrupted by SIGTERM\n")


def test_what_else_a_destructor_raises_is_shown():
    code = (
        "from pipeline.base.system import interrupts; interrupts.install()\n"
        "class Dies:\n    def __del__(self):\n        raise OSError('of its own')\n"
        "Dies()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0 and "OSError: of its own" in done.stderr


def test_a_destructor_that_fails_while_an_interruption_is_dealt_with_is_shown_and_interrupts_nothing():
    code = (
        "import os, time; from pipeline.base.system import interrupts; interrupts.install()\n"
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
        "import os; from pipeline.base.system import interrupts; interrupts.install()\n"
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
