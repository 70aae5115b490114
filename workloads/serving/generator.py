"""A process that sends requests at a given rate and never waits for an answer. Standard library only.

    python generator.py ARRIVAL RATE SEED COUNT

ARRIVAL is poisson or constant, RATE is in requests per second, and COUNT 0 means until stopped. The process reads the
start time from standard input: 8 bytes, in nanoseconds of CLOCK_MONOTONIC. When a request is due, the process writes a
record to standard output: the request's scheduled and actual send time. The process exits when standard input is
closed, which also happens when its parent dies.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import struct
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

START, REQUEST = struct.Struct("<q"), struct.Struct("<qq")
_INPUT, _OUTPUT = 0, 1


def arrival_times(arrival: str, rate_per_s: float, seed: int) -> Iterator[int]:
    """Yield the times of requests, in nanoseconds since the start, without end.

    The requests form a Poisson process or have equal distances. Copies of a job have different seeds, so their times
    differ.
    """
    source = random.Random(seed)  # noqa: S311  nothing here is secret
    distance_ns = 1e9 / rate_per_s
    at_ns = 0.0 if arrival == "poisson" else (source.random() - 1) * distance_ns
    while True:
        at_ns += source.expovariate(1) * distance_ns if arrival == "poisson" else distance_ns
        yield int(at_ns)


def sharpen_timer() -> None:
    """Request the kernel to wake this process on time; by default, the kernel wakes a process up to 50 us late."""
    with contextlib.suppress(OSError), open("/proc/self/timerslack_ns", "w") as file:  # noqa: PTH123
        file.write("1")


def send(arrival: str, rate_per_s: float, seed: int, count: int) -> None:
    """Send requests from the start time until `count` are sent or standard input closes."""
    sharpen_timer()
    first = os.read(_INPUT, START.size)
    if len(first) < START.size:
        return
    (start_ns,) = START.unpack(first)
    os.set_blocking(_OUTPUT, False)
    unread = bytearray()  # records that did not fit into the pipe
    for number, after_ns in enumerate(arrival_times(arrival, rate_per_s, seed), start=1):
        intended_ns = start_ns + after_ns
        is_due = False
        while not is_due:  # even if the request is late, check once for the end of input
            if select.select([_INPUT], [], [], max(0, intended_ns - time.monotonic_ns()) / 1e9)[0]:
                return
            is_due = time.monotonic_ns() >= intended_ns
        unread += REQUEST.pack(intended_ns, time.monotonic_ns())
        with contextlib.suppress(BlockingIOError):
            del unread[: os.write(_OUTPUT, unread)]
        if number == count:
            break
    os.set_blocking(_OUTPUT, True)
    while unread:
        del unread[: os.write(_OUTPUT, unread)]


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):
        send(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
