"""The process that workers are forked from: a copy of the launcher that has composed the study and imported MLflow.

A worker that is forked differs in its past only from a `run.py` that was started: it has a session, CPUs, output and
the command line of its own, and forks its sender before it takes anything. Nothing but imports happens in the template:
it opens no GPU, takes no lock, touches no store. It ends with the launcher; its workers do not, unless they are to.

What keeps it from being forked lets workers start from nothing; that costs time, and nothing else.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import selectors
import signal
import socket
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from pipeline import outcome, study, tracking
from pipeline.base import forked, library_internals
from pipeline.plan import command_line, user_command
from pipeline.record import sender
from pipeline.record.store.local import set_mlflow_defaults
from pipeline.record.store.server import import_mlflow

_MAX_REQUEST_BYTES = 1 << 17
# What a worker imports only when it gets there, beside the classes of its configuration.
_NEEDED = ("pynvml.nvml", "pipeline.report.closing.text", "pipeline.simulation.nvml.library.Library")
SENDER = "sender"
"""What `top` calls a worker's sender."""
_NAME = Path("/proc/self/comm")
# Libraries read them when they are imported: pyarrow, OpenBLAS.
_WITHOUT_THREADS = {"JE_ARROW_MALLOC_CONF": "background_thread:false", "OPENBLAS_NUM_THREADS": "1"}

log = logging.getLogger(__name__)


def name_of(argv: Sequence[str]) -> str:
    """What `top` calls a worker, by its command line; Linux keeps 15 characters of it."""
    return " ".join(["run.py", *(word for word in argv if word.startswith("unit="))])


class Forked:
    """A worker that was forked; the part of `Popen` that is used of one."""

    def __init__(self, says: socket.socket) -> None:
        data, self._descriptors, _, _ = socket.recv_fds(says, 64, 1)
        if not data:
            raise OSError("the process that workers are forked from has ended")
        self.pid, self._says = int(data), says

    def send_signal(self, signum: int) -> None:
        """Signal it, and nobody else if it has ended."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptors[0], signum)

    def wait(self) -> int | None:
        """The exit status, once it has ended; `None` if the template ended before, so that nobody knows."""
        with self._says:
            data = self._says.recv(64)
        os.close(self._descriptors[0])
        return int(data) if data else None


class Template:
    """The launcher's end of the socket of the process that workers are forked from."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control

    def start(
        self,
        argv: Sequence[str],
        decided: Mapping[str, object],
        cpus: Collection[int],
        outputs: Sequence[int],
        *,
        ends_with_launcher: bool,
    ) -> Forked:
        """Fork a worker.

        Args:
            argv: its command line.
            decided: what of it differs from that of the study as it was composed.
            cpus: that it may use.
            outputs: its standard output and its error output.
            ends_with_launcher: whether it is told to end if the launcher is killed.

        Raises:
            OSError: it cannot be forked.
        """
        overrides = [user_command.override(key, value) for key, value in decided.items() if not key.startswith("hydra")]
        asked = {"argv": list(argv), "overrides": overrides, "cpus": sorted(cpus), "is_bound": ends_with_launcher}
        request = json.dumps(asked).encode()
        if len(request) > _MAX_REQUEST_BYTES:
            raise OSError(f"a command line of {len(request)} bytes is too long to be passed on")
        says, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            socket.send_fds(self._control, [request], [*outputs, theirs.fileno()])
        return Forked(says)


@contextmanager
def begun(configs: Sequence[DictConfig]) -> Iterator[Template | None]:
    """Fork the template of the workers of a study from this process; `None` if it has threads, or for a dry run."""
    if configs[0].dry_run or not forked.has_one_thread():
        yield None
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        ours.close()
        forked.leave(lambda: _serve(theirs, configs))
    theirs.close()
    try:
        yield Template(ours)
    finally:
        ours.close()
        os.kill(pid, signal.SIGKILL)  # it may still import, and holds nothing
        os.waitpid(pid, 0)


