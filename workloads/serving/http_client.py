"""A process that sends requests over HTTP and never waits for an answer. Standard library only.

    python http_client.py SERVER PORT ARRIVAL RATE SEED COUNT OUTSTANDING DRAIN

SERVER is `ours`, whose answers are `REPLY` records, or `other`, any HTTP server. ARRIVAL is poisson or constant, with a
RATE, or closed, with OUTSTANDING clients; COUNT 0 means without end.

The process reads from standard input the number of requests, then the size and the bytes of each request, then the
start time in nanoseconds of CLOCK_MONOTONIC; all numbers have 8 bytes. Each request that waits for its answer has a
separate connection. The process writes to standard output a record of zeros, then one `client.REQUEST` per request.
When standard input is closed, the process stops sending. A request that is not answered within DRAIN seconds, or before
the server closes the connection, is recorded as unanswered.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import select
import socket
import struct
import sys
import time
from collections import deque
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from workloads.client import REQUEST
from workloads.serving import generator
from workloads.serving.generator import START

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

REPLY = struct.Struct("<qqii")
"""An answer: start of the computation, time of the first token, number of tokens, batch size."""
READY = bytes(REQUEST.size)
"""The bytes that are written before the first record, once all requests have been read."""

_END_OF_HEAD = _END_OF_TRAILER = b"\r\n\r\n"
_OK = re.compile(rb"HTTP/1\.[01] 200\b")
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked\b", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection:[^\r]*\bclose\b", re.IGNORECASE)
_CHUNK = re.compile(rb"([0-9a-f]+)[^\r\n]*\r\n", re.IGNORECASE)
_EVENTS = re.compile(rb"\r\ncontent-type:[ \t]*text/event-stream\b", re.IGNORECASE)
_TOKENS = re.compile(rb'"completion_tokens"\s*:\s*(\d+)')
_CONTENT = re.compile(rb'"(?:content|text|reasoning|reasoning_content)"\s*:\s*"[^"]')
"""The begin of a text that is not empty; servers also stream events without a text, such as the role of the speaker."""
STREAMED_ERROR = re.compile(rb'^data:[ \t]*\{"error"', re.MULTILINE)
"""An event with which a server ends an answer that it cannot complete, after status 200."""
_REST_S = 0.01
"""Pause of a client after an unanswered request, so that a server that refuses requests is not flooded."""


class _Connection:
    """A connection and the request that waits for its answer.

    `is_kept` is true if the server accepts another request on the same connection.
    """

    def __init__(self, port: int) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        # The client does not wait for the connection, because this takes about a second if the server's queue is full.
        # A later read shows whether the connection failed.
        self.socket.connect_ex(("127.0.0.1", port))
        self.intended_ns = self.sent_ns = 0
        self.unsent = memoryview(b"")
        self.received = b""
        self.is_kept = True

    def send(self, intended_ns: int, request: bytes) -> None:
        self.intended_ns, self.sent_ns = intended_ns, time.monotonic_ns()
        self.unsent, self.received = memoryview(request), b""
        self.push()

    def push(self) -> None:
        """Send as much of the rest of the request as the socket accepts."""
        with contextlib.suppress(OSError):  # the socket is not connected yet, full, or closed; a read shows the latter
            self.unsent = self.unsent[self.socket.send(self.unsent) :]

    def answer(self) -> bytes | None:
        """Return the record of the request; `None` if the answer is not complete yet.

        Raises:
            OSError: the request will not be answered.
        """
        is_closed = False
        with contextlib.suppress(BlockingIOError):
            data = self.socket.recv(1 << 16)
            is_closed = not data
            self.received += data
        record = self._record(is_closed)
        if record is None and is_closed:
            raise ConnectionError
        return record

    def _record(self, is_closed: bool) -> bytes | None:
        head, has_ended, body = self.received.partition(_END_OF_HEAD)
        if has_ended and not head.startswith(b"HTTP/1.1 200 "):
            raise ConnectionError
        return self._pack(*REPLY.unpack(body)) if len(body) >= REPLY.size else None

    def _pack(self, begun_ns: int, first_ns: int, tokens: int, batch: int) -> bytes:
        return REQUEST.pack(self.intended_ns, self.sent_ns, begun_ns, first_ns, time.monotonic_ns(), tokens, batch)


class _ForeignConnection(_Connection):
    """A connection to any HTTP server.

    The time of a streamed answer's first token is the arrival of its first text in the form of OpenAI's API, or of its
    first chunk if it has no such text. The number of tokens is read from the answer, in the same form.
    """

    def send(self, intended_ns: int, request: bytes) -> None:
        self._body_at = self._first_ns = self._first_text_ns = 0
        self._chunks: list[bytes] = []
        super().send(intended_ns, request)

    def _record(self, is_closed: bool) -> bytes | None:
        if not self._body_at and not self._read_head():
            return None
        if not self._first_ns and len(self.received) > self._body_at:
            self._first_ns = time.monotonic_ns()
        if not self._first_text_ns and self._has_events and _CONTENT.search(self.received, self._body_at):
            self._first_text_ns = time.monotonic_ns()
        if not self._is_complete(is_closed):
            return None
        if self._has_events and STREAMED_ERROR.search(self.received, self._body_at):
            raise ConnectionError
        is_streamed = self._has_events or len(self._chunks) > 1
        counts = _TOKENS.findall(b"".join(self._chunks) if self._is_chunked else self.received[self._body_at :])
        first_ns = (self._first_text_ns or self._first_ns) if is_streamed else 0
        return self._pack(0, first_ns, int(counts[-1]) if counts else 0, 1)

    def _read_head(self) -> bool:
        """Find where the answer ends; return whether its head is complete."""
        head, has_ended, _ = self.received.partition(_END_OF_HEAD)
        if not has_ended:
            return False
        if not _OK.match(head):
            raise ConnectionError
        size = _CONTENT_LENGTH.search(head)
        self._body_at = self._chunk_at = len(head) + len(_END_OF_HEAD)
        self._is_chunked = _CHUNKED.search(head) is not None
        self._has_events = _EVENTS.search(head) is not None
        self._end = self._body_at + int(size[1]) if size else None
        has_end = self._is_chunked or size is not None
        self.is_kept = has_end and head.startswith(b"HTTP/1.1") and not _CLOSE.search(head)
        return True

    def _is_complete(self, is_closed: bool) -> bool:
        if self._is_chunked:
            return self._has_last_chunk()
        return is_closed if self._end is None else len(self.received) >= self._end

    def _has_last_chunk(self) -> bool:
        """Read all complete chunks; return whether the answer's last chunk is complete."""
        while chunk := _CHUNK.match(self.received, self._chunk_at):
            size = int(chunk[1], 16)
            if size == 0:
                return self.received.find(_END_OF_TRAILER, chunk.end() - 2) >= 0
            if len(self.received) < chunk.end() + size + 2:
                return False
            self._chunks.append(self.received[chunk.end() : chunk.end() + size])
            self._chunk_at = chunk.end() + size + 2
        return False


