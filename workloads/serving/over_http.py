"""Requests that come over HTTP, from a process that records them: the job serves them by uvicorn, in a thread."""

from __future__ import annotations

import asyncio
import functools
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import uvicorn

from workloads import client
from workloads.serving.arrivals import Answer, AnyRequest, Posted
from workloads.serving.http_client import REPLY
from workloads.serving.sender import Sender


class HttpLoop:
    """The server, and the process that asks it; both end with the context.

    Args:
        job: gets the records of that process.
        arrival, rate_per_s, seed, count, outstanding: how requests come, as `http_client.py` has it.
        bodies: what is asked.
    """

    def __init__(
        self,
        job: client.NullJob,
        bodies: Sequence[bytes],
        *,
        arrival: str,
        rate_per_s: float,
        seed: int,
        count: int,
        outstanding: int,
    ) -> None:
        head = "POST /{} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n"
        requests = [head.format(number, len(body)).encode() + body for number, body in enumerate(bodies)]
        self._sender_of = functools.partial(
            Sender,
            job,
            "ours",
            requests=requests,
            arrival=arrival,
            rate_per_s=rate_per_s,
            seed=seed,
            count=count,
            outstanding=outstanding,
        )
        self._come: deque[Posted] = deque()
        self._has_come = threading.Event()

    def __enter__(self) -> HttpLoop:
        # With its protocol said: else asyncio does not switch off Nagle's algorithm, and each answer waits 40 ms.
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.bind(("127.0.0.1", 0))
        listening.listen(1024)
        config = uvicorn.Config(
            self._app,
            interface="asgi3",
            lifespan="off",
            log_level="warning",
            access_log=False,
        )
        self._server = uvicorn.Server(config)
        self._serving = threading.Thread(target=self._server.run, args=([listening],), name="http", daemon=True)
        self._serving.start()
        self._sender = self._sender_of(port=listening.getsockname()[1])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._server.should_exit = self._server.force_exit = True
        self._serving.join()
        self._sender.join()

    def begin(self, start_ns: int) -> None:
        """Let requests come from an instant on."""
        self._sender.begin(start_ns)

    def take(self, timeout_s: float = 0.0) -> Sequence[Posted]:
        """Return what has come; if nothing has, wait so long for it.

        Raises:
            RuntimeError: nothing more will come, and nobody has stopped it.
        """
        if not self._come and timeout_s > 0:
            self._has_come.wait(timeout_s)
            if not self._come:
                self._sender.check()
        self._has_come.clear()
        return [self._come.popleft() for _ in range(len(self._come))]

    def answered(self, request: AnyRequest, begun_ns: int, done_ns: int, answer: Answer, batch: int) -> None:
        """Send an answer. It is there, and recorded, when whoever asked has it."""
        assert isinstance(request, Posted)
        request.reply(REPLY.pack(begun_ns, answer.first_token_ns, answer.tokens, batch))

    def unanswered(self, request: AnyRequest) -> None:
        """Nothing: whoever asked sees its connection close."""

    def may_come(self) -> bool:
        """Return whether who asks still waits for answers."""
        return self._sender.is_waiting()

    def stop(self) -> None:
        """Let no more requests come; `take` returns those that were sent before."""
        self._sender.stop()

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        body, is_whole = b"", False
        while not is_whole:
            message = await receive()
            body += message.get("body", b"")
            is_whole = not message.get("more_body", False)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bytes] = loop.create_future()

        def reply(said: bytes) -> None:
            loop.call_soon_threadsafe(future.set_result, said)

        now_ns = time.monotonic_ns()
        self._come.append(Posted(now_ns, now_ns, int(scope["path"][1:]), body, reply))
        self._has_come.set()
        said = await future
        headers = [(b"content-length", str(len(said)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": said})
