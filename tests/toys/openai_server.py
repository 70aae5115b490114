"""A server with OpenAI's API whose times are known: `python openai_server.py PORT [FIRST_MS [FURTHER_MS]]`.

A prompt has 7 tokens and two for each word. The model `whole` sends its answer in one chunk, `no-usage` counts no
tokens, `busy` refuses every second request, and `mute` ends its stream without a word.
"""

import itertools
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FIRST_S = float(sys.argv[2] if len(sys.argv) > 2 else 50) / 1000
FURTHER_S = float(sys.argv[3] if len(sys.argv) > 3 else 10) / 1000
SEEN = itertools.count()


class Handler(BaseHTTPRequestHandler):
    """Streams the words of an answer at their times, after an event with the role of the speaker."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # it delays the body of an answer by 40 ms

    def do_POST(self) -> None:
        begun_s = time.monotonic()
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        model, tokens = request["model"], request["max_tokens"]
        if model == "busy" and next(SEEN) % 2 and request.get("stream"):
            self.send_error(429)
            return
        is_chat = self.path.endswith("chat/completions")
        prompt = request["messages"][0]["content"] if is_chat else request["prompt"]
        usage = {"prompt_tokens": 7 + 2 * len(prompt.split()), "completion_tokens": tokens}
        counted = {} if model == "no-usage" else {"usage": usage}
        if not request.get("stream"):
            self.send_whole("application/json", json.dumps({"choices": [], **counted}).encode())
            return
        words = [] if model == "mute" else ["a"] * tokens
        events = [{"role": "assistant", "content": ""}, *({"content": word} for word in words)]
        parts = [{"choices": [{"delta": event} if is_chat else {"text": event["content"]}]} for event in events]
        lines = [b"data: " + json.dumps(part).encode() + b"\n\n" for part in (*parts, {"choices": [], **counted})]
        lines.append(b"data: [DONE]\n\n")
        if model == "whole":
            time.sleep(FIRST_S + FURTHER_S * (tokens - 1))
            self.send_whole("text/event-stream", b"".join(lines))
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for place, line in enumerate(lines):
            if 1 <= place <= len(words):
                time.sleep(max(0.0, begun_s + FIRST_S + FURTHER_S * (place - 1) - time.monotonic()))
            self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def send_whole(self, kind: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


ThreadingHTTPServer.daemon_threads = True
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
