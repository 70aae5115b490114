"""The job's half of the job protocol.

This module works in any environment, because it uses only the standard library of Python 3.8 or newer. A script uses
the module as follows. If the script is run by hand, without an orchestrator, every call is a no-op, and loops end with
their last item:

    with client.attach() as job:
        ...                                  # load data, build the model, warm up with real steps
        job.ready()                          # waits until every job of the group is ready, then starts with them
        for batch in job.until_stop(loader): # ends when the orchestrator sends stop
            ...
            job.step(samples=len(batch))

Control messages (`hello`, `ready`, `go`, `hold`, `held`, `continue`, `stop`, `bye`) are sent over a socket. Data is
appended to `events.jsonl`, one JSON object per line. Requests, of which thousands may be answered per second, are
appended to `requests.bin`, as records of a fixed size. All timestamps are CLOCK_MONOTONIC nanoseconds. If the
orchestrator disappears, the job kills its own process group, because nobody reads its results and the GPU must be
freed. (The kernel's parent-death signal is not used, because it kills the leader of the job before the leader can kill
the rest of its group; in a test, 19 of 20 grandchildren survived.)
"""

# pathlib is not used here: its import adds about 10 ms to the start of every job.
# ruff: noqa: PTH118, PTH123

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import socket
import struct
import sys
import threading
import time

TYPE_CHECKING = False  # `typing.TYPE_CHECKING` is not used, because importing typing takes 5 ms
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import TracebackType
    from typing import TypeVar

    T = TypeVar("T")

PROTOCOL = 1
_CLEARANCE_S = 0.002
FOLDER_VARIABLE = "COLLOCATION_JOB"
JOB_FILE, EVENTS_FILE, REQUESTS_FILE = "job.json", "events.jsonl", "requests.bin"
REQUEST = struct.Struct("<qqqqqii")
"""One request: the times at which it was due, was sent, began, had its first token and was complete; the number of
tokens; the batch size."""
_MOST_HELD, _HELD_NS = 512, 500_000_000  # number and age of buffered requests at which they are written
_pack_request = REQUEST.pack


_find_tenant: Callable[[], NullJob | None] | None = None


def attach() -> NullJob:
    """Return the connection to the orchestrator; without an orchestrator, return a `NullJob`.

    In a process that hosts several jobs, it is the connection of the job that this thread belongs to; for a
    thread of none of them, `RuntimeError` is raised.
    """
    if _find_tenant is not None:
        if (tenant := _find_tenant()) is None:
            raise RuntimeError("attach() in a thread of no job; call it in the main thread, and pass the job on")
        return tenant
    folder = os.environ.get(FOLDER_VARIABLE)
    return Job(folder) if folder else NullJob()


def host_tenants(find_tenant: Callable[[], NullJob | None]) -> None:
    """Make `attach` return what this function returns: the job that the current thread belongs to."""
    global _find_tenant
    _find_tenant = find_tenant


class NullJob:
    """Stand-in for `Job` without an orchestrator; every call is a no-op."""

    attached = False
    is_tenant = False
    """True if the process also runs other jobs, so that memory and exit status of the process are not the job's."""
    watches_output = False
    index = 0
    block = 1
    arrivals = ""
    """Name of the arrival sequence of a service."""
    copy = 0
    """Number of the job among the copies of its program, from 0."""
    copies = 1
    """Number of copies of the program that run together."""
    copies_on_device = 1
    """Number of these copies on the same device, whose memory they share."""
    client_cpus: tuple[int, ...] = ()
    """CPUs on which a client of a server may run; empty: on all CPUs of the job."""
    held_ns = 0
    """Total time, in nanoseconds, for which the orchestrator has held the job (made it wait between two steps)."""

    def __enter__(self) -> NullJob:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def stopping(self) -> bool:
        return False

    def wait_stop(self, timeout_s: float | None = None) -> bool:
        return False

    def ready(self) -> int:
        return time.monotonic_ns()

    @contextlib.contextmanager
    def take_turn(self) -> Iterator[None]:
        yield

    def until_stop(self, items: Iterable[T], finish: Callable[[], object] | None = None) -> Iterator[T]:
        yield from items

    def phase(self, name: str) -> None: ...

    def param(self, **params: object) -> None: ...

    def metric(self, name: str, value: float, step: int = 0) -> None: ...

    def wrong(self, what: str) -> None: ...

    def step(self, samples: float, epoch: int | None = None, t_ns: int | None = None) -> None: ...

    def request(
        self,
        intended_ns: int,
        sent_ns: int,
        begun_ns: int,
        done_ns: int,
        first_token_ns: int = 0,
        tokens: int = 0,
        batch: int = 1,
    ) -> None: ...

    def epoch(self, number: int, seconds: float, **metrics: float) -> None: ...

    def process(self, pid: int) -> None: ...

    def process_ended(self, status: int = 0) -> None: ...

    def output_size(self, stdout: int, stderr: int) -> None: ...


