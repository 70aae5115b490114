"""The process that sends requests over HTTP (`http_client.py`), and the thread that forwards its records."""

from __future__ import annotations

import contextlib
import logging
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from workloads import client
from workloads.serving.arrivals import ArrivalProcess
from workloads.serving.batch_server import DRAIN_S
from workloads.serving.generator import START
from workloads.serving.http_client import READY

_CLIENT = Path(__file__).with_name("http_client.py")
_log = logging.getLogger(__name__)


class Sender:
    """A process that sends these requests to a local port, again and again; it ends when the context is left.

    Args:
        job: job that receives the records.
        server: `ours` or `other`, as in `http_client.py`.
        port: port of the server.
        requests: requests with their HTTP heads.
        process: arrival process.
        epoch_requests: requests per epoch; 0 if the job reports no epochs.
        drain_s: seconds after `stop` in which requests may be answered.
    """

    def __init__(
        self,
        job: client.NullJob,
        server: str,
        port: int,
        requests: Sequence[bytes],
        process: ArrivalProcess,
        epoch_requests: int = 0,
        drain_s: float = DRAIN_S,
    ) -> None:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))  # each waiting request has a connection
        self._epoch_requests, self._epoch_began_ns = epoch_requests, 0
        self._job, self._count, self.num_over, self.num_failed = job, process.count, 0, 0
        arrivals = (process.kind, repr(process.rate_per_s), process.seed, process.count, process.outstanding)
        argv = list(map(str, (server, port, *arrivals, drain_s)))
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", str(_CLIENT), *argv], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None
        self._input = self._process.stdin
        self._input.write(START.pack(len(requests)))
        for request in requests:
            self._input.write(START.pack(len(request)) + request)
        self._input.flush()
        assert self._process.stdout is not None
        if self._process.stdout.read(client.REQUEST.size) != READY:
            raise RuntimeError(f"the process that sends requests ended with status {self._process.wait()}")
        self._recording = threading.Thread(target=self._record, name="requests", daemon=True)
        self._recording.start()

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.join()

    def begin(self, start_ns: int) -> None:
        self._epoch_began_ns = start_ns
        self._input.write(START.pack(start_ns))
        self._input.flush()

    def stop(self) -> None:
        """Stop new requests; requests that are not answered within `drain_s` are recorded as not answered."""
        with contextlib.suppress(BrokenPipeError):  # the process has already ended
            self._input.close()

    def is_over(self, timeout_s: float) -> bool:
        """Wait up to the timeout for the last record; return whether all records were forwarded."""
        self._recording.join(timeout_s)
        return not self._recording.is_alive()

    def is_waiting(self) -> bool:
        return self._process.poll() is None

    def check(self) -> None:
        """Raise `RuntimeError` if the process ended early, or if one of a fixed number of requests was not answered."""
        if self._input.closed or self._recording.is_alive():
            return
        status = self._process.wait()
        if not self._count or self.num_over < self._count:
            raise RuntimeError(f"the process that sends requests ended with status {status}")
        if self.num_failed:
            raise RuntimeError(f"{self.num_failed} of {self._count} requests were not answered with status 200")

    def join(self) -> None:
        """Wait until the process has ended and all its records were forwarded."""
        self._process.wait()
        self._recording.join()

    def _record(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as records:  # closing the input ends the process
            while len(record := records.read(client.REQUEST.size)) == client.REQUEST.size:
                intended_ns, sent_ns, begun_ns, first_ns, done_ns, tokens, batch = client.REQUEST.unpack(record)
                self._job.request(intended_ns, sent_ns, begun_ns, done_ns, first_ns, tokens, batch)
                self.num_over += 1
                self.num_failed += done_ns == 0
                if self._epoch_requests and self.num_over % self._epoch_requests == 0:
                    self._end_epoch(done_ns or time.monotonic_ns())

    def _end_epoch(self, at_ns: int) -> None:
        seconds = (at_ns - self._epoch_began_ns) / 1e9
        self._job.epoch(self.num_over // self._epoch_requests, seconds)
        _log.info("%d requests answered in %.3f s", self._epoch_requests, seconds)
        self._epoch_began_ns = at_ns
