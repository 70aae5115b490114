"""Sending, batching, answering and recording of requests, by our own service and by servers of any make."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.base.system.paths import PROJECT_DIR
from tests.support.job_server import is_alive
from tests.support.waiting import wait_until
from workloads import ask_server, client, program
from workloads.client import NullJob
from workloads.serving import batch_server as serving
from workloads.serving.arrivals import (
    Answer,
    ArrivalProcess,
    ClosedLoop,
    OpenLoop,
    Request,
    arrival_process,
    derive_seed,
)
from workloads.serving.batch_server import Batching, BatchServer
from workloads.serving.generator import arrival_times
from workloads.serving.http_client import _REST_S, Client
from workloads.serving.options import Server

MS = 1_000_000


class Notebook(client.NullJob):
    def __init__(self, stop_after: int | None = None) -> None:
        self.requests: list[tuple[int, ...]] = []
        self.stop_after = stop_after

    @property
    def stopping(self) -> bool:
        return self.stop_after is not None and len(self.requests) >= self.stop_after

    def request(self, *instants: int) -> None:
        self.requests.append(instants)


class Clock:
    """A time that passes only where somebody waits for something."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_ns = 0
        monkeypatch.setattr(serving.time, "monotonic_ns", lambda: self.now_ns)


class Service:
    """Takes the same time for each batch, one after another."""

    def __init__(self, clock: Clock, each_ns: int) -> None:
        self.clock, self.each_ns, self.free_ns = clock, each_ns, 0
        self.sizes: list[int] = []

    def issue(self, batch) -> int:
        self.sizes.append(len(batch))
        self.free_ns = max(self.clock.now_ns, self.free_ns) + self.each_ns
        return self.free_ns

    def wait(self, issued: int) -> Answer:
        self.clock.now_ns = max(self.clock.now_ns, issued)
        return Answer()


class Planned(ClosedLoop):
    """Requests at given instants, whatever is answered."""

    def __init__(self, job: Notebook, clock: Clock, *at_ns: int) -> None:
        super().__init__(job, ArrivalProcess(kind="closed", outstanding=0))
        self.clock, self.at_ns = clock, list(at_ns)

    def take(self, timeout_s: float = 0.0) -> list[Request]:
        self.clock.now_ns += int(timeout_s * 1e9)
        come = [at for at in self.at_ns if at <= self.clock.now_ns]
        self.at_ns = self.at_ns[len(come) :]
        return [Request(at, at) for at in come]

    def stop(self) -> None:
        self.at_ns = [at for at in self.at_ns if at <= self.clock.now_ns]


