"""A server of any make is started, awaited, asked and ended, and what came of each request is recorded."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.base.paths import PROJECT_DIR
from workloads import ask_server
from workloads.client import NullJob

SERVER = f"{sys.executable} {PROJECT_DIR / 'tests/toys/json_server.py'} {{port}}"


class Notebook(NullJob):
    """Notes what a job reports."""

    def __init__(self, may_stop: Callable[[Notebook], bool] = lambda _: False) -> None:
        self.requests: list[tuple[int, ...]] = []
        self.epochs: list[int] = []
        self._may_stop = may_stop
        self.index = 0

    @property
    def stopping(self) -> bool:
        return self._may_stop(self)

    def wait_stop(self, timeout_s: float | None = None) -> bool:
        time.sleep(timeout_s or 0)
        return self.stopping

    def request(self, *figures: int) -> None:
        self.requests.append(figures)

    def epoch(self, number: int, seconds: float, **metrics: float) -> None:
        self.epochs.append(number)


@pytest.fixture
def ask(tmp_path):
    asked = tmp_path / "asked.jsonl"
    note = f'"note": "{tmp_path / "note"}"'
    asked.write_text(f'{{"max_tokens": 3, {note}}}\n\n{{"max_tokens": 5, {note}}}\n')

    def run(*argv: str, server: str = SERVER, **how: Any) -> Notebook:
        job = Notebook(**how)
        common = ["--command", server, "--requests-file", str(asked), "--warmup-requests", "2"]
        ask_server.run(ask_server.parse([*common, *argv]), job)
        return job

    return run


@pytest.mark.parametrize("how", [["--outstanding", "3"], ["--arrival", "constant", "--rate-per-s", "200"]])
@pytest.mark.parametrize("path", ["/whole", "/stream", "/close", "/old"])
def test_each_request_is_recorded_with_its_tokens_and_that_of_a_stream_with_its_first(ask, path, how):
    job = ask("--path", path, "--requests", "5", "--epochs", "2", *how)
    assert (len(job.requests), job.epochs) == (10, [1, 2])
    for intended_ns, sent_ns, begun_ns, done_ns, first_ns, _, batch in job.requests:
        assert intended_ns <= sent_ns < done_ns
        assert (begun_ns, batch) == (0, 1)
        assert (sent_ns < first_ns < done_ns) if path == "/stream" else first_ns == 0
    assert sorted(tokens for *_, tokens, _ in job.requests) == [3] * 5 + [5] * 5


def test_a_server_is_asked_once_it_is_ready_and_until_the_stop(ask):
    job = ask("--path", "/whole", "--epochs", "0", server=f"{SERVER} 0.5", may_stop=lambda job: len(job.requests) > 2)
    assert len([done_ns for _, _, _, done_ns, *_ in job.requests if done_ns > 0]) > 2


def test_what_is_not_answered_when_the_server_is_ended_is_recorded_so(ask, monkeypatch, tmp_path):
    monkeypatch.setattr(ask_server, "DRAIN_S", 0.1)
    monkeypatch.setattr(ask_server.RunningServer, "ask", lambda *_: None)
    monkeypatch.setattr(ask_server.RunningServer, "wait_until_it_answers", _wait_until_it_listens)
    note = tmp_path / "note"
    both = {"may_stop": lambda _: note.exists() and note.read_text() == "xx"}
    job = ask("--path", "/slow", "--epochs", "0", "--outstanding", "2", **both)
    assert [(begun_ns, done_ns) for _, _, begun_ns, done_ns, *_ in job.requests] == [(0, 0)] * 2


def _wait_until_it_listens(server, *_):
    end_s = time.monotonic() + 60
    while time.monotonic() < end_s:
        with contextlib.suppress(OSError):
            server._said("/", None, 10)
            return
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("server", "options", "said"),
    [
        ("no-such-program {port}", [], "the server cannot be started: no-such-program [0-9]+: No such file"),
        (f"{sys.executable} -c 'raise SystemExit(3)' {{port}}", [], "the server ended with status 3: "),
        (SERVER, ["--requests-file", "/dev/null"], "/dev/null holds no request"),
        (f"{SERVER} 60", ["--ready-s", "0.5"], "did not answer / on port [0-9]+ within 0.5 s: "),
    ],
)
def test_a_server_that_does_not_answer_is_an_error_with_its_words(ask, server, options, said):
    with pytest.raises((RuntimeError, ValueError), match=said):
        ask(*options, server=server)


def test_a_request_that_the_server_refuses_is_an_error_with_its_words(tmp_path):
    args = ask_server.parse(["--command", SERVER, "--path", "/models"])
    with pytest.raises(RuntimeError, match="refuses /models: status 405: "):
        ask_server.run(args, Notebook())


def test_a_command_must_say_where_the_port_goes(capsys):
    with pytest.raises(SystemExit) as ended:
        ask_server.parse(["--command", "vllm serve"])
    assert ended.value.code == 2
    assert "does not say where the port goes: write {port}" in capsys.readouterr().err
