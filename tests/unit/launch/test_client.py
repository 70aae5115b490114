"""The socket between jobs and orchestrator: what clients send, record and survive, and whatever else comes."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.base.domain import layout
from pipeline.base.system.paths import PROJECT_DIR
from pipeline.launch import requests
from pipeline.launch.channel import Channel
from tests.support.job_server import JobServer, is_alive
from tests.support.rows import S
from tests.support.waiting import wait_until
from workloads import client

# A grandchild that only SIGKILL ends, and says so once it does.
STUBBORN = """
import subprocess, sys
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
child.stdout.readline()
"""


@pytest.fixture
def server() -> Iterator[JobServer]:
    with JobServer() as running:
        yield running


def test_both_ends_name_the_files_of_a_job_alike():
    assert (client.JOB_FILE, client.EVENTS_FILE) == (layout.JOB_FILE, layout.EVENTS)
    assert client.REQUESTS_FILE == layout.REQUESTS
    assert client.REQUEST.size == requests.RECORD_BYTES


def test_only_the_standard_library_is_imported():
    code = f"""
import sys
before = set(sys.modules)
sys.path.insert(0, {str(PROJECT_DIR)!r})
from workloads import client
print(*(set(sys.modules) - before))
"""
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    packages = {name.partition(".")[0] for name in done.stdout.split()}
    assert packages - set(sys.stdlib_module_names) == {"workloads"}
    # Each of these costs every job as much as all the rest together.
    assert packages.isdisjoint({"pathlib", "subprocess", "typing", "ctypes", "traceback", "asyncio"})


def test_by_hand_every_call_does_nothing(monkeypatch, tmp_path):
    monkeypatch.delenv(client.FOLDER_VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    with client.attach() as job:
        job.phase("train")
        job.param(a=1)
        before = time.monotonic_ns()
        assert before <= job.ready() <= time.monotonic_ns()
        assert list(job.until_stop([1, 2, 3])) == [1, 2, 3]
        with job.take_turn():
            job.step(samples=1)
        job.request(1, 1, 1, 1)
        job.metric("loss", 1.0)
        job.epoch(1, 1.0, loss=1.0)
        assert not (job.attached or job.stopping or job.wait_stop(10))
    assert list(tmp_path.iterdir()) == []


def test_a_job_from_hello_to_bye(server):
    code = """
