"""A server of any make is started, awaited, asked and ended, and what came of each request is recorded."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.base.system.paths import PROJECT_DIR
from workloads import ask_server, program
from workloads.client import NullJob
from workloads.serving import request_sender
from workloads.serving.options import Server

SERVER = f"{sys.executable} {PROJECT_DIR / 'tests/toys/json_server.py'} {{port}}"


class Notebook(NullJob):
    """Notes what a job reports."""

    def __init__(self, may_stop: Callable[[Notebook], bool] = lambda _: False) -> None:
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

    def run(*argv: str, server: str = SERVER, **how: Any) -> Notebook:
        job = Notebook(**how)
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


def test_a_server_is_asked_once_it_is_ready_and_until_the_stop(ask):
    job = ask("--path", "/whole", "--epochs", "0", server=f"{SERVER} 0.5", may_stop=lambda job: len(job.requests) > 2)
    assert len([done_ns for _, _, _, done_ns, *_ in job.requests if done_ns > 0]) > 2


@pytest.mark.parametrize(("path", "server"), [("/slow", SERVER), ("/late", f"sh -c 'trap \"\" TERM; exec {SERVER}'")])
def test_what_is_not_answered_a_while_after_the_stop_is_recorded_so(ask, monkeypatch, tmp_path, path, server):
    monkeypatch.setattr(request_sender, "DRAIN_S", 0.1)
    monkeypatch.setattr(ask_server, "_TERM_S", 1.0)
    monkeypatch.setattr(ask_server.RunningServer, "ask", lambda *_: None)
    monkeypatch.setattr(ask_server.RunningServer, "wait_until_it_answers", _wait_until_it_listens)
    note = tmp_path / "note"
    both = {"may_stop": lambda _: note.exists() and note.read_text() == "xx"}
    job = ask("--path", path, "--epochs", "0", "--outstanding", "2", server=server, **both)
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
        ask_server.run(args, Notebook())


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
