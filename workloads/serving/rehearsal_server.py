"""A server with OpenAI's API and no model, for rehearsals and tests.

    python rehearsal_server.py PORT [FIRST_MS [FURTHER_MS]]

FIRST_MS is the time to the first token, FURTHER_MS that of each further token; they do not depend on the load. A prompt
has 7 tokens and two for each word. The model `whole` sends its answer in one chunk, `no-usage` counts no tokens, `busy`
refuses every second request, `slow-start` listens for a second before it answers, `dying` exits at its fifth streamed
request, `hanging` never answers from there on, `failing` streams an error instead, and `mute` ends its stream without a
word.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_STARTED_S = time.monotonic()
_START_S = 1.0
_LAST_REQUEST = 3


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, first_s: float, further_s: float) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.first_s, self.further_s = first_s, further_s
        self.num_streamed = itertools.count()


class _Handler(BaseHTTPRequestHandler):
    """Streams the words of an answer at their times, after an event with the role of the speaker."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # it delays the body of an answer by 40 ms
    server: _Server

    def do_GET(self) -> None:
        """List the models, for clients that ask before they send requests."""
        self._send_whole("application/json", b'{"object": "list", "data": [{"id": "made-up", "object": "model"}]}')

    def do_POST(self) -> None:
        begun_s = time.monotonic()
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        model, tokens = request["model"], request["max_tokens"]
        is_chat = self.path.endswith("chat/completions")
        prompt = request["messages"][0]["content"] if is_chat else request["prompt"]
        usage = {"prompt_tokens": 7 + 2 * len(prompt.split()), "completion_tokens": tokens}
        counted = {} if model == "no-usage" else {"usage": usage}
        if model == "slow-start" and begun_s < _STARTED_S + _START_S:
            self.send_error(503)
            return
        if not request.get("stream"):
            self._send_whole("application/json", json.dumps({"choices": [], **counted}).encode())
            return
        number = next(self.server.num_streamed)
        if model == "busy" and number % 2:
            self.send_error(429)
            return
        if number > _LAST_REQUEST and model == "dying":
            os._exit(3)
        if number > _LAST_REQUEST and model == "hanging":
            time.sleep(3600)
        if number > _LAST_REQUEST and model == "failing":
            self._send_whole("text/event-stream", b'data: {"error": "out of memory"}\n\n')
            return
        words = [] if model == "mute" else ["a"] * tokens
        events = [{"role": "assistant", "content": ""}, *({"content": word} for word in words)]
        choices = [[{"index": 0} | ({"delta": event} if is_chat else {"text": event["content"]})] for event in events]
        kind = "chat.completion.chunk" if is_chat else "text_completion"
        parts: list[dict[str, Any]] = [{"object": kind, "choices": choice} for choice in choices]
        parts.append({"object": kind, "choices": [], **counted})
        lines = [b"data: " + json.dumps(part).encode() + b"\n\n" for part in parts]
        lines.append(b"data: [DONE]\n\n")
        due_s = [begun_s + self.server.first_s + self.server.further_s * place for place in range(len(words))]
        if model == "whole":
            time.sleep(max(0.0, due_s[-1] - time.monotonic()))
            self._send_whole("text/event-stream", b"".join(lines))
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line, at_s in zip(lines, [0.0, *due_s, 0.0, 0.0], strict=True):
            time.sleep(max(0.0, at_s - time.monotonic()))
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def _send_whole(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


if __name__ == "__main__":
    _port, *_times_ms = sys.argv[1:]
    _first_ms, _further_ms = [*map(float, _times_ms), *(50.0, 10.0)[len(_times_ms) :]]
    _Server(int(_port), _first_ms / 1000, _further_ms / 1000).serve_forever()
