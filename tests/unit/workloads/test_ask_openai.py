"""Servers with OpenAI's API: prompts of a given length, times to first and further tokens, goodput, what goes wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pipeline.base.domain.workload import Objective
from pipeline.launch import requests
from pipeline.observe import latency
from tests.unit.workloads.test_serving import ServerNotebook
from workloads import ask_openai, client, program
from workloads.serving.options import REHEARSAL_SERVER, OpenAIServer

pytestmark = pytest.mark.covers("workloads/ask_openai.py", "workloads/serving")
FIRST_MS, FURTHER_MS, TOKENS = 50.0, 10.0, 11
LATENCY_MS = FIRST_MS + FURTHER_MS * (TOKENS - 1)
SERVER = f"{sys.executable} {REHEARSAL_SERVER} {{port}} {FIRST_MS:g} {FURTHER_MS:g}"


class Notebook(ServerNotebook):
    """Also notes the params of a job."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.params: dict[str, Any] = {}

    def param(self, **params: Any) -> None:
        self.params |= params


def ask(*argv: str, model: str = "m", num_requests: int = 8, **how: Any) -> Notebook:
    job = Notebook(**how)
    settings = ["--command", SERVER, "--model", model, "--output-tokens", str(TOKENS), "--warmup-requests", "1"]
    length = ["--input-tokens", "107", "--distinct-prompts", "3", "--requests", str(num_requests)]
    ask_openai.run(program.parse(OpenAIServer, [*settings, *length, *argv]), job)
    return job


def compute_figures(job: Notebook, tmp_path: Path, **objective: float) -> dict[str, float]:
    """Return the figures that a study computes from the records of a job."""
    file = tmp_path / "requests.bin"
    records = [(i, s, b, first, done, tokens, batch) for i, s, b, done, first, tokens, batch in job.requests]
    file.write_bytes(b"".join(client.REQUEST.pack(*record) for record in records))
    stored = requests.read(file)
    assert stored is not None
    begin_ns = int(stored["intended_ns"].min())
    goal = Objective(**objective) if objective else None
    return latency.compute_figures(stored, (begin_ns, int(stored["done_ns"].max()) + 1), objective=goal)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_the_times_of_tokens_are_those_of_the_server(path: str, tmp_path: Path) -> None:
    further_ms = 2 * FURTHER_MS  # a busy machine adds half a millisecond to each
    job = ask("--path", path, "--command", f"{sys.executable} {REHEARSAL_SERVER} {{port}} {FIRST_MS:g} {further_ms:g}")
    figures = compute_figures(job, tmp_path)
    assert figures["first_token_p50_ms"] == pytest.approx(FIRST_MS, abs=4)  # not that of the event with the role
    assert figures["per_token_p50_ms"] == pytest.approx(further_ms, rel=0.05)
    assert figures["latency_p50_ms"] == pytest.approx(FIRST_MS + further_ms * (TOKENS - 1), rel=0.05)
    assert {tokens for *_, tokens, _ in job.requests} == {TOKENS}
    ratio = figures["throughput_tokens_per_s"] / figures["throughput_requests_per_s"]
    assert ratio == pytest.approx(TOKENS)
    assert job.params["prompt_tokens"] == 107 and job.params["prompt_words"] == 50
    assert job.params["distinct_requests"] == 3


@pytest.mark.exhaustive  # a busy machine delays requests by more than a percent
@pytest.mark.parametrize("load", [["--outstanding", "4"], ["--arrival", "poisson", "--rate-per-s", "8"]])
def test_figures_are_within_a_percent_of_those_of_a_known_server(load: list[str], tmp_path: Path) -> None:
    first_ms, further_ms = 1000.0, 100.0
    latency_ms = first_ms + further_ms * (TOKENS - 1)
    server = f"{sys.executable} {REHEARSAL_SERVER} {{port}} {first_ms:g} {further_ms:g}"
    job = ask("--command", server, *load, num_requests=8)
    figures = compute_figures(job, tmp_path, first_token_ms=1.01 * first_ms, per_token_ms=1.01 * further_ms)
    assert figures["first_token_p50_ms"] == pytest.approx(first_ms, rel=0.01)
    assert figures["per_token_p50_ms"] == pytest.approx(further_ms, rel=0.01)
    assert figures["latency_p50_ms"] == pytest.approx(latency_ms, rel=0.01)
    missed = compute_figures(job, tmp_path, first_token_ms=0.99 * first_ms)
    assert missed["goodput_requests_per_s"] == 0
    if load[0] == "--outstanding":
        per_s = 4 / latency_ms * 1000
        assert figures["throughput_requests_per_s"] == pytest.approx(per_s, rel=0.01)
        assert figures["throughput_tokens_per_s"] == pytest.approx(TOKENS * per_s, rel=0.01)
        assert figures["goodput_requests_per_s"] == pytest.approx(per_s, rel=0.01)


