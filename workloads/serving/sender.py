"""The process that sends requests over HTTP (`http_client.py`), and the thread that passes on what it records."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from workloads import client
from workloads.serving.generator import START
from workloads.serving.http_client import READY

_CLIENT = Path(__file__).with_name("http_client.py")


class Sender:
    """Sends these requests, again and again in their order, to a port of this machine.

    Args:
        job: gets the records.
        server: `ours` or `other`, as `http_client.py` has it, and so
        arrival, rate_per_s, seed, count, outstanding: how requests come.
        requests: each as it is sent, with its head.

    Attributes:
        num_over: requests that were answered, or never will be.
    """

    def __init__(
        self,
        job: client.NullJob,
        server: str,
        port: int,
        requests: Sequence[bytes],
        *,
        arrival: str,
        rate_per_s: float,
        seed: int,
        count: int,
        outstanding: int,
    ) -> None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))  # each request that waits has a connection
        self._job, self.num_over = job, 0
        argv = [server, str(port), arrival, repr(rate_per_s), str(seed), str(count), str(outstanding)]
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", str(_CLIENT), *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None
        self._input = self._process.stdin
        self._input.write(START.pack(len(requests)))
        for request in requests:
            self._input.write(START.pack(len(request)) + request)
        self._input.flush()
        self._wait_until_it_is_there()
        self._recording = threading.Thread(target=self._record, name="requests", daemon=True)
        self._recording.start()

    def _wait_until_it_is_there(self) -> None:
        assert self._process.stdout is not None
        if self._process.stdout.read(client.REQUEST.size) != READY:
            raise RuntimeError(f"the process that sends requests ended with status {self._process.wait()}")

    def begin(self, start_ns: int) -> None:
        """Let requests come from an instant on."""
        self._input.write(START.pack(start_ns))
        self._input.flush()

    def stop(self) -> None:
        """Let no more requests come."""
        self._input.close()

    def is_waiting(self) -> bool:
        """Return whether it still waits for answers, or sends."""
        return self._process.poll() is None

    def check(self) -> None:
        """Look whether more will come.

        Raises:
            RuntimeError: it has ended, and nobody has stopped it.
        """
        status = self._process.poll()
        if not self._input.closed and status is not None:
            raise RuntimeError(f"the process that sends requests ended with status {status}")

    def join(self) -> None:
        """Wait until it has ended, and all of its records were passed on."""
        self._process.wait()
        self._recording.join()

    def _record(self) -> None:
        assert self._process.stdout is not None
        while len(record := self._process.stdout.read(client.REQUEST.size)) == client.REQUEST.size:
            intended_ns, sent_ns, begun_ns, first_ns, done_ns, tokens, batch = client.REQUEST.unpack(record)
            self._job.request(intended_ns, sent_ns, begun_ns, done_ns, first_ns, tokens, batch)
            self.num_over += 1