def test_each_client_sends_when_it_has_its_answer(monkeypatch):
    clock, job = Clock(monkeypatch), Notebook()
    loop = ClosedLoop(job, ArrivalProcess(kind="closed", outstanding=2, count=5))
    loop.begin(0)
    BatchServer(job, loop, Service(clock, 10 * MS), Batching()).serve(5)
    intended_ms, begun_ms, done_ms = ([request[i] // MS for request in job.requests] for i in (0, 2, 3))
    assert (intended_ms, begun_ms, done_ms) == ([0, 0, 10, 20, 30], [0, 10, 20, 30, 40], [10, 20, 30, 40, 50])


def test_what_is_issued_ahead_begins_when_the_one_before_is_done(monkeypatch):
    clock, job = Clock(monkeypatch), Notebook()
    loop = ClosedLoop(job, ArrivalProcess(kind="closed", outstanding=2, count=4))
    loop.begin(0)
    BatchServer(job, loop, Service(clock, 10 * MS), Batching(max_issued=2)).serve(4)
    assert [(begun // MS, done // MS) for _, _, begun, done, *_ in job.requests] == [
        (0, 10),
        (10, 20),
        (20, 30),
        (30, 40),
    ]


def test_a_batch_waits_for_others_until_it_is_full_or_its_oldest_has_waited_enough(monkeypatch):
    clock, job = Clock(monkeypatch), Notebook()
    loop = Planned(job, clock, 0, 2 * MS, 100 * MS, 101 * MS, 102 * MS, 103 * MS, 104 * MS)
    service = Service(clock, 10 * MS)
    BatchServer(job, loop, service, Batching(max_batch=4, max_delay_ns=5 * MS)).serve(7)
    assert service.sizes == [2, 4, 1]
    assert [request[2] // MS for request in job.requests[:2]] == [5, 5]
    assert [request[-1] for request in job.requests] == [2, 2, 4, 4, 4, 4, 1]


def test_after_the_stop_requests_are_answered_for_a_while_and_the_others_recorded(monkeypatch):
    clock, job = Clock(monkeypatch), Notebook(stop_after=1)
    loop = Planned(job, clock, *[0] * 10, 10**15)
    server = BatchServer(job, loop, Service(clock, int(serving.DRAIN_S * 1e9 / 4)), Batching())
    server.serve(0)
    server.drain()
    done = [request[3] > 0 for request in job.requests]
    assert done == [True] * 5 + [False] * 5


def test_arrivals_have_their_rate_and_their_own_instants_for_each_seed():
    poisson = list(itertools.islice(arrival_times("poisson", 100.0, 0), 20_000))
    gaps_ms = [(b - a) / MS for a, b in itertools.pairwise(poisson)]
    assert sum(gaps_ms) / len(gaps_ms) == pytest.approx(10, rel=0.02)
    assert sum(gap > 10 for gap in gaps_ms) / len(gaps_ms) == pytest.approx(0.368, abs=0.01)
    constant = list(itertools.islice(arrival_times("constant", 100.0, 0), 1000))
    assert {round((b - a) / MS, 3) for a, b in itertools.pairwise(constant)} == {10}
    assert 0 <= constant[0] < 10 * MS
    assert constant[0] != next(arrival_times("constant", 100.0, 1))
    assert poisson[:5] == list(itertools.islice(arrival_times("poisson", 100.0, 0), 5))


def test_each_arrival_sequence_has_other_instants_in_each_block():
    def first_ns(seed: int, block: int, arrivals: str, index: int = 0) -> int:
        job = Notebook()
        job.block, job.arrivals, job.index = block, arrivals, index
        return next(arrival_times("poisson", 100.0, derive_seed(seed, job)))

    sequences = list(itertools.product((0, 1), (1, 2, 3), (f"{name}-{i}" for name in "ab" for i in range(7))))
    assert len({first_ns(*sequence) for sequence in sequences}) == len(sequences)
    assert first_ns(1, 2, "a-0", index=3) == first_ns(1, 2, "a-0")


def open_loop(kind: str, rate_per_s: float, count: int = 0) -> OpenLoop:
    return OpenLoop(Notebook(), ArrivalProcess(kind=kind, rate_per_s=rate_per_s, count=count))


def test_a_generator_sends_at_its_instants_whatever_is_answered_and_ends_with_its_owner():
    with open_loop("constant", 500.0) as loop:
        pid = loop._process.pid
        start_ns = time.monotonic_ns()
        loop.begin(start_ns)
        time.sleep(0.1)  # nobody takes anything meanwhile
        requests: list[Request] = []
        wait_until(lambda: bool(requests.extend(loop.take(timeout_s=0.1))) or len(requests) >= 100, 60)
        intended = [request.intended_ns - start_ns for request in requests]
        assert intended == list(itertools.islice(arrival_times("constant", 500.0, 0), len(intended)))
        assert all(request.sent_ns >= request.intended_ns for request in requests)
        assert len(loop.take(timeout_s=60)) >= 1
    assert not is_alive(pid)
    orphan = open_loop("poisson", 500.0).__enter__()
    orphan._input.close()
    wait_until(lambda: not is_alive(orphan._process.pid))
    orphan._output.close()
    orphan._process.wait()


def test_a_generator_that_cannot_keep_its_rate_ends_with_its_owner():
    loop = open_loop("poisson", 1e9).__enter__()
    loop.begin(time.monotonic_ns())
    assert loop.take(timeout_s=60)
    loop._input.close()
    try:
        wait_until(lambda: not loop.take() and not is_alive(loop._process.pid), 60)
    finally:
        loop._output.close()
        loop._process.wait()


def test_a_generator_of_a_fixed_number_sends_these_and_no_more():
    with open_loop("poisson", 5000.0, count=50) as loop:
        loop.begin(time.monotonic_ns())
        requests: list[Request] = []
        wait_until(lambda: bool(requests.extend(loop.take())) or len(requests) >= 50)
        assert not loop.take(timeout_s=0.01)


def test_a_generator_that_dies_ends_its_job():
    with open_loop("poisson", 100.0) as loop:
        loop.begin(time.monotonic_ns())
        loop._process.kill()
        with pytest.raises(RuntimeError, match="sends requests ended with status -9"):
            wait_until(lambda: bool(loop.take(timeout_s=0.01)) and False)


@pytest.fixture
def http_loop():
    """A loop over HTTP that answers each body by its length, in the tokens."""
    pytest.importorskip("uvicorn")
    from workloads.serving.over_http import HttpLoop

    def ask(job, count, **how):
        process = ArrivalProcess(**({"kind": "closed", "count": count} | how))
        return HttpLoop(job, [b"x", b"y" * 300_000], process)

    return ask


class Lengths:
    """Answers with the size of what was asked."""

    def issue(self, batch) -> int:
        return len(batch[0].body) + batch[0].number

    def wait(self, issued: int) -> Answer:
        return Answer(0, issued)


@pytest.mark.parametrize("how", [{"outstanding": 3}, {"kind": "poisson", "rate_per_s": 500.0}])
def test_what_is_asked_over_http_arrives_and_whoever_asks_says_when_it_was_answered(http_loop, how):
    job = Notebook()
    with http_loop(job, 20, **how) as loop:
        loop.begin(time.monotonic_ns())
        BatchServer(job, loop, Lengths(), Batching()).serve(20)
    assert len(job.requests) == 20
    for intended, sent, begun, done, *_ in job.requests:
        assert intended <= sent < begun < done
    assert sorted(tokens for *_, tokens, _ in job.requests) == [1] * 10 + [300_001] * 10


def test_after_the_stop_what_is_on_its_way_over_http_is_answered_and_the_rest_recorded(http_loop, monkeypatch):
    monkeypatch.setattr(serving, "DRAIN_S", 0.2)
    job = Notebook()

    class Slow(Lengths):
        def wait(self, issued: int) -> Answer:
            time.sleep(0.05)
            return super().wait(issued)

    with http_loop(job, 0, kind="constant", rate_per_s=200.0) as loop:
        server = BatchServer(job, loop, Slow(), Batching())
        start_ns = time.monotonic_ns()
        loop.begin(start_ns)
        while server.num_answered < 10:
            server._turn()
        server.drain()
        took_s = (time.monotonic_ns() - start_ns) / 1e9
    answered = [request for request in job.requests if request[3] > 0]
    assert 10 <= len(answered) < len(job.requests)
    assert len(answered) * 0.05 <= took_s
    intended = sorted(request[0] - start_ns for request in job.requests)
    assert intended == list(itertools.islice(arrival_times("constant", 200.0, 0), len(intended)))
    assert {request[2] for request in job.requests if request not in answered} == {0}


def test_whoever_cannot_send_at_the_rate_over_http_takes_answers_meanwhile_and_ends(http_loop):
    job = Notebook()
    with http_loop(job, 0, kind="constant", rate_per_s=1e9) as loop:
        loop.begin(time.monotonic_ns())
        server = BatchServer(job, loop, Lengths(), Batching())
        try:
            wait_until(lambda: server._turn() or any(request[3] > 0 for request in job.requests), 60)
        except AssertionError:
            loop._sender._process.kill()
            raise


def test_a_request_that_the_server_refuses_is_recorded_as_not_answered_and_the_job_ends(http_loop, monkeypatch):
    from workloads.serving import over_http as module

    async def refuse(self, scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b"no"})

    monkeypatch.setattr(module.HttpLoop, "_app", refuse)
    job = Notebook()
    with (
        pytest.raises(RuntimeError, match="3 of 3 requests were not answered with status 200"),
        http_loop(job, 3, kind="constant", rate_per_s=500.0) as loop,
    ):
        loop.begin(time.monotonic_ns())
        BatchServer(job, loop, Lengths(), Batching()).serve(3)
    assert [(begun, done) for _, _, begun, done, *_ in job.requests] == [(0, 0)] * 3


@pytest.fixture
def http_client():
    """A client of a port in this process, whose standard input stays open, and what it records."""
    reading, writing = os.pipe()

    class Open(Client):
        def take(self, timeout_s, stdin) -> bool:
            return super().take(timeout_s, [])

        def records(self) -> list[tuple[int, ...]]:
            ready = select.select([reading], [], [], 0)[0]
            return list(client.REQUEST.iter_unpack(os.read(reading, 1 << 16))) if ready else []

    yield lambda port: Open("other", port, [b"GET / HTTP/1.1\r\n\r\n"], writing)
    os.close(reading)
    os.close(writing)


def test_a_connection_that_the_server_has_no_room_for_holds_nothing_up(http_client):
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening:
        asking = http_client(listening.getsockname()[1])
        began_s = time.monotonic()
        for _ in range(3):
            asking.send(time.monotonic_ns())
        assert time.monotonic() - began_s < 60  # the kernel would try for two minutes

        def answer() -> None:
            for _ in range(3):  # the kernel tries those again that it had no room for
                with listening.accept()[0] as accepted:
                    accepted.recv(99)
                    accepted.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        answering = threading.Thread(target=answer)
        answering.start()
        asking.finish(60)
        answering.join()
    assert [done_ns > sent_ns for _, sent_ns, _, _, done_ns, *_ in asking.records()] == [True] * 3


@pytest.mark.parametrize("has_connections", [True, False])
def test_a_client_that_gets_no_connection_asks_again_after_a_rest(http_client, monkeypatch, has_connections):
    with socket.create_server(("127.0.0.1", 0)) as gone:
        asking = http_client(gone.getsockname()[1])
    if not has_connections:
        monkeypatch.setattr(asking, "_connect", lambda: None)
    began_s = time.monotonic()
    asking.run_closed(2, 6)
    assert time.monotonic() - began_s >= 2 * _REST_S
    assert [done_ns for *_, done_ns, _, _ in asking.records()] == [0] * 6


SERVER = f"{sys.executable} {PROJECT_DIR / 'tests/toys/json_server.py'} {{port}}"


class ServerNotebook(NullJob):
    """Notes what a job reports."""

    def __init__(self, may_stop: Callable[[ServerNotebook], bool] = lambda _: False) -> None:
        self.requests: list[tuple[int, ...]] = []
        self.epochs: list[tuple[int, float]] = []
        self._may_stop = may_stop
        self.index = 0

    @property
    def stopping(self) -> bool:
        return self._may_stop(self)

    def request(self, *figures: int) -> None:
        self.requests.append(figures)

    def epoch(self, number: int, seconds: float, **metrics: float) -> None:
        self.epochs.append((number, seconds))


@pytest.fixture
def ask(tmp_path):
    requests_file = tmp_path / "asked.jsonl"
    note = f'"note": "{tmp_path / "note"}"'
    requests_file.write_text(f'{{"max_tokens": 3, {note}}}\n\n{{"max_tokens": 5, {note}}}\n')

    def run(*argv: str, server: str = SERVER, **how: Any) -> ServerNotebook:
        job = ServerNotebook(**how)
        common = ["--command", server, "--requests-file", str(requests_file), "--warmup-requests", "2"]
        ask_server.run(program.parse(Server, [*common, *argv]), job)
        return job

    return run


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", [["--outstanding", "3"], ["--arrival", "constant", "--rate-per-s", "200"]])
@pytest.mark.parametrize("path", ["/whole", "/chunk", "/stream", "/split", "/events", "/close", "/old"])
def test_each_request_is_recorded_with_its_tokens_and_that_of_a_stream_with_its_first(ask, path, how):
    job = ask("--path", path, "--requests", "5", "--epochs", "2", *how)
    done_ns = [request[3] for request in job.requests]
    assert len(done_ns) == 10
    assert [number for number, _ in job.epochs] == [1, 2]
    assert job.epochs[1][1] == (done_ns[9] - done_ns[4]) / 1e9
    for intended_ns, sent_ns, begun_ns, done_ns, first_ns, _, batch in job.requests:
        assert intended_ns <= sent_ns < done_ns
        assert (begun_ns, batch) == (0, 1)
        assert (sent_ns < first_ns < done_ns) if path in ("/stream", "/split", "/events") else first_ns == 0
    assert sorted(tokens for *_, tokens, _ in job.requests) == [3] * 5 + [5] * 5


@pytest.mark.parametrize(("per", "expected"), [("job", [8, 8, 8]), ("group", [3, 3, 2])])
def test_copies_divide_the_clients_of_a_group(per, expected):
    args = program.parse(Server, ["--command", SERVER, "--outstanding", "8", "--outstanding-per", per])
    jobs = [NullJob() for _ in expected]
    for number, job in enumerate(jobs):
        job.copy, job.copies = number, len(jobs)
    assert [arrival_process(args, job).outstanding for job in jobs] == expected


def test_fewer_clients_than_copies_are_refused():
    args = program.parse(Server, ["--command", SERVER, "--outstanding-per", "group"])
    job = NullJob()
    job.copies = 2
    with pytest.raises(ValueError, match="outstanding=1 clients cannot be divided among 2 copies; raise outstanding"):
        arrival_process(args, job)


def test_clients_leave_the_cpus_of_the_server(ask, monkeypatch):
    moved = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cpus: moved.append((pid, cpus)))
    monkeypatch.setattr(ServerNotebook, "client_cpus", (0, 8))
    ask("--path", "/whole", "--requests", "2")
    assert moved == [(0, (0, 8))]


def test_a_server_is_asked_once_it_is_ready_and_until_the_stop(ask):
    job = ask("--path", "/whole", "--epochs", "0", server=f"{SERVER} 0.5", may_stop=lambda job: len(job.requests) > 2)
    assert len([done_ns for _, _, _, done_ns, *_ in job.requests if done_ns > 0]) > 2


@pytest.mark.parametrize(("path", "server"), [("/slow", SERVER), ("/late", f"sh -c 'trap \"\" TERM; exec {SERVER}'")])
def test_what_is_not_answered_a_while_after_the_stop_is_recorded_so(ask, monkeypatch, tmp_path, path, server):
    monkeypatch.setattr(ask_server, "_TERM_S", 1.0)
    monkeypatch.setattr(ask_server.RunningServer, "ask", lambda *_: None)
    monkeypatch.setattr(ask_server.RunningServer, "wait_until_it_answers", _wait_until_it_listens)
    note = tmp_path / "note"
    both = {"may_stop": lambda _: note.exists() and note.read_text() == "xx"}
    job = ask("--path", path, "--epochs", "0", "--outstanding", "2", "--drain-s", "0.1", server=server, **both)
    assert [(begun_ns, done_ns) for _, _, begun_ns, done_ns, *_ in job.requests] == [(0, 0)] * 2


def test_by_hand_each_epoch_is_a_line_and_waiting_costs_nothing(ask, caplog):
    caplog.set_level("INFO")
    began_s = time.thread_time()
    ask("--path", "/late", "--requests", "1", "--warmup-requests", "1")
    assert time.thread_time() - began_s < 0.25
    assert re.fullmatch(r"1 requests answered in \d\.\d{3} s", caplog.messages[-1])


def _wait_until_it_listens(server, *_):
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError):
            server._request("/", None, 10)
            return
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("server", "options", "message"),
    [
        ("no-such-program {port}", [], "the server cannot be started: No such file"),
        (f"{sys.executable} -c 'raise SystemExit(3)' {{port}}", [], "the server ended with status 3: "),
        (SERVER, ["--requests-file", "/dev/null"], "/dev/null has no request"),
        (f"{SERVER} 60", ["--ready-s", "0.5"], r"did not answer / on port [0-9]+ within 0.5 s \("),
    ],
)
def test_a_server_that_does_not_answer_is_an_error_with_its_words(ask, server, options, message):
    with pytest.raises((RuntimeError, ValueError), match=message):
        ask(*options, server=server)