def _serve(control: socket.socket, configs: Sequence[DictConfig]) -> int:
    """Import, and fork a worker for each request until the launcher is gone; say how each ends."""
    os.setsid()  # Ctrl-C on a terminal is for the launcher
    sender.forget_early()
    if why := _obstacle(configs):
        log.warning("workers start from nothing: %s", why)
        return 1
    gc.collect()
    gc.freeze()  # what is shared stays shared: the collector would write into every object
    running: dict[int, tuple[int, int]] = {}  # by the descriptor of each worker: its number, and who hears of its end
    bound: set[int] = set()  # of them, those that end with the launcher
    with selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is not control:
                    selector.unregister(key.fd)
                    bound.discard(key.fd)
                    _reap(key.fd, *running.pop(key.fd))
                    continue
                data, descriptors, _, _ = socket.recv_fds(control, _MAX_REQUEST_BYTES, 3)
                if not data:
                    for descriptor in bound:
                        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
                    return 0
                request = json.loads(data)
                *outputs, hears = descriptors
                if (pid := os.fork()) == 0:
                    selector.close()
                    control.close()
                    for descriptor in (hears, *running, *(other for _, other in running.values())):
                        os.close(descriptor)
                    forked.leave(partial(_work, configs, request, outputs))
                for descriptor in outputs:
                    os.close(descriptor)
                watched = os.pidfd_open(pid)
                running[watched] = pid, hears
                bound |= {watched} if request["is_bound"] else set()
                selector.register(watched, selectors.EVENT_READ)
                with suppress(OSError):
                    _send(hears, str(pid), watched)


def _reap(watched: int, pid: int, hears: int) -> None:
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(OSError):
        _send(hears, str(status))
    os.close(hears)
    os.close(watched)


def _send(hears: int, text: str, *descriptors: int) -> None:
    with socket.socket(fileno=os.dup(hears)) as told:
        socket.send_fds(told, [text.encode()], descriptors)


def _obstacle(configs: Sequence[DictConfig]) -> str | None:
    """Import what a worker and its sender need; what keeps this process from being forked then, in words."""
    before = dict(os.environ)
    os.environ.update(_WITHOUT_THREADS)
    set_mlflow_defaults()
    try:
        import_mlflow(with_database=True)
        for target in (*_NEEDED, *_targets(OmegaConf.to_container(configs[0]))):
            with suppress(ImportError):  # a worker that needs it says so
                importlib.import_module(target.rpartition(".")[0])
    except Exception as error:  # noqa: BLE001  whatever it is, workers can still start from nothing
        return f"{type(error).__name__}: {error}"
    finally:
        os.environ.clear()
        os.environ.update(before)
    return None if forked.has_one_thread() else "what they import starts threads"


def _targets(node: Any) -> Iterator[str]:
    """The classes that a configuration names."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield str(node["_target_"])
        for each in node.values():
            yield from _targets(each)


def _work(configs: Sequence[DictConfig], request: Mapping[str, Any], outputs: Sequence[int]) -> int:
    """Be a worker."""
    os.setsid()
    forked.become_standard((os.open(os.devnull, os.O_RDONLY), *outputs))
    os.sched_setaffinity(0, request["cpus"])
    outcome.typed_for_study = outcome.command_line()
    sys.argv = request["argv"]
    _NAME.write_text(name_of(sys.argv))  # the command line that `ps` shows is the launcher's
    sender.serve_in_fork = _send_groups
    overrides = OverridesParser.create().parse_overrides(request["overrides"])
    for config in configs:
        library_internals.set_values(overrides, config)

    def main() -> None:
        study.execute(configs, is_sweep=True)

    return command_line.run(main)


def _send_groups() -> int:
    """Be the sender of a worker."""
    _NAME.write_text(SENDER)
    return tracking.main(["serve"])
