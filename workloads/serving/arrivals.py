"""Where requests come from: clients that wait for their answers (closed loop), or a generator that does not (open)."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol

from workloads.serving.generator import REQUEST, START

_READ_BYTES = 1 << 16
_GENERATOR = Path(__file__).with_name("generator.py")


class Request(NamedTuple):
    """When a request was to be sent, and when it was; instants of CLOCK_MONOTONIC in nanoseconds."""

    intended_ns: int
    sent_ns: int


class Arrivals(Protocol):
    """A source of requests. A context, which ends what sends them."""

    def __enter__(self) -> Arrivals: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def begin(self, start_ns: int) -> None:
        """Let requests come from an instant on."""
        ...

    def take(self, timeout_s: float = 0.0) -> Sequence[Request]:
        """Return what has come; if nothing has, wait so long for it."""
        ...

    def answered(self, count: int, at_ns: int) -> None:
        """Take note of so many answers."""
        ...

    def stop(self) -> None:
        """Let no more requests come; `take` returns those that were sent before."""
        ...


class ClosedLoop:
    """Clients that send their next request the instant at which they have the answer to the one before.

    Args:
        outstanding: number of clients.
        count: requests of all of them together; 0: until they are stopped.
    """

    def __init__(self, outstanding: int, count: int) -> None:
        self._outstanding, self._left = outstanding, count or sys.maxsize
        self._new: list[Request] = []

    def __enter__(self) -> ClosedLoop:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def begin(self, start_ns: int) -> None:
        self.answered(self._outstanding, start_ns)

    def take(self, timeout_s: float = 0.0) -> Sequence[Request]:
        new, self._new = self._new, []
        return new

    def answered(self, count: int, at_ns: int) -> None:
        count = min(count, self._left)
        self._left -= count
        self._new += [Request(at_ns, at_ns)] * count

    def stop(self) -> None:
        self._left = 0


class OpenLoop:
    """Requests at a rate, from a process of their own (`generator.py`), which runs while the context is entered."""

    def __init__(self, arrival: str, rate_per_s: float, seed: int, count: int) -> None:
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
        if not data and timeout_s > 0:  # it has sent all
            time.sleep(timeout_s)
        data = self._torn + data
        whole = len(data) - len(data) % REQUEST.size
        self._torn = data[whole:]
        return [Request(*instants) for instants in REQUEST.iter_unpack(data[:whole])]

    def answered(self, count: int, at_ns: int) -> None:
        pass

    def stop(self) -> None:
        self._input.close()