def test_a_request_that_the_server_refuses_is_an_error_with_its_words(tmp_path):
    args = program.parse(Server, ["--command", SERVER, "--path", "/models"])
    with pytest.raises(RuntimeError, match="refuses /models: status 405: "):
        ask_server.run(args, ServerNotebook())


def test_a_fixed_number_of_requests_of_which_some_are_refused_is_an_error(ask):
    with pytest.raises(RuntimeError, match="3 of 4 requests were not answered with status 200"):
        ask("--path", "/moody", "--requests", "4")


def test_a_server_that_dies_is_an_error_and_nobody_records_any_more(ask):
    with pytest.raises(RuntimeError, match="the server ended with status 5"):
        ask("--path", "/mortal", "--requests", "3")
    assert "requests" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--command", "vllm serve"], "does not contain {port}, the port"),
        (["--command", "sh -c 'serve {port}"], "cannot be split (No closing quotation)"),
        (["--command", "serve {port}", "--arrival", "poisson"], "needs a finite rate_per_s above 0; set"),
        (
            ["--command", "serve {port}", "--arrival", "poisson", "--rate-per-s", "9", "--outstanding-per", "group"],
            "outstanding_per=group divides the clients of arrival=closed; remove",
        ),
        (
            ["--command", "serve {port}", "--arrival", "poisson", "--rate-per-s", "0"],
            "needs a finite rate_per_s above 0, not 0; set",
        ),
    ],
)
def test_wrong_arguments_end_with_status_2(capsys, flags, message):
    with pytest.raises(SystemExit) as ended:
        program.parse(Server, flags)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