@pytest.mark.parametrize(("name", "limit_ms"), [("first_token_ms", FIRST_MS), ("per_token_ms", FURTHER_MS)])
def test_the_goodput_counts_answers_that_meet_every_objective(name: str, limit_ms: float, tmp_path: Path) -> None:
    job = ask("--outstanding", "4")
    all_answers = compute_figures(job, tmp_path)["throughput_requests_per_s"]
    assert compute_figures(job, tmp_path, **{name: 2 * limit_ms})["goodput_requests_per_s"] == pytest.approx(
        all_answers
    )
    assert compute_figures(job, tmp_path, **{name: 0.5 * limit_ms})["goodput_requests_per_s"] == 0
    missed = {name: 2 * limit_ms, "latency_ms": 1.0}
    assert compute_figures(job, tmp_path, **missed)["goodput_requests_per_s"] == 0


def test_an_answer_in_one_chunk_has_its_first_token_at_its_end(tmp_path: Path) -> None:
    figures = compute_figures(ask(model="whole"), tmp_path, per_token_ms=1000.0)
    assert figures["first_token_p50_ms"] == pytest.approx(LATENCY_MS, rel=0.05)
    assert figures["throughput_tokens_per_s"] > 0


def test_without_usage_tokens_are_unknown_and_prompts_are_counted_in_words(tmp_path: Path, caplog: Any) -> None:
    job = ask(model="no-usage")
    assert "throughput_tokens_per_s" not in compute_figures(job, tmp_path)
    assert job.params["prompt_words"] == 107 and "prompt_tokens" not in job.params
    assert "does not count tokens" in caplog.text


def test_refused_requests_are_an_error_with_their_number() -> None:
    with pytest.raises(RuntimeError, match=r"refuses /v1/chat/completions: status 429|of 8 requests were not answered"):
        ask(model="busy")


def test_a_stream_without_a_word_has_the_time_of_its_first_event(tmp_path: Path) -> None:
    figures = compute_figures(ask(model="mute"), tmp_path)
    assert figures["first_token_p50_ms"] < FIRST_MS


def test_a_server_that_is_slow_to_start_is_waited_for(tmp_path: Path) -> None:
    figures = compute_figures(ask(model="slow-start"), tmp_path)
    assert figures["first_token_p50_ms"] == pytest.approx(FIRST_MS, abs=4)


def test_a_server_that_dies_ends_the_job_with_its_status() -> None:
    with pytest.raises(RuntimeError, match="the server ended with status 3: "):
        ask(model="dying")


def test_an_error_in_a_stream_is_no_answer() -> None:
    with pytest.raises(RuntimeError, match="6 of 8 requests were not answered with status 200"):
        ask(model="failing")
    with pytest.raises(RuntimeError, match=r'refuses /v1/chat/completions: status 200: data: \{"error": "out of'):
        ask("--warmup-requests", "4", model="failing")


def test_requests_that_hang_are_recorded_as_not_answered() -> None:
    job = ask("--epochs", "0", "--drain-s", "0.1", model="hanging", may_stop=lambda job: len(job.requests) >= 2)
    assert [done_ns > 0 for _, _, _, done_ns, *_ in job.requests] == [True, True, False]


@pytest.mark.parametrize(("num_copies", "share"), [(1, "0.8"), (3, "0.266")])
def test_copies_on_a_device_divide_its_memory(monkeypatch: pytest.MonkeyPatch, num_copies: int, share: str) -> None:
    monkeypatch.setattr(Notebook, "copies_on_device", num_copies)
    command = f"{SERVER.removesuffix(' 10')} {{memory_fraction}}"
    assert ask("--command", command, "--memory-fraction", "0.8").params["command"] == command.replace(
        "{memory_fraction}", share
    )


def test_a_rehearsal_starts_a_server_without_a_model() -> None:
    server = OpenAIServer(command="vllm serve m --port {port}", model="m", output_tokens=128, ttft_ms=450.0).small()
    assert str(REHEARSAL_SERVER) in server.command and (server.output_tokens, server.ttft_ms) == (8, 450.0)


def test_requests_of_a_file_are_sent_as_they_are(tmp_path: Path) -> None:
    body = {"model": "m", "max_tokens": 3, "stream": True, "messages": [{"role": "user", "content": "a"}]}
    (tmp_path / "asked.jsonl").write_text(json.dumps(body))
    job = ask("--requests-file", str(tmp_path / "asked.jsonl"))
    assert {tokens for *_, tokens, _ in job.requests} == {3}


def test_prompts_have_no_common_beginning() -> None:
    prompts = list(ask_openai.write_prompts(100, 64, seed=0))
    assert len({prompt[:40] for prompt in prompts}) == 64
    assert prompts == list(ask_openai.write_prompts(100, 64, seed=0))


@pytest.mark.parametrize("name", ["ttft_ms", "tpot_ms"])
def test_an_objective_must_be_above_zero(name: str, make_plan: Any) -> None:
    options = ["workload=openai_server", "workload.command='serve --port {port}'", "workload.model=m"]
    with pytest.raises(Exception, match=f"{name}=0 must be above 0"):
        make_plan([*options, f"workload.{name}=0"])
    (group,) = make_plan([*options, f"workload.{name}=20", "scenario=naive", "degree=1"]).groups
    assert group.jobs[0].workload.objective is not None