import time
from workloads import client
with client.attach() as job:
    job.param(parameters=12)
    job.ready()
    for number in job.until_stop(range(1000)):
        job.step(samples=32, epoch=1 + number // 2, t_ns=1000 + number)
        if number == 3:
            job.metric("loss", 0.5, step=7)
            job.epoch(2, 1.5, loss=0.25)
            job.wait_stop()
"""
    hello = server.start("-c", code)
    assert hello == {"type": "hello", "index": 0, "pid": server.process.pid, "protocol": client.PROTOCOL}
    start_ns = server.go(delay_s=0.2)
    wait_until(lambda: bool(server.events("epoch")))
    server.send(type="stop")
    assert server.receive() == {"type": "bye", "status": "ok"}
    assert server.end()[0] == 0

    started = server.events("started")[0]["t_ns"]
    assert start_ns <= started < start_ns + 50e6
    steps = [(step["t_ns"], step["samples"], step["total"], step["epoch"]) for step in server.events("step")]
    assert steps == [(1000, 32, 32, 1), (1001, 32, 64, 1), (1002, 32, 96, 2), (1003, 32, 128, 2)]
    assert [phase["name"] for phase in server.events("phase")] == ["setup", "ready"]
    assert server.events("param")[0]["params"] == {"parameters": "12"}
    (metric,), (epoch,) = server.events("metric"), server.events("epoch")
    assert (metric["name"], metric["value"], metric["step"]) == ("loss", 0.5, 7)
    assert (epoch["epoch"], epoch["seconds"], epoch["metrics"]) == (2, 1.5, {"loss": 0.25})


def test_requests_may_be_recorded_while_others_are_written_in_parts(tmp_path, monkeypatch):
    (tmp_path / client.JOB_FILE).write_text(json.dumps({"index": 0, "socket": ""}))
    job, write = client.Job(str(tmp_path)), os.write
    due_ns = iter(range(2, 4))

    def write_a_part(fd, data) -> int:
        with memoryview(data) as view:
            for at_ns in due_ns:
                job.request(at_ns, at_ns, at_ns, at_ns)
            return write(fd, view[:20])

    job.request(1, 1, 1, 1)
    monkeypatch.setattr(client.os, "write", write_a_part)
    job._write_requests()
    job._write_requests()
    assert list(requests.read(tmp_path / client.REQUESTS_FILE)["intended_ns"]) == [1, 2, 3]


def test_threads_record_side_by_side_and_no_request_is_lost(tmp_path):
    (tmp_path / client.JOB_FILE).write_text(json.dumps({"index": 0, "socket": ""}))
    job, num_requests, interval_s = client.Job(str(tmp_path)), 20_000, sys.getswitchinterval()

    def record(first: int) -> None:
        for number in range(first, first + num_requests):
            job.request(number, number, number, number)

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor() as threads:
            of_threads = [threads.submit(record, first) for first in (1, 1 + num_requests)]
            while not all(future.done() for future in of_threads):
                job._write_requests()
            for future in of_threads:
                future.result()
    finally:
        sys.setswitchinterval(interval_s)
    job._write_requests()
    recorded = requests.read(tmp_path / client.REQUESTS_FILE)
    assert sorted(recorded["intended_ns"]) == list(range(1, 1 + 2 * num_requests))


def test_a_killed_job_loses_the_requests_that_it_still_held_and_no_other(server):
    code = """
import time
from workloads import client
with client.attach() as job:
    job.ready()
    begun_ns = time.monotonic_ns()
    for number in range(700):
        job.request(begun_ns, begun_ns, begun_ns, begun_ns + number)
    job.phase("asked")
    job.wait_stop()
"""
    server.launch("-c", code)
    wait_until(lambda: server.events("phase")[-1]["name"] == "asked")
    os.killpg(server.process.pid, signal.SIGKILL)
    server.end()
    recorded = requests.read(server.folder / client.REQUESTS_FILE)
    assert recorded is not None
    # The first is written because nothing was for half a second, then what a portion holds.
    assert len(recorded) == 513
    assert recorded.first_and_last_ns[1] - recorded.first_and_last_ns[0] == 512


def test_a_step_without_instant_and_epoch_is_stamped_now(server):
    code = "from workloads import client\nwith client.attach() as job:\n    job.ready()\n    job.step(samples=1)"
    before = time.monotonic_ns()
    server.launch("-c", code)
    server.end()
    (step,) = server.events("step")
    assert before < step["t_ns"] < time.monotonic_ns()
    assert step["epoch"] is None


def test_a_step_before_ready_fails_at_once(server):
    server.start("-c", "from workloads import client\nwith client.attach() as job: job.step(samples=1)")
    assert server.end()[0] == 1
    (error,) = server.events("error")
    assert "call job.ready() once, before the first step" in error["message"]


def test_a_stop_at_the_barrier_ends_the_wait(server):
    code = """
from workloads import client
with client.attach() as job:
    job.ready()
    assert job.stopping
    assert list(job.until_stop([1, 2])) == []
"""
    server.start("-c", code)
    assert server.receive() == {"type": "ready"}
    server.send(type="stop")
    assert server.receive() == {"type": "bye", "status": "ok"}
    assert server.end()[0] == 0


def test_an_exception_is_recorded_and_goes_on(server):
    code = "from workloads import client\nwith client.attach() as job:\n    raise MemoryError('7 MiB short')"
    server.start("-c", code)
    assert server.receive() == {"type": "bye", "status": "error"}
    status, _, errors = server.end()
    assert status == 1
    assert "MemoryError: 7 MiB short" in errors
    (error,) = server.events("error")
    assert (error["type"], error["message"]) == ("MemoryError", "7 MiB short")
    assert "raise MemoryError" in error["traceback"] or "line 3" in error["traceback"]


@pytest.mark.parametrize(("code", "status", "bye"), [("0", 0, "ok"), ("4", 4, "error")])
def test_leaving_with_a_status_is_an_error_unless_it_is_0(server, code, status, bye):
    server.start("-c", f"import sys\nfrom workloads import client\nwith client.attach(): sys.exit({code})")
    assert server.receive() == {"type": "bye", "status": bye}
    assert server.end()[0] == status


def test_a_closed_connection_kills_the_whole_group(server):
    code = (
        STUBBORN
        + "from workloads import client\nwith client.attach() as job:\n    job.param(child=child.pid)\n    job.ready()"
    )
    server.start("-c", code)
    assert server.receive() == {"type": "ready"}
    child = int(server.events("param")[0]["params"]["child"])
    assert is_alive(child)
    server.hang_up()
    wait_until(lambda: not is_alive(child) and not is_alive(server.process.pid))
    assert server.end()[0] == -signal.SIGKILL


def test_a_killed_orchestrator_takes_the_whole_group_along(tmp_path):
    """The job's grandchildren too: a parent-death signal on the job alone would leave them running."""
    job = (
        STUBBORN
        + "from workloads import client\nwith client.attach() as job: print(child.pid, flush=True); job.ready()"
    )
    orchestrator = f"""
import sys
sys.path.insert(0, {str(PROJECT_DIR)!r})
from tests.support.job_server import JobServer
with JobServer() as server:
    server.start("-c", {job!r})
    assert server.receive() == {{"type": "ready"}}
    print(server.process.pid, server.process.stdout.readline().strip(), flush=True)
    server.receive()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", orchestrator],
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ, TMPDIR=str(tmp_path) if len(str(tmp_path)) < 70 else "/tmp"),
    )
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2 and all(map(is_alive, pids))
    process.kill()
    process.communicate()
    try:
        wait_until(lambda: not any(map(is_alive, pids)))
    finally:
        for pid in filter(is_alive, pids):
            os.kill(pid, signal.SIGKILL)


def test_a_forked_child_does_not_keep_the_connection(server):
    """Data loader workers outlive a killed job by seconds; the orchestrator must see its end at once."""
    code = """
import os, time
from workloads import client
with client.attach() as job:
    child = os.fork()
    if child == 0:
        time.sleep(60)
    job.param(child=child)
    job.ready()
"""
    server.start("-c", code)
    assert server.receive() == {"type": "ready"}
    child = int(server.events("param")[0]["params"]["child"])
    os.kill(server.process.pid, signal.SIGKILL)
    assert server.receive() == {}
    assert is_alive(child)


def test_events_of_a_killed_job_are_not_lost(server):
    code = """
import os, signal
from workloads import client
with client.attach() as job:
    job.ready()
    for number in range(100):
        job.step(samples=1)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    server.launch("-c", code)
    assert server.end()[0] == -signal.SIGKILL
    assert [step["total"] for step in server.events("step")] == list(range(1, 101))
    assert json.loads((server.folder / "job.json").read_text())["index"] == 0


MS = S // 1000
Record = tuple[int, int, int, int, int, int, int]


def make_single(number: int) -> list[Record]:
    """A request that is answered alone."""
    at_ns = S + 10 * MS * number
    return [(at_ns, at_ns, at_ns, 0, at_ns + 5 * MS, 0, 1)]


def make_batch(number: int) -> list[Record]:
    """Requests of different instants that are answered together."""
    at_ns = S + 10 * MS * number
    return [(at_ns + place, at_ns + place, at_ns + MS, 0, at_ns + 5 * MS, 7, 4) for place in range(4)]


def make_burst(number: int) -> list[Record]:
    """Requests of the same clients' turn: sent at one instant and answered together, so that they are equal."""
    return [(*make_single(number)[0][:6], 4)] * 4


def make_failures(number: int) -> list[Record]:
    """Requests that were sent at one instant and never answered."""
    return [(S + number, S + number, 0, 0, 0, 0, 1)] * 3


def read(path: Path, records: list[Record]) -> requests.Requests:
    path.write_bytes(b"".join(client.REQUEST.pack(*record) for record in records))
    read_requests = requests.read(path)
    assert read_requests is not None
    return read_requests


@pytest.mark.parametrize("make", [make_single, make_batch, make_burst])
@pytest.mark.parametrize("order", ["at once", "one after another", "much later", "no"])
def test_records_that_come_twice_count_once(tmp_path: Path, make, order: str) -> None:
    parts = [make(number) for number in range(100)]
    once = [record for part in parts for record in part]
    twice = {
        "no": once,
        "at once": [record for part in parts for record in part * 2],
        "one after another": [record for record in once for _ in range(2)],
        "much later": once * 2,
    }[order]
    recorded = read(tmp_path / "requests.bin", twice)
    assert len(recorded) == len(once)
    assert sorted(recorded["intended_ns"]) == sorted(record[0] for record in once)
    repeated = f"{len(once)} requests: a record that came before ({len(once)})"
    assert recorded.damages.describe() == ("" if order == "no" else repeated)


def test_one_repeated_record_of_a_batch_is_left_out(tmp_path: Path) -> None:
    records = make_batch(0) + make_batch(1)[:2] + make_batch(0)[:1]
    recorded = read(tmp_path / "requests.bin", records)
    assert (len(recorded), recorded.damages.describe()) == (6, "1 request: a record that came before")


def test_requests_without_an_answer_are_kept(tmp_path: Path) -> None:
    recorded = read(tmp_path / "requests.bin", make_failures(0) + make_single(1) + make_failures(0))
    assert (len(recorded), len(recorded.damages)) == (7, 0)


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
