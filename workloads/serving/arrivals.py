"""Where requests come from: clients that wait for their answers (closed loop), or a generator that does not (open)."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol

from workloads import client
from workloads.serving.generator import REQUEST, START

_READ_BYTES = 1 << 16
_GENERATOR = Path(__file__).with_name("generator.py")


class Request(NamedTuple):
    """When a request was to be sent, and when it was; instants of CLOCK_MONOTONIC in nanoseconds."""

    intended_ns: int
    sent_ns: int


class Posted(NamedTuple):
    """A request over the network: when it came, which of the fixed ones it is, what is asked, and where to reply."""

    intended_ns: int
    sent_ns: int
    number: int
    body: bytes
    reply: Callable[[bytes], None]


AnyRequest = Request | Posted


class Answer(NamedTuple):
    """What else is known of an answer: the instant of its first token, if it has some, and how many it has."""

    first_token_ns: int = 0
    tokens: int = 0


def seed_of_instants(seed: int, job: client.NullJob) -> int:
    """Return the seed of when a job is asked: jobs of a group are asked at other instants, and each in other blocks.

    It is the same in every mode, so that modes are compared under the same load.
    """
    return (seed * 1000 + job.block) * 1000 + job.index


class Arrivals(Protocol):
    """A source of requests, which also takes their answers. A context, which ends what sends them."""

    def __enter__(self) -> Arrivals: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def begin(self, start_ns: int) -> None:
        """Let requests come from an instant on."""
        ...

    def take(self, timeout_s: float = 0.0) -> Sequence[AnyRequest]:
        """Return what has come; if nothing has, wait so long for it."""
        ...

    def answered(self, request: AnyRequest, begun_ns: int, done_ns: int, answer: Answer, batch: int) -> None:
        """Take an answer, which was computed together with others."""
        ...

    def unanswered(self, request: AnyRequest) -> None:
        """Take note of a request that will not be answered."""
        ...

    def stop(self) -> None:
        """Let no more requests come; `take` returns those that were sent before."""
        ...

    def may_come(self) -> bool:
        """Return whether requests that were sent before the stop may still be on their way."""
        ...


class Recorded:
    """Requests whose answers are there when they are computed, and are recorded then."""

    def __init__(self, job: client.NullJob) -> None:
        self._job = job

    def answered(self, request: AnyRequest, begun_ns: int, done_ns: int, answer: Answer, batch: int) -> None:
        self._job.request(
            request.intended_ns, request.sent_ns, begun_ns, done_ns, answer.first_token_ns, answer.tokens, batch
        )

    def unanswered(self, request: AnyRequest) -> None:
        self._job.request(request.intended_ns, request.sent_ns, 0, 0)

    def may_come(self) -> bool:
        return False


class ClosedLoop(Recorded):
    """Clients that send their next request the instant at which they have the answer to the one before.

    Args:
        job: to which the requests are reported.
        outstanding: number of clients.
        count: requests of all of them together; 0: until they are stopped.
    """

    def __init__(self, job: client.NullJob, outstanding: int, count: int) -> None:
        super().__init__(job)
        self._outstanding, self._left = outstanding, count or sys.maxsize
        self._new: list[Request] = []

    def __enter__(self) -> ClosedLoop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def begin(self, start_ns: int) -> None:
        for _ in range(self._outstanding):
            self._send(start_ns)

    def take(self, timeout_s: float = 0.0) -> Sequence[Request]:
        new, self._new = self._new, []
        return new

    def answered(self, request: AnyRequest, begun_ns: int, done_ns: int, answer: Answer, batch: int) -> None:
        super().answered(request, begun_ns, done_ns, answer, batch)
        self._send(done_ns)

    def _send(self, at_ns: int) -> None:
        if self._left > 0:
            self._left -= 1
            self._new.append(Request(at_ns, at_ns))

    def stop(self) -> None:
        self._left = 0


class OpenLoop(Recorded):
    """Requests at a rate, from a process of their own (`generator.py`), which runs while the context is entered."""

    def __init__(self, job: client.NullJob, arrival: str, rate_per_s: float, seed: int, count: int) -> None:
        super().__init__(job)
        self._count = count
        self._argv = [sys.executable, "-S", "-E", str(_GENERATOR), arrival, repr(rate_per_s), str(seed), str(count)]

    def __enter__(self) -> OpenLoop:
        self._process = subprocess.Popen(self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        os.set_blocking(self._output.fileno(), False)
        self._torn = b""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        self._output.close()
        self._process.wait()

    def begin(self, start_ns: int) -> None:
        self._input.write(START.pack(start_ns))

    def take(self, timeout_s: float = 0.0) -> Sequence[Request]:
        try:
            data = os.read(self._output.fileno(), _READ_BYTES)
        except BlockingIOError:
            if timeout_s <= 0:
                return ()
            select.select([self._output], [], [], timeout_s)
            return self.take()
        if not data and not self._input.closed and (not self._count or self._process.poll()):
            raise RuntimeError(f"the process that sends requests ended with status {self._process.wait()}")
        if not data and timeout_s > 0:  # it has sent all
            time.sleep(timeout_s)
        data = self._torn + data
        whole = len(data) - len(data) % REQUEST.size
        self._torn = data[whole:]
        return [Request(*instants) for instants in REQUEST.iter_unpack(data[:whole])]

    def stop(self) -> None:
        self._input.close()
