"""A server that answers requests in the order in which they come, in batches if configured, and records each.

Knows no torch: a service computes the answers.
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
"""How long requests are still answered after the stop; the remaining ones are recorded as not answered."""


class Service(Protocol):
    """The computation of answers."""

    def issue(self, batch: Sequence[AnyRequest]) -> Any:
        """Begin to compute the answers to these requests, together; return a handle for `wait`."""
        ...

    def wait(self, issued: Any) -> Answer:
        """Return when these answers are there."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """Which requests are computed together.

    Attributes:
        max_batch: their largest number.
        max_delay_ns: with fewer, wait until the oldest has this age.
        ahead: batches that are issued before the oldest of them is there, so that a device need not wait for its host.
    """

    max_batch: int = 1
    max_delay_ns: int = 0
    ahead: int = 1


class BatchServer:
    """A loop that answers requests, a number of them or until told to stop; their source records them."""

    def __init__(self, job: client.NullJob, arrivals: Arrivals, service: Service, batching: Batching) -> None:
        self._job, self._arrivals, self._service, self._batching = job, arrivals, service, batching
        self._waiting: deque[AnyRequest] = deque()
        self._issued: deque[tuple[list[AnyRequest], int, Any]] = deque()
        self.num_answered = 0
        self.last_ns = 0

    def serve(self, count: int) -> None:
        """Answer until this number of requests was answered in all or, with 0, until told to stop."""
        while not self._job.stopping and (count == 0 or self.num_answered < count):
            self._turn()

    def drain(self) -> None:
        """Let no more requests come; answer those that were sent for a while, and record the others."""
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
        if self._waiting and delay_ns <= 0 and len(self._issued) < self._batching.ahead:
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
        # What is issued ahead begins when what was issued before it is done.
        begun_ns, self.last_ns = max(begun_ns, self.last_ns), done_ns
        for request in batch:
            self._arrivals.record_answer(request, begun_ns, done_ns, answer, len(batch))
        self.num_answered += len(batch)
