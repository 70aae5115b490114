"""Sources of requests: clients that wait for answers (closed loop), or a generator that does not wait (open loop)."""

from __future__ import annotations

import argparse
import hashlib
import os
import select
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from workloads import client
from workloads.serving.generator import REQUEST, START

_READ_BYTES = 1 << 16
_GENERATOR = Path(__file__).with_name("generator.py")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalProcess:
    """The parameters of an arrival process.

    Attributes:
        kind: `poisson` or `constant` (at a given rate), or `closed` (clients that wait for each answer).
        seed: seed of the arrival times.
        count: number of requests; 0: until stopped.
        outstanding: number of clients of a closed loop.
    """

    kind: str
    rate_per_s: float = 0.0
    seed: int = 0
    count: int = 0
    outstanding: int = 1


def arrival_process(args: argparse.Namespace, job: client.NullJob) -> ArrivalProcess:
    """Return the arrival process of a job with the options of a service."""
    return ArrivalProcess(
        kind=args.arrival,
        rate_per_s=args.rate_per_s or 0.0,
        seed=derive_seed(args.seed, job),
        count=args.requests * args.epochs,
        outstanding=count_clients(args, job),
    )


def count_clients(args: argparse.Namespace, job: client.NullJob) -> int:
    """Return the number of clients of a job; copies divide those of a group, and the first ones get the remainder.

    Raises:
        ValueError: there are fewer clients than copies.
    """
    total = int(args.outstanding)
    if args.outstanding_per == "job":
        return total
    if total < job.copies:
        raise ValueError(
            f"outstanding={total} clients cannot be divided among {job.copies} copies; raise outstanding, or set "
            "outstanding_per=job"
        )
    return total // job.copies + (job.copy < total % job.copies)


class Request(NamedTuple):
    """The scheduled and the actual send time of a request, in nanoseconds of CLOCK_MONOTONIC."""

    intended_ns: int
    sent_ns: int


class HttpRequest(NamedTuple):
    """A request over HTTP: its arrival time, its number among the fixed requests, its body, and the reply function."""

    intended_ns: int
    sent_ns: int
    number: int
    body: bytes
    reply: Callable[[bytes], None]


AnyRequest = Request | HttpRequest


class Answer(NamedTuple):
    """The time of an answer's first token, and the number of its tokens; 0 for an answer without tokens."""

    first_token_ns: int = 0
    tokens: int = 0


def derive_seed(seed: int, job: client.NullJob) -> int:
    """Return the arrival seed of a job: different for each arrival sequence and for each block.

    It is equal in every sharing mode, and of one job in a group also equal to that of the job alone, so that modes are
    compared under the same load.
    """
    return int.from_bytes(hashlib.sha256(f"{seed}-{job.block}-{job.arrivals}".encode()).digest()[:8], "big")


class Arrivals(ABC):
    """A source of requests, which also receives their answers; on exit of the context, it stops its senders."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @abstractmethod
    def begin(self, start_ns: int) -> None:
        """Start requests at the given time."""

    @abstractmethod
    def take(self, timeout_s: float = 0.0) -> Sequence[AnyRequest]:
        """Return the requests that have arrived; if there are none, wait up to the timeout for one request."""

    @abstractmethod
    def record_answer(self, request: AnyRequest, begun_ns: int, done_ns: int, answer: Answer, batch: int) -> None:
        """Record an answer that was computed in a batch of this size."""

    @abstractmethod
    def record_failure(self, request: AnyRequest) -> None:
        """Record a request that will not be answered."""

    @abstractmethod
    def stop(self) -> None:
        """Stop new requests; `take` still returns requests that were sent before."""

    def may_come(self) -> bool:
        """Return whether requests that were sent before the stop may still arrive."""
        return False


class LocalArrivals(Arrivals):
    """Requests that are generated within the job; an answer is recorded as soon as it is computed."""

    def __init__(self, job: client.NullJob) -> None:
        self._job = job

    def record_answer(self, request: AnyRequest, begun_ns: int, done_ns: int, answer: Answer, batch: int) -> None:
        self._job.request(
            request.intended_ns, request.sent_ns, begun_ns, done_ns, answer.first_token_ns, answer.tokens, batch
        )

    def record_failure(self, request: AnyRequest) -> None:
        self._job.request(request.intended_ns, request.sent_ns, 0, 0)


class ClosedLoop(LocalArrivals):
    """Clients, each of which sends a request as soon as its previous request is answered."""

    def __init__(self, job: client.NullJob, process: ArrivalProcess) -> None:
        super().__init__(job)
        self._outstanding, self._num_unsent = process.outstanding, process.count or sys.maxsize
        self._new: list[Request] = []

    def begin(self, start_ns: int) -> None:
        for _ in range(self._outstanding):
            self._send(start_ns)

    def take(self, timeout_s: float = 0.0) -> Sequence[Request]:
        new, self._new = self._new, []
        return new

    def record_answer(self, request: AnyRequest, begun_ns: int, done_ns: int, answer: Answer, batch: int) -> None:
        super().record_answer(request, begun_ns, done_ns, answer, batch)
        self._send(done_ns)

    def _send(self, at_ns: int) -> None:
        if self._num_unsent > 0:
            self._num_unsent -= 1
            self._new.append(Request(at_ns, at_ns))

    def stop(self) -> None:
        self._num_unsent = 0


class OpenLoop(LocalArrivals):
    """Requests at a rate, sent by a separate process (`generator.py`), which runs until the context is left."""

    def __init__(self, job: client.NullJob, process: ArrivalProcess) -> None:
        super().__init__(job)
        self._count = process.count
        arguments = [process.kind, repr(process.rate_per_s), str(process.seed), str(process.count)]
        self._argv = [sys.executable, "-S", "-E", str(_GENERATOR), *arguments]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        os.set_blocking(self._output.fileno(), False)
        self._incomplete = b""
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
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
        if not data and timeout_s > 0:  # end of file means that all requests are sent
            time.sleep(timeout_s)
        data = self._incomplete + data
        end = len(data) - len(data) % REQUEST.size
        self._incomplete = data[end:]
        return [Request(*instants) for instants in REQUEST.iter_unpack(data[:end])]

    def stop(self) -> None:
        self._input.close()
