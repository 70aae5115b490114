"""Start a server of a language model and stream answers from it: `python workloads/ask_openai.py --help`.

The server has OpenAI's API (chat or completions): vLLM, SGLang, `transformers serve`, llama.cpp's server, Ollama. Its
own count of tokens (`usage`) counts, never the number of chunks.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # reason: see workloads/__init__.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from workloads import ask_server, client, program
from workloads.serving.options import MEMORY_FRACTION, OpenAIServer

if TYPE_CHECKING:
    from workloads.ask_server import RunningServer

_WORDS = ("the", "of", "and", "to", "in", "that", "was", "his", "for", "with", "as", "not", "had", "but", "at", "on")
_MOST_ATTEMPTS = 6
_TOLERANCE = 0.01
_log = logging.getLogger(__name__)


def run(args: argparse.Namespace, job: client.NullJob) -> None:
    """Start the server, fit the prompts to its tokens, and send requests."""
    args.command = args.command.replace(MEMORY_FRACTION, f"{divide_memory(args.memory_fraction, job):g}")
    if args.requests_file is not None:
        ask_server.run(args, job)
        return

    def prepare(server: RunningServer) -> list[bytes | None]:
        num_words, tokens = fit_prompts(args, server)
        job.param(prompt_words=num_words, **({} if tokens is None else {"prompt_tokens": tokens}))
        return [make_body(args, prompt) for prompt in write_prompts(num_words, args.distinct_prompts, args.seed)]

    ask_server.run(args, job, make_body(args, _WORDS[0], output_tokens=1), prepare)


def divide_memory(fraction: float, job: client.NullJob) -> float:
    """Return the share of one of the copies on a device, rounded down, so that the shares fit."""
    return math.floor(1000 * fraction / job.copies_on_device) / 1000


def fit_prompts(args: argparse.Namespace, server: RunningServer) -> tuple[int, int | None]:
    """Return the number of words whose prompt has `input_tokens` for this server, and its tokens.

    A server that does not count tokens gets as many words as tokens were asked for.
    """
    num_words, tokens = args.input_tokens, None
    for _ in range(_MOST_ATTEMPTS):
        (prompt,) = write_prompts(num_words, 1, args.seed)
        answer = server.ask(args.path, make_body(args, prompt, output_tokens=1, is_streamed=False))
        tokens = _read_prompt_tokens(answer)
        if tokens is None:
            _log.warning("the server does not count tokens (usage); prompts have %d words", args.input_tokens)
            return args.input_tokens, None
        if abs(tokens - args.input_tokens) <= _TOLERANCE * args.input_tokens:
            break
        fitted = max(1, num_words + round((args.input_tokens - tokens) * num_words / tokens))
        if fitted == num_words:
            break
        num_words = fitted
    return num_words, tokens


def write_prompts(num_words: int, number: int, seed: int) -> Iterator[str]:
    """Yield prompts of random words, which have no common beginning that a server could keep."""
    for place in range(number):
        chance = random.Random(f"{seed}-{place}")  # noqa: S311  a prompt, not a secret
        yield " ".join(chance.choices(_WORDS, k=num_words))


def make_body(
    args: argparse.Namespace, prompt: str, *, output_tokens: int | None = None, is_streamed: bool = True
) -> bytes:
    """Return the body of a request."""
    is_chat = args.path.endswith("chat/completions")
    question: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]} if is_chat else {"prompt": prompt}
    streaming: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}} if is_streamed else {}
    length = args.output_tokens if output_tokens is None else output_tokens
    body = {"model": args.model, **question, "max_tokens": length, "temperature": 0, **streaming, **args.body}
    return json.dumps(body).encode()


def _read_prompt_tokens(answer: str) -> int | None:
    try:
        tokens = json.loads(answer)["usage"]["prompt_tokens"]
    except (ValueError, KeyError, TypeError):
        return None
    return tokens if isinstance(tokens, int) and tokens > 0 else None


if __name__ == "__main__":
    program.run_program(OpenAIServer, run)