_SERVERS = {"ours": _Connection, "other": _ForeignConnection}


class Client:
    """A client that sends requests when due and reads answers as they arrive."""

    def __init__(self, server: str, port: int, requests: Sequence[bytes], out: int) -> None:
        self._kind, self._port, self._requests, self._out = _SERVERS[server], port, requests, out
        self._events = select.epoll()
        self._free: list[_Connection] = []
        self._busy: dict[int, _Connection] = {}
        self.num_sent = self.num_over = self.num_failed = 0

    def send(self, intended_ns: int) -> None:
        request = self._requests[self.num_sent % len(self._requests)]
        self.num_sent += 1
        connection = self._free.pop() if self._free else self._connect()
        if connection is None:
            self._fail(intended_ns, time.monotonic_ns())
            return
        fd = connection.socket.fileno()
        self._busy[fd] = connection
        connection.send(intended_ns, request)
        self._events.modify(fd, select.EPOLLIN | (select.EPOLLOUT if connection.unsent else 0))

    def _connect(self) -> _Connection | None:
        try:
            connection = self._kind(self._port)
        except OSError:
            return None
        self._events.register(connection.socket.fileno(), select.EPOLLIN)
        return connection

    def take(self, timeout_s: float, stdin: Sequence[int]) -> bool:
        """Wait for answers up to the timeout and send the unsent parts of requests; return whether input closed."""
        # `epoll` can wait only for whole ms, and `select` supports no descriptor above 1,023. So `select` waits for the
        # descriptor of the `epoll` object.
        readable, _, _ = select.select([self._events.fileno(), *stdin], [], [], timeout_s)
        for fd, events in self._events.poll(0):
            if fd not in self._busy:
                self._drop(fd)
                continue
            if events & select.EPOLLOUT:
                self._busy[fd].push()
                if not self._busy[fd].unsent:
                    self._events.modify(fd, select.EPOLLIN)
            if events & ~select.EPOLLOUT:
                self._read(fd)
        return any(descriptor in readable for descriptor in stdin)

    def _drop(self, fd: int) -> None:
        for connection in [connection for connection in self._free if connection.socket.fileno() == fd]:
            self._free.remove(connection)
            self._close(connection)

    def _close(self, connection: _Connection) -> None:
        self._events.unregister(connection.socket.fileno())
        connection.socket.close()

    def _read(self, fd: int) -> None:
        connection = self._busy[fd]
        record = None
        try:
            record = connection.answer()
            if record is None:
                return
        except OSError:
            connection.is_kept = False
        del self._busy[fd]
        if connection.is_kept:
            self._free.append(connection)
        else:
            self._close(connection)
        if record is None:
            self._fail(connection.intended_ns, connection.sent_ns)
        else:
            self._write(record)

    def _fail(self, intended_ns: int, sent_ns: int) -> None:
        self.num_failed += 1
        self._write(REQUEST.pack(intended_ns, sent_ns, 0, 0, 0, 0, 1))

    def _write(self, record: bytes) -> None:
        self.num_over += 1
        os.write(self._out, record)

    def run_open(self, due: Iterator[int], count: int) -> None:
        """Send each request when due, regardless of answers, until `count` are sent or input closes."""
        for number, intended_ns in enumerate(due, start=1):
            is_due = False
            while not is_due:  # even if the request is late, read answers and check once for the end of input
                if self.take(max(0, intended_ns - time.monotonic_ns()) / 1e9, [0]):
                    return
                is_due = time.monotonic_ns() >= intended_ns
            self.send(intended_ns)
            if number == count:
                return

    def run_closed(self, outstanding: int, count: int) -> None:
        """Send a new request for each client whose request is over, until `count` are over or input closes.

        A client whose request was not answered first pauses for `_REST_S`.
        """
        most = count or sys.maxsize
        idle_from_s = deque([0.0] * outstanding)  # when each client without a request may send; earliest first
        while self.num_over < most:
            num_over, num_failed = self.num_over, self.num_failed
            while idle_from_s and idle_from_s[0] <= time.monotonic() and self.num_sent < most:
                idle_from_s.popleft()
                self.send(time.monotonic_ns())
            if self.take(1.0 if self.num_sent - self.num_over == outstanding else _REST_S, [0]):
                return
            failed = self.num_failed - num_failed
            idle_from_s.extendleft([0.0] * (self.num_over - num_over - failed))
            idle_from_s.extend([time.monotonic() + _REST_S] * failed)

    def finish(self, drain_s: float) -> None:
        """Read answers until `drain_s` after the end of input; record the remaining requests as failed."""
        while self._busy and not self.take(1.0, [0]):
            pass
        end_s = time.monotonic() + drain_s
        while self._busy and (remaining_s := end_s - time.monotonic()) > 0:
            self.take(remaining_s, [])
        for connection in self._busy.values():
            self._fail(connection.intended_ns, connection.sent_ns)


def _read(size: int) -> bytes:
    data = b""
    while len(data) < size:
        received = os.read(0, size - len(data))
        if not received:
            raise EOFError
        data += received
    return data


def main(
    server: str, port: str, arrival: str, rate_per_s: str, seed: str, count: str, outstanding: str, drain_s: str
) -> None:
    """Send requests as configured on the command line."""
    generator.sharpen_timer()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))  # each waiting request has a connection
    (number,) = START.unpack(_read(START.size))
    requests = [_read(START.unpack(_read(START.size))[0]) for _ in range(number)]
    client = Client(server, int(port), requests, 1)
    os.write(1, READY)
    (start_ns,) = START.unpack(_read(START.size))
    if arrival == "closed":
        while (remaining_ns := start_ns - time.monotonic_ns()) > 0:
            time.sleep(remaining_ns / 1e9)
        client.run_closed(int(outstanding), int(count))
    else:
        due = generator.arrival_times(arrival, float(rate_per_s), int(seed))
        client.run_open((start_ns + after_ns for after_ns in due), int(count))
    client.finish(float(drain_s))


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt, EOFError):
        main(*sys.argv[1:])
