"""A server that answers requests in order of arrival, in batches if configured, and records each request.

The module does not import torch: a `Service` computes the answers.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from workloads import client
from workloads.serving.arrivals import Answer, AnyRequest, Arrivals

_LOOK_S = 0.05
DRAIN_S = 2.0
"""Time after the stop in which requests are still answered; later requests are recorded as not answered."""


class Service(Protocol):
    """An object that computes answers."""

    def issue(self, batch: Sequence[AnyRequest]) -> Any:
        """Start to compute the answers to these requests as one batch; return a handle for `wait`."""
        ...

    def wait(self, issued: Any) -> Answer:
        """Wait until these answers are complete."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """The rules by which requests form a batch.

    Attributes:
        max_batch: maximum number of requests in a batch.
        max_delay_ns: age of the oldest request at which a batch with fewer requests is issued.
        max_issued: maximum number of issued, incomplete batches; with more than one, the device does not idle.
    """

    max_batch: int = 1
    max_delay_ns: int = 0
    max_issued: int = 1


class BatchServer:
    """A loop that answers a number of requests, or requests until stopped; the source of the requests records them."""

    def __init__(self, job: client.NullJob, arrivals: Arrivals, service: Service, batching: Batching) -> None:
        self._job, self._arrivals, self._service, self._batching = job, arrivals, service, batching
        self._waiting: deque[AnyRequest] = deque()
        self._issued: deque[tuple[list[AnyRequest], int, Any]] = deque()
        self.num_answered = 0
        self.last_ns = 0

    def serve(self, count: int) -> None:
        """Answer requests until `count` requests are answered; 0: until stopped."""
        while not self._job.stopping and (count == 0 or self.num_answered < count):
            self._turn()

    def drain(self) -> None:
        """Stop new requests; answer requests already sent, for up to `DRAIN_S`, and record the rest as failed."""
        self._arrivals.stop()
        end_ns = time.monotonic_ns() + int(DRAIN_S * 1e9)
        while new := self._arrivals.take():
            self._waiting += new
        while (self._waiting or self._arrivals.may_come()) and time.monotonic_ns() < end_ns:
            self._turn(is_last=True)
        while self._issued:
            self._complete()
        for request in self._waiting:
            self._arrivals.record_failure(request)

    def _turn(self, *, is_last: bool = False) -> None:
        self._waiting += self._arrivals.take()
        delay_ns = 0 if is_last else self._delay_ns()
        if self._waiting and delay_ns <= 0 and len(self._issued) < self._batching.max_issued:
            batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._batching.max_batch))]
            begun_ns = time.monotonic_ns()
            self._issued.append((batch, begun_ns, self._service.issue(batch)))
        elif self._issued:
            self._complete()
        else:
            self._waiting += self._arrivals.take(min(_LOOK_S, delay_ns / 1e9) if self._waiting else _LOOK_S)

    def _delay_ns(self) -> int:
        if not self._waiting or len(self._waiting) >= self._batching.max_batch or not self._batching.max_delay_ns:
            return 0
        return self._waiting[0].sent_ns + self._batching.max_delay_ns - time.monotonic_ns()

    def _complete(self) -> None:
        batch, begun_ns, issued = self._issued.popleft()
        answer = self._service.wait(issued)
        done_ns = time.monotonic_ns()
        # A batch issued ahead begins when the previous one is complete.
        begun_ns, self.last_ns = max(begun_ns, self.last_ns), done_ns
        for request in batch:
            self._arrivals.record_answer(request, begun_ns, done_ns, answer, len(batch))
        self.num_answered += len(batch)
