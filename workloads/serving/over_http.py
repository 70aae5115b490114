"""Requests over HTTP: a separate process sends and records them; uvicorn, in a thread of the job, receives them."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Self

import uvicorn

from workloads import client
from workloads.serving.arrivals import Answer, AnyRequest, ArrivalProcess, Arrivals, HttpRequest
from workloads.serving.http_client import REPLY
from workloads.serving.request_sender import Sender


class HttpLoop(Arrivals):
    """The server and the client process that sends the bodies; both end when the context is left."""

    def __init__(self, job: client.NullJob, bodies: Sequence[bytes], process: ArrivalProcess) -> None:
        head = "POST /{} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n"
        self._requests = [head.format(number, len(body)).encode() + body for number, body in enumerate(bodies)]
        self._job, self._process = job, process
        self._arrived: deque[HttpRequest] = deque()
        self._has_arrived = threading.Event()

    def __enter__(self) -> Self:
        # Without an explicit protocol number, asyncio does not disable Nagle's algorithm, and each answer takes 40 ms.
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.bind(("127.0.0.1", 0))
        listening.listen(1024)
        config = uvicorn.Config(self._app, interface="asgi3", lifespan="off", log_level="warning", access_log=False)
        self._server = uvicorn.Server(config)
        self._serving = threading.Thread(target=self._server.run, args=([listening],), name="http", daemon=True)
        self._serving.start()
        self._sender = Sender(self._job, "ours", listening.getsockname()[1], self._requests, self._process)
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        self._server.should_exit = self._server.force_exit = True
        self._serving.join()
        self._sender.join()

    def begin(self, start_ns: int) -> None:
        self._sender.begin(start_ns)

    def take(self, timeout_s: float = 0.0) -> Sequence[HttpRequest]:
        """Return the requests that have arrived; raise `RuntimeError` if the client process has ended."""
        if not self._arrived and timeout_s > 0:
            self._has_arrived.wait(timeout_s)
            if not self._arrived:
                self._sender.check()
        self._has_arrived.clear()
        return [self._arrived.popleft() for _ in range(len(self._arrived))]

    def record_answer(self, request: AnyRequest, begun_ns: int, done_ns: int, answer: Answer, batch: int) -> None:
        assert isinstance(request, HttpRequest)
        request.reply(REPLY.pack(begun_ns, answer.first_token_ns, answer.tokens, batch))

    def record_failure(self, request: AnyRequest) -> None:
        """Do nothing, because the client process records the closed connection as a failure."""

    def may_come(self) -> bool:
        return self._sender.is_waiting()

    def stop(self) -> None:
        self._sender.stop()

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        body, has_more = b"", True
        while has_more:
            message = await receive()
            body += message.get("body", b"")
            has_more = message.get("more_body", False)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes] = loop.create_future()

        def reply(answer: bytes) -> None:
            loop.call_soon_threadsafe(future.set_result, answer)

        now_ns = time.monotonic_ns()
        self._arrived.append(HttpRequest(now_ns, now_ns, int(scope["path"][1:]), body, reply))
        self._has_arrived.set()
        answer = await future
        headers = [(b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})
