"""Whatever comes over the control socket, the others are heard, and the job that it comes from is named."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.launch.channel import Channel

READY, BYE, OTHER = (b'{"type": "%s"}\n' % kind for kind in (b"ready", b"bye", b"other"))


def hello(index: object) -> bytes:
    return f'{{"type": "hello", "index": {index}, "pid": 1, "protocol": 1}}\n'.encode()


class Group:
    """A channel, the jobs that a test starts, and what was heard of them."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "control"
        self.messages: list[tuple[int, object]] = []
        self.faults: list[tuple[int, str]] = []
        self.ended: list[int] = []
        self.pids: list[int] = []
        self.channel = Channel(
            self.path,
            lambda index, message: self.messages.append((index, message.get("type"))),
            self.ended.append,
            lambda index, how: self.faults.append((index, how)),
        )

    def start(self, *sent: bytes, num_connections: int = 1, repeats: int = 1, below: bool = False) -> int:
        """Fork a job, the next one by its index: it connects, sends, and then waits for its end; its PID.

        With `below` a child of it does, in a session of its own.
        """
        if (pid := os.fork()) == 0:
            try:
                os.setsid()
                if below and os.fork() == 0:
                    os.setsid()
                    signal.alarm(5)
                elif below:
                    time.sleep(60)
                connections = [socket.socket(socket.AF_UNIX) for _ in range(num_connections)]
                with contextlib.suppress(OSError):
                    for connection in connections:
                        connection.connect(str(self.path))
                    for text in sent * repeats:
                        connections[-1].sendall(text)
                time.sleep(60)
            finally:
                os._exit(0)
        self.channel.watch(len(self.pids), pid)
        self.pids.append(pid)
        return pid

    def pump(self, until: Callable[[], object], seconds: float = 20) -> bool:
        return self.channel.pump(lambda: bool(until()), time.monotonic_ns() + int(seconds * 1e9))


@pytest.fixture
def jobs() -> Iterator[Group]:
    folder = Path(tempfile.mkdtemp(prefix="channel-"))  # not pytest's: a socket's path has 107 bytes at most
    group = Group(folder)
    yield group
    group.channel.close()
    for pid in group.pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert list(folder.iterdir()) == []
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"x" * 5000, "sent a line of more than 4096 bytes over its control socket"),
        (b"x" * 50_000_000, "sent a line of more than 4096 bytes"),
        (b"\xff\xfe\x00" * 5 + b"\n", r"sent an invalid message over its control socket: b'\xff\xfe"),
        (b"[" * 4000 + b"\n", "sent an invalid message over its control socket: b'[[["),
        (b'{"a":' * 600 + b"\n", "sent an invalid message"),
        (b"[]\n", "sent an invalid message over its control socket: b'[]'"),
        (b"\n", "sent an invalid message over its control socket: b''"),
        (b"1" * 4090 + b"\n", "sent an invalid message"),
        (b"x" * 5000 + b"\n", "sent an invalid message"),
        (OTHER * 100_000, "sent more than 1048576 bytes over its control socket"),
        (hello("true"), "sent a hello over its control socket as job True"),
        (hello("1.0"), "sent a hello over its control socket as job 1.0"),
        (hello("7"), "sent a hello over its control socket as job 7"),
        (hello("-1"), "sent a hello over its control socket as job -1"),
        (hello("[[]]"), "sent a hello over its control socket as job [[]]"),
        (hello("9" * 3000), "sent a hello over its control socket as job 999"),
        (b'{"type": "hello"}\n', "sent a hello over its control socket as job None"),
        (hello(1), "sent a hello over its control socket as job 1"),
    ],
)
def test_a_job_that_breaks_the_protocol_is_named_and_the_others_are_heard(jobs, sent, words):
    jobs.start(hello(0), sent)
    jobs.start(hello(1), READY)
    assert jobs.pump(lambda: jobs.faults and (1, "ready") in jobs.messages)
    ((index, how),) = jobs.faults
    assert index == 0 and how.startswith(words) and len(how) < 120


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (READY, "sent a message over its control socket before its hello"),
        (BYE, "sent a message over its control socket before its hello"),
        (hello("true"), "sent a hello over its control socket as job True"),
        (hello(1), "sent a hello over its control socket as job 1"),
        (b"\xff" * 5000, "sent "),
    ],
)
def test_a_job_that_begins_otherwise_than_with_its_hello_is_named_and_not_taken_for_another(jobs, first, words):
    jobs.start(first, BYE)
    jobs.start()
    assert jobs.pump(lambda: jobs.faults)
    ((index, how),) = jobs.faults
    assert index == 0 and how.startswith(words) and jobs.messages == []


def test_while_a_job_sends_without_end_deadlines_hold_and_the_ends_of_others_are_noticed(jobs):
    jobs.start(hello(0), OTHER * 50_000, repeats=1_000)
    os.kill(jobs.start(hello(1)), signal.SIGKILL)
    assert jobs.pump(lambda: jobs.ended == [1] and jobs.faults)
    began_s = time.monotonic()
    assert not jobs.pump(lambda: False, 0.1)
    assert time.monotonic() - began_s < 5
    assert [index for index, _ in jobs.faults] == [0]


def test_what_comes_is_read_in_parts_so_that_nobody_waits_for_the_end_of_a_flood(jobs):
    jobs.start(hello(0), OTHER * 60_000)
    assert jobs.pump(lambda: len(jobs.messages) > 1)
    assert len(jobs.messages) < 20_000


def test_a_job_that_connects_again_and_again_is_named_and_only_its_connections_are_closed(jobs):
    jobs.start(hello(0), num_connections=200)
    jobs.start(hello(1))
    assert jobs.pump(lambda: jobs.faults and (1, "hello") in jobs.messages)
    assert jobs.faults == [(0, "opened more than 16 connections to its control socket at a time")]
    jobs.pump(lambda: False, 0.2)
    assert [connection.index for connection in jobs.channel._list_connections()] == [1]


def test_a_connection_that_says_nothing_or_half_a_line_keeps_nobody_waiting(jobs):
    jobs.start(num_connections=3)
    jobs.start(b'{"type": "hel')
    jobs.start(hello(2))
    assert jobs.pump(lambda: (2, "hello") in jobs.messages)
    for pid in jobs.pids:
        os.kill(pid, signal.SIGKILL)
    assert jobs.pump(lambda: sorted(jobs.ended) == [0, 1, 2])
    assert jobs.faults == []


def test_what_a_job_said_before_its_end_is_heard_before_its_end(jobs):
    pid = jobs.start(hello(0), OTHER * 12_000, BYE)  # more than is read at a time
    threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
    last: list[tuple[int, object]] = []
    jobs.channel._on_exit = lambda index: last.append(jobs.messages[-1])
    assert jobs.pump(lambda: last)
    assert (last, jobs.faults) == ([(0, "bye")], [])


def test_a_process_below_a_job_speaks_for_it_and_one_of_no_job_fails_nobody(jobs, caplog):
    jobs.start(hello(0), below=True)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(jobs.path))
        stranger.sendall(b"\xff\n")
        assert jobs.pump(lambda: (0, "hello") in jobs.messages)
        jobs.pump(lambda: False, 0.1)
        assert stranger.recv(1) == b""
    assert jobs.faults == []
    assert "a process outside all jobs sent an invalid message" in caplog.text
