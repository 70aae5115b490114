"""A child process that runs a function of ours behaves as a program that was started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from pipeline.base import command
from pipeline.base.forked import Forked
from pipeline.base.paths import PROJECT_DIR


def shout() -> int:
    assert os.getsid(0) == os.getpid()
    os.write(1, sys.stdin.readline().upper().encode())
    return 3


def test_it_has_pipes_a_session_and_an_exit_status() -> None:
    child = Forked(shout)
    assert child.stdin is not None and child.stdout is not None
    with child.stdin, child.stdout:
        child.stdin.write(b"hello\n")
        child.stdin.flush()
        assert child.stdout.read() == b"HELLO\n"
    assert command.status_at_end(child, 10) == child.wait() == 3


def test_what_it_raises_is_said_and_is_status_1(capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        raise ValueError("no such thing")

    assert Forked(fail).wait() == 1
    assert "ValueError: no such thing" in capfd.readouterr().err


def test_it_ends_by_a_signal_whatever_its_parent_makes_of_one() -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        child = Forked(lambda: time.sleep(60) or 0)
    finally:
        signal.signal(signal.SIGTERM, before)
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0)
    while signal.SIGTERM in handled_by(child.pid):
        time.sleep(0.01)
    os.kill(child.pid, signal.SIGTERM)
    assert child.wait() == -signal.SIGTERM
    child.kill()


def test_a_child_may_end_with_its_parent() -> None:
    text = "import os, subprocess; from pipeline.base import forked; "
    text += "child = subprocess.Popen(['sleep', '60'], stdout=2, preexec_fn=forked.end_with_parent); "
    text += "print(child.pid, flush=True); os._exit(0)"
    done = subprocess.run([sys.executable, "-c", text], stdout=subprocess.PIPE, check=True, cwd=PROJECT_DIR)
    until_s = time.monotonic() + 10
    while is_alive(int(done.stdout)):
        assert time.monotonic() < until_s
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def handled_by(pid: int) -> set[int]:
    """The signals that a process has a handler for."""
    with open(f"/proc/{pid}/status") as file:
        mask = next(int(line.split()[1], 16) for line in file if line.startswith("SigCgt:"))
    return {number for number in range(1, 65) if mask >> (number - 1) & 1}
