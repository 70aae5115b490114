"""A process that hosts several jobs: each of them, a tenant, runs in a thread of its own.

    python workloads/host_streams.py FILE

FILE is JSON: `tenants`, with the folder, arguments, output files and variables of each job, and `options` of the
sharing mode. A tenant is a job as in any other process: it has its own socket, events, folder and index, and its
program runs unchanged as `__main__`, with `sys.argv` and the variables of its job while it is built.

Tenants are built one after another, up to their barrier, because libraries are configured for the whole process, and
because CUDA refuses some calls of other threads while a graph is captured. After the barrier, they run at the same
time. A tenant that fails ends as a job that fails. If it took the GPU's context with it, every tenant reports this
error. Threads that a tenant starts belong to it, also those that they start: a thread inherits the signal mask of the
thread that started it (pthread_create(3)), and each tenant blocks a real-time signal of its own, which nobody sends.
This module uses only the standard library of Python 3.8 or newer.
"""

# ruff: noqa: PTH120, PTH123

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import traceback
import types

from workloads import client

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Any


_MARKS = range(signal.SIGRTMAX, signal.SIGRTMIN, -1)  # signals that mark the threads of each tenant


class UnsupportedError(Exception):
    """The sharing mode does not work with the libraries of this environment; the group is then skipped."""


class Place:
    """The place in the process where tenants run: threads only. Subclasses give each tenant a part of the GPU."""

    def enter(self, position: int) -> contextlib.AbstractContextManager[object]:
        """Return the context of a tenant, which is entered in its thread before its program is built."""
        return contextlib.nullcontext()

    def note_built(self, position: int) -> None:
        """Record what the tenant made while it was built; called in its thread, before the next tenant is built."""

    def describe(self, position: int) -> dict[str, object]:
        """Return facts about a tenant that was built, as parameters of its job."""
        return {}

    def measure(self, position: int) -> dict[str, float]:
        """Return figures of a tenant at its end; their names end in their units."""
        return {}

    def works(self) -> bool:
        """Return whether tenants can go on after an exception of another tenant."""
        return True


class Tenant(client.Job):
    """A job that shares its process with other jobs."""

    is_tenant = True

    def __init__(self, folder: str, position: int, host: Host) -> None:
        super().__init__(folder)
        self.position, self._host = position, host
        self._is_open = False
        self.has_ended = False
        self.is_built = threading.Event()

    def __enter__(self) -> client.NullJob:
        if not self._is_open:
            self._is_open = True
            super().__enter__()
        return self

    def ready(self) -> int:
        self._host.place.note_built(self.position)
        self.param(jobs_of_process=self._host.num_tenants, **self._host.place.describe(self.position))
        self.is_built.set()
        return super().ready()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._host.ending:
            if self.has_ended:  # by an error of another tenant
                return
            self.has_ended = True
            if isinstance(error, Exception) or (isinstance(error, SystemExit) and error.code):
                self._leaving = True
                self._host.spread(self, error)
            else:
                for name, figure in self._host.place.measure(self.position).items():
                    self.metric(name, figure)
                super().__exit__(kind, error, trace)

    def note_failure(self, error: BaseException, consequence: str = "") -> None:
        """Record an error as the end of the job, and what it means for other jobs; `say_bye` must follow."""
        self.__enter__()
        self.has_ended = self._leaving = True
        first, _, remainder = str(error).partition("\n")
        self._note_error(error, "\n".join([f"{first}; {consequence}" if consequence else first, remainder]))

    def say_bye(self) -> None:
        """Tell the orchestrator that the job has failed; the files stay open for the tenant's thread."""
        self._send(type="bye", status="error")


