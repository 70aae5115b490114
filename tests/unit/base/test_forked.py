"""A child that another process forks behaves as a program that was started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

import psutil
import pytest

from pipeline.base import forked
from pipeline.base.forked import Forked
from pipeline.base.paths import PROJECT_DIR


def shout() -> int:
    assert os.getsid(0) == os.getpid()
    os.write(1, sys.stdin.readline().upper().encode())
    return 3


def fail() -> int:
    raise ValueError("no such thing")


def rest() -> int:
    time.sleep(60)
    return 0


KINDS = {each.__name__: each for each in (shout, fail, rest)}


def be(request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
    forked.begin(descriptors)
    sys.stderr = os.fdopen(2, "w", closefd=False)  # pytest has put something else there
    return KINDS[request["kind"]]()


@pytest.fixture
def asks() -> Iterator[socket.socket]:
    """Our end of the socket of a process that forks; a child of this one, which handles SIGTERM."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if (pid := os.fork()) == 0:
        ours.close()
        signal.signal(signal.SIGTERM, lambda *_: None)
        forked.leave(lambda: forked.serve(theirs, be))
    theirs.close()
    yield ours
    ours.close()
    assert os.waitpid(pid, 0)[1] == 0


def child_of(asks: socket.socket, kind: str, **request: Any) -> tuple[Forked, BinaryIO, BinaryIO]:
    """A child with pipes to its standard input, and from its standard and error output."""
    (reads, our_in), (our_out, writes) = os.pipe(), os.pipe()
    child = Forked(asks, {"kind": kind, **request}, (reads, writes, writes))
    os.close(reads)
    os.close(writes)
    return child, os.fdopen(our_in, "wb"), os.fdopen(our_out, "rb")


def test_it_has_pipes_a_session_and_an_exit_status(asks: socket.socket) -> None:
    child, stdin, stdout = child_of(asks, "shout")
    with stdin, stdout:
        stdin.write(b"hello\n")
        stdin.flush()
        assert stdout.read() == b"HELLO\n"
    assert child.wait(10) == child.wait() == child.returncode == 3
    child.kill()


def test_what_it_raises_is_said_and_is_status_1(asks: socket.socket) -> None:
    child, stdin, stdout = child_of(asks, "fail")
    with stdin, stdout:
        assert stdout.read().endswith(b"ValueError: no such thing\n")
    assert child.wait() == 1


def test_it_ends_by_a_signal_whatever_its_parent_makes_of_one(asks: socket.socket) -> None:
    child, stdin, stdout = child_of(asks, "rest")
    with stdin, stdout:
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0)
        while signal.SIGTERM in handled_by(child.pid):
            time.sleep(0.01)
        child.send_signal(signal.SIGTERM)
        assert child.wait() == -signal.SIGTERM
    child.kill()


def test_one_that_is_killed_before_it_runs_never_begins(asks: socket.socket) -> None:
    busy, stdin, stdout = child_of(asks, "rest")
    os.kill(server := psutil.Process(busy.pid).ppid(), signal.SIGSTOP)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            (child := child_of(asks, "shout"))[0].wait(0.1)
        child[0].kill()
        assert child[0].wait() is None
    finally:
        os.kill(server, signal.SIGCONT)
    next_one, *pipes = child_of(asks, "rest")
    assert {busy.pid, next_one.pid} == {each.pid for each in psutil.Process(server).children()}
    for each in (busy, next_one):
        each.kill()
        assert each.wait() == -signal.SIGKILL
    for pipe in (stdin, stdout, *child[1:], *pipes):
        pipe.close()


def test_children_end_with_the_right_to_ask_only_if_they_are_bound_to_it(asks: socket.socket) -> None:
    bound, *pipes = child_of(asks, "rest", is_bound=True)
    free, *more = child_of(asks, "rest")
    while signal.SIGTERM in handled_by(bound.pid) | handled_by(free.pid):
        time.sleep(0.01)
    asks.close()
    until_s = time.monotonic() + 60
    while is_alive(bound.pid):
        assert time.monotonic() < until_s
        time.sleep(0.01)
    with pytest.raises(subprocess.TimeoutExpired):
        free.wait(0.2)
    free.kill()
    assert free.wait(10) is None  # who forked it has ended, and nobody knows how it did
    for pipe in (*pipes, *more):
        pipe.close()


def test_what_can_no_longer_be_forked_is_an_error_or_has_no_end_that_is_known(asks: socket.socket) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        child = Forked(ours, {}, ())
        theirs.close()
        with pytest.raises(OSError, match="has ended"):
            _ = child.pid
        child.kill()
        assert child.wait() is None
        with pytest.raises(OSError):
            Forked(ours, {}, ())
        with pytest.raises(OSError, match="too long"):
            Forked(asks, {"argv": "x" * (1 << 17)}, ())


def test_a_child_may_end_with_its_parent() -> None:
    text = "import os, subprocess; from pipeline.base import forked; "
    text += "child = subprocess.Popen(['sleep', '60'], stdout=2, preexec_fn=forked.end_with_parent); "
    text += "print(child.pid, flush=True); os._exit(0)"
    done = subprocess.run([sys.executable, "-c", text], stdout=subprocess.PIPE, check=True, cwd=PROJECT_DIR)
    until_s = time.monotonic() + 60
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
