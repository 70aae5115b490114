"""A server that streams tokens as servers of language models do: `python json_server.py PORT [SECONDS_UNTIL_READY]`."""

import itertools
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

READY_S = time.monotonic() + float(sys.argv[2] if len(sys.argv) > 2 else 0)
SEEN = itertools.count()


class Handler(BaseHTTPRequestHandler):
    """Answers with as many tokens as are asked for: /whole at once, /chunk in one chunk, /stream in parts.

    /split parts the number of tokens too, which it writes with a 0 before it. /events streams without chunks.

    /slow takes a minute and /late half a second, which is noted in a file. /close keeps no connection, and /old speaks
    HTTP/1.0. /moody refuses all but the first four, and /mortal dies of the fifth.
    """

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_error(405)

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if time.monotonic() < READY_S:
            self.send_error(503)
            return
        if self.path in ("/moody", "/mortal") and next(SEEN) >= 4:
            if self.path == "/mortal":
                os._exit(5)
            self.send_error(503)
            return
        if self.path in ("/slow", "/late"):
            with open(request["note"], "a") as file:
                file.write("x")
            time.sleep(60 if self.path == "/slow" else 0.5)
        usage = json.dumps({"usage": {"completion_tokens": request["max_tokens"]}}).encode()
        if self.path == "/old":
            self.protocol_version, self.close_connection = "HTTP/1.0", True
        parts = {
            "/chunk": [usage],
            "/split": [usage[:-3].replace(b'ns":', b'ns"\n:') + b"0", usage[-3:]],
            "/stream": [b"data: 10\r\n", b"data: " + usage + b"\n\n"],
            "/events": [b"data: 10\n\n", b"data: " + usage + b"\n\n"],
        }
        self.send_response(200)
        if self.path in parts:
            has_chunks = self.path != "/events"
            self.close_connection = not has_chunks
            self.send_header(
                *(("Transfer-Encoding", "chunked") if has_chunks else ("Content-Type", "text/event-stream"))
            )
            self.end_headers()
            for part in parts[self.path]:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part) if has_chunks else part)
                self.wfile.flush()
                time.sleep(0.01)
            if has_chunks:
                self.wfile.write(b"0\r\nX-Took: long\r\n\r\n")
        else:
            if self.path == "/close":
                self.send_header("Connection", "close")
            if self.path != "/old":
                self.send_header("Content-Length", str(len(usage)))
            self.end_headers()
            self.wfile.write(usage)

    def log_message(self, *_: object) -> None:
        """Nothing."""


ThreadingHTTPServer.daemon_threads = True
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