class Host:
    """The tenants of this process and the place where they run."""

    def __init__(self, tenants: Sequence[dict[str, Any]]) -> None:
        self.num_tenants = len(tenants)
        self.stdout, self.stderr = SplitOutput(sys.stdout), SplitOutput(sys.stderr)
        self.place = Place()
        self.ending = threading.RLock()
        self._specs = tenants
        self._tenants = [Tenant(spec["folder"], position, self) for position, spec in enumerate(tenants)]

    def run(self, make_place: Callable[[int], Place]) -> None:
        """Build the tenants in turn, and wait for the end of all; `make_place` gets their number."""
        sys.stdout, sys.stderr = self.stdout, self.stderr
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _MARKS)
        client.host_tenants(self._find_tenant)
        self._tenants[0].__enter__()  # so that this process ends with the orchestrator, also while the place is made
        try:
            self.place = make_place(self.num_tenants)
        except Exception as error:  # noqa: BLE001  every job reports it
            traceback.print_exc()
            self._end(self._tenants, error)
            return
        threads = []
        for tenant, spec in zip(self._tenants, self._specs):  # noqa: B905  Python 3.8 has no `strict`
            os.environ.update(spec["environ"])
            sys.argv = list(spec["argv"])
            threads.append(threading.Thread(target=self._run_tenant, args=(tenant, spec), daemon=True))
            threads[-1].start()
            tenant.is_built.wait()
        for thread in threads:
            thread.join()

    def spread(self, tenant: Tenant, error: BaseException) -> None:
        """End a tenant that failed, in its thread; if no tenant can go on, end all of them with this error."""
        if not isinstance(error, SystemExit):  # before the orchestrator can end the process
            traceback.print_exception(type(error), error, error.__traceback__)
        if self.place.works():
            self._end([tenant], error, "the other jobs of its process could go on")
            return
        running = [other for other in self._tenants if other is tenant or not other.has_ended]
        # The tenant that caused an error of CUDA need not be the first that sees it.
        self._end(running, error, f"it ended the process of all jobs; job {tenant.index} was the first to see it")

    def _end(self, tenants: Sequence[Tenant], error: BaseException, consequence: str = "") -> None:
        for tenant in tenants:
            tenant.note_failure(error, consequence)
        for tenant in tenants:  # at the first of these messages, the orchestrator ends the process
            tenant.say_bye()

    def _find_tenant(self) -> Tenant | None:
        position = find_position()
        return None if position is None else self._tenants[position]

    def _run_tenant(self, tenant: Tenant, spec: dict[str, Any]) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, [_MARKS[tenant.position]])
        try:
            self.stdout.open_file(tenant.position, spec["stdout"])
            self.stderr.open_file(tenant.position, spec["stderr"])
            with self.place.enter(tenant.position):
                self._execute(tenant, spec["argv"][0])
        finally:
            self.stdout.flush()
            self.stderr.flush()
            tenant.is_built.set()

    def _execute(self, tenant: Tenant, script: str) -> None:
        error: BaseException = RuntimeError("the program ended without using the job protocol")
        try:
            run_script(script)
        except SystemExit as exited:
            error = exited if exited.code else error
        except BaseException as raised:  # noqa: BLE001  a thread has no caller that would report it
            error = raised
        if not tenant.has_ended:
            with self.ending:
                self.spread(tenant, error)


def run_script(script: str) -> None:
    """Run a program as `__main__`, as `python SCRIPT` does; runpy cannot run several in threads."""
    module = types.ModuleType("__main__")
    module.__file__ = script
    sys.modules["__main__"] = module
    sys.path[0] = os.path.dirname(script)
    with open(script, "rb") as file:
        exec(compile(file.read(), script, "exec"), module.__dict__)  # noqa: S102  the program of the job


def find_position() -> int | None:
    """Return the position of the tenant that this thread belongs to; `None`: the thread is the process's.

    A thread that Python did not start may work for all tenants, as torch's threads for backward passes do.
    """
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    positions = [position for position, mark in enumerate(_MARKS) if mark in blocked]
    is_foreign = threading.current_thread().name.startswith("Dummy-")
    return positions[0] if len(positions) == 1 and not is_foreign else None


class SplitOutput:
    """A text stream that writes to the file of the current thread's tenant, or else to the process's stream."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._files: dict[int | None, Any] = {}

    def open_file(self, position: int, path: str) -> None:
        """Open the file of a tenant; it stays open, because threads of the tenant may outlive its program."""
        self._files[position] = open(path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files.get(find_position(), self._stream), name)


def run_tenants(make_place: Callable[[dict[str, Any], int], Place]) -> None:
    """Run the tenants of the file on the command line; `make_place` gets the options and the number of tenants."""
    with open(sys.argv[1], encoding="utf-8") as file:
        spec = json.load(file)
    Host(spec["tenants"]).run(lambda number: make_place(spec["options"], number))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)  # without the teardown of libraries, as each program exits in a process of its own