class Job(NullJob):
    """A job started by an orchestrator. Its folder contains `job.json`; the job writes `events.jsonl` there."""

    attached = True

    def __init__(self, folder: str) -> None:
        with open(os.path.join(folder, JOB_FILE), encoding="utf-8") as file:
            spec = json.load(file)
        self._folder = folder
        self.index = spec["index"]
        self._address = spec["socket"]
        self.block = spec.get("block", self.block)
        self.arrivals = spec.get("arrivals", self.arrivals)
        self.copy, self.copies = spec.get("copy", 0), spec.get("copies", 1)
        self.copies_on_device = spec.get("copies_on_device", 1)
        self.client_cpus = tuple(spec.get("client_cpus", ()))
        self.watches_output = bool(spec.get("watches_output"))
        # Each line is written by one unbuffered call, so the lines of a killed job are not lost.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._events = os.open(os.path.join(folder, EVENTS_FILE), flags, 0o644)
        self._stop = threading.Event()
        self._go = threading.Event()
        self._is_called = threading.Event()  # set by stop and by hold, so each step reads only one flag
        self._continue = threading.Event()
        self._is_ready = False
        self._start_ns: int | None = None
        self._leaving = False
        self._total: float = 0
        self._requests = -1  # -1: no file is open, because most jobs answer no requests
        self._held: list[bytes] = []  # appended to without a lock, because a lock would make a record 50 % slower
        self._writing = threading.RLock()
        self._written_ns = 0

    def __enter__(self) -> NullJob:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(self._address)
        self._send(type="hello", index=self.index, pid=os.getpid(), protocol=PROTOCOL)
        os.register_at_fork(after_in_child=self._let_go)
        threading.Thread(target=self._listen, name="collocation-control", daemon=True).start()
        self.phase("setup")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leaving = True
        self._write_requests()
        if error is None or kind is None or (isinstance(error, SystemExit) and not error.code):
            self._send(type="bye", status="ok")
        else:
            self._note_error(error, str(error))
            self._send(type="bye", status="error")
        self._socket.close()
        os.close(self._events)
        if self._requests >= 0:
            os.close(self._requests)

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    def wait_stop(self, timeout_s: float | None = None) -> bool:
        """Wait until the orchestrator sends stop or the timeout expires; return whether stop was received."""
        return self._stop.wait(timeout_s)

    def ready(self) -> int:
        """Wait at the group's barrier; return the timestamp at which the work of this job starts."""
        self.phase("ready")
        self._send(type="ready")
        self._go.wait()
        self._is_ready = True
        if self._start_ns is not None:
            delay = (self._start_ns - time.monotonic_ns()) / 1e9
            if delay > 0:
                time.sleep(delay)
        started = time.monotonic_ns()
        self._event("started", t_ns=started)
        # If there are fewer CPUs than jobs, the first job that works would delay every other job at the barrier by a
        # scheduler slice. So every job first waits until all jobs have had time to leave the barrier.
        time.sleep(_CLEARANCE_S)
        return started

    @contextlib.contextmanager
    def take_turn(self) -> Iterator[None]:
        """Run the body of the context in only one job of the group at a time; the other jobs wait for their turn."""
        jobs = os.open(os.path.join(self._folder, os.pardir), os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(jobs, fcntl.LOCK_EX)
            yield
        finally:
            # The lock is released explicitly: if a child was forked meanwhile, it has a copy of the descriptor, and
            # closing the descriptor here would not release the lock.
            fcntl.flock(jobs, fcntl.LOCK_UN)
            os.close(jobs)

    def until_stop(self, items: Iterable[T], finish: Callable[[], object] | None = None) -> Iterator[T]:
        """Yield items until the orchestrator sends stop; between two items, wait while the orchestrator holds this job.

        `finish` is called before the job reports that it is held. It must return once all issued steps are complete and
        reported; without `finish`, the job waits for all work on torch's current CUDA device.
        """
        for item in items:
            if self._is_called.is_set():
                self._wait_while_held(finish or _finish_cuda_work)
                if self._stop.is_set():
                    return
            yield item

    def phase(self, name: str) -> None:
        """Record the start of a phase: setup, warmup, ready, train, validate, ..."""
        self._event("phase", name=name)

    def param(self, **params: object) -> None:
        """Record facts about the job: versions, sizes, settings."""
        self._event("param", params={key: str(value) for key, value in params.items()})

    def metric(self, name: str, value: float, step: int = 0) -> None:
        """Record one figure; its name ends in its unit."""
        self._event("metric", name=name, value=float(value), step=int(step))

    def wrong(self, what: str) -> None:
        """Record that this process computes wrong results; the job's figures are then shown, but never compared."""
        self._event("wrong", what=what)

    def step(self, samples: float, epoch: int | None = None, t_ns: int | None = None) -> None:
        """Record that a step over `samples` samples (possibly a fraction) was complete at `t_ns` (default: now).

        Raises:
            RuntimeError: the job has not called `ready`; without this error, its group would wait forever.
        """
        if not self._is_ready:
            raise RuntimeError("job.step() came before job.ready(); call job.ready() once, before the first step")
        self._total += samples
        instant_ns = time.monotonic_ns() if t_ns is None else t_ns
        number = "null" if epoch is None else int(epoch)
        # The text is formatted by hand, because each step needs it and json.dumps takes eight times as long.
        line = f'{{"event":"step","t_ns":{instant_ns},"samples":{samples},"total":{self._total},"epoch":{number}}}\n'
        os.write(self._events, line.encode())

    def request(
        self,
        intended_ns: int,
        sent_ns: int,
        begun_ns: int,
        done_ns: int,
        first_token_ns: int = 0,
        tokens: int = 0,
        batch: int = 1,
    ) -> None:
        """Record a request; may be called from any thread.

        Records are buffered; while further requests arrive, they are written after 0.5 s at the latest. A killed job
        loses its buffered records.

        Args:
            intended_ns: scheduled send time of the request, from which latency is counted.
            sent_ns: actual send time.
            begun_ns: start of the computation; 0 if the request was never answered.
            done_ns: time of the answer; 0 if the request was never answered.
            first_token_ns: time of the answer's first token; 0 if the answer has no tokens.
            tokens: number of tokens in the answer.
            batch: size of the batch in which the answer was computed.
        """
        self._held.append(_pack_request(intended_ns, sent_ns, begun_ns, first_token_ns, done_ns, tokens, batch))
        if len(self._held) >= _MOST_HELD or done_ns - self._written_ns > _HELD_NS:
            self._write_requests()
            self._written_ns = done_ns

    def epoch(self, number: int, seconds: float, **metrics: float) -> None:
        """Record a complete epoch: its training time in seconds, and its figures (loss, accuracy_ratio, ...)."""
        figures = {name: float(value) for name, value in metrics.items()}
        self._event("epoch", epoch=int(number), seconds=float(seconds), metrics=figures)

    def process(self, pid: int) -> None:
        """Record the child process that does the work."""
        self._event("process", pid=int(pid))

    def process_ended(self, status: int = 0) -> None:
        """Record that the child process that does the work has just exited, with this status or signal."""
        self._event("process_ended", status=int(status))

    def output_size(self, stdout: int, stderr: int) -> None:
        """Record the current sizes of the output files in bytes."""
        self._event("written", stdout=int(stdout), stderr=int(stderr))

    def _wait_while_held(self, finish: Callable[[], object]) -> None:
        while self._is_called.is_set() and not self._stop.is_set():
            finish()
            begin_ns = time.monotonic_ns()
            self._send(type="held")
            self._continue.wait()
            self.held_ns += time.monotonic_ns() - begin_ns

    def _note_error(self, error: BaseException, message: str) -> None:
        """Record the exception that ended the job."""
        import traceback  # imported late, because the import takes 3 ms and only failing jobs need it

        kind, status = type(error), error.code if isinstance(error, SystemExit) else None
        text = "".join(traceback.format_exception(kind, error, error.__traceback__))
        event = {"type": kind.__name__, "message": message[:4000], "traceback": text[-16000:]}
        self._event("error", status=status if isinstance(status, int) else None, **event)

    def _event(self, event: str, **values: object) -> None:
        values.setdefault("t_ns", time.monotonic_ns())
        os.write(self._events, (json.dumps(dict(values, event=event)) + "\n").encode())

    def _write_requests(self) -> None:
        with self._writing:
            held = self._held[:]
            del self._held[: len(held)]  # keep records that another thread has added meanwhile
            if held and self._requests < 0:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
                self._requests = os.open(os.path.join(self._folder, REQUESTS_FILE), flags, 0o644)
            unwritten = b"".join(held)
            while unwritten:
                unwritten = unwritten[os.write(self._requests, unwritten) :]

    def _send(self, **message: object) -> None:
        try:
            self._socket.sendall((json.dumps(message) + "\n").encode())
        except OSError:
            if not self._leaving:
                _kill_own_group()

    def _listen(self) -> None:
        try:
            for line in self._socket.makefile("r", encoding="utf-8"):
                message = json.loads(line)
                if message["type"] == "go":
                    self._start_ns = message["start_ns"]
                    self._go.set()
                elif message["type"] == "hold":
                    self._continue.clear()
                    self._is_called.set()
                elif message["type"] == "continue":
                    self._is_called.clear()
                    self._continue.set()
                elif message["type"] == "stop":
                    self._stop.set()
                    self._is_called.set()
                    self._continue.set()
                    self._go.set()
        except (OSError, ValueError):
            pass  # the connection is already gone
        if not self._leaving:
            _kill_own_group()

    def _let_go(self) -> None:
        """Close the socket in a forked child, such as a data loader, so that the connection ends when the job exits."""
        self._leaving = True
        descriptor = self._socket.detach()
        if descriptor >= 0:
            os.close(descriptor)


def _finish_cuda_work() -> None:
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _kill_own_group() -> None:
    os.killpg(os.getpgrp(), signal.SIGKILL)
