"""The process that workers are forked from: a copy of the launcher that has composed the study.

A worker that is forked differs in its past only from a `run.py` that was started: it has a session, CPUs, output, the
command line and a sender of its own. Nothing but imports happens in the template: it opens no GPU, takes no lock,
touches no store. It ends with the launcher; its workers do not, unless they are to.

What keeps it from being forked lets workers start from nothing; that costs time, and nothing else.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from pipeline import outcome, study
from pipeline.base import forked, interrupts, library_internals, user_command
from pipeline.base.forked import Forked
from pipeline.plan import command_line
from pipeline.record import sender

# What a worker imports only when it gets there, beside the classes of its configuration.
_NEEDED = ("pynvml.nvml", "pipeline.report.closing.text", "pipeline.simulation.nvml.library.Library")
log = logging.getLogger(__name__)


def name_of(argv: Sequence[str]) -> str:
    """What `top` calls a worker, by its command line; Linux keeps 15 characters of it."""
    return " ".join(["run.py", *(word for word in argv if word.startswith("unit="))])


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
        asked = {"argv": list(argv), "overrides": overrides, "cpus": sorted(cpus), forked.IS_BOUND: ends_with_launcher}
        worker = Forked(self._control, asked, outputs)
        _ = worker.pid  # it runs, or this raises
        return worker


@contextmanager
def begun(configs: Sequence[DictConfig]) -> Iterator[Template | None]:
    """Fork the template of the workers of a study from this process; `None` if it has threads, or for a dry run."""
    if configs[0].dry_run or not forked.has_one_thread():
        yield None
        return
    sender.start_forking()
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
    """Import, and fork a worker for each request until the launcher is gone."""
    os.setsid()  # Ctrl-C on a terminal is for the launcher
    sender.forget_early()
    before = dict(os.environ)
    os.environ.update(forked.WITHOUT_THREADS)
    for target in (*_NEEDED, *_targets(OmegaConf.to_container(configs[0]))):
        with suppress(Exception):  # a worker that needs it says so
            importlib.import_module(target.rpartition(".")[0])
    os.environ.clear()
    os.environ.update(before)
    gc.freeze()  # what is shared stays shared: the collector would write into every object
    if not forked.has_one_thread():
        log.warning("workers start from nothing: what they import starts threads")
        return 1
    return forked.serve(control, partial(_work, configs))


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
    interrupts.heed(signal.SIGTERM)  # by which a launcher ends its workers
    forked.become_standard((os.open(os.devnull, os.O_RDONLY), *outputs))
    os.sched_setaffinity(0, request["cpus"])
    outcome.typed_for_study = outcome.command_line()
    sys.argv = request["argv"]
    forked.call_itself(name_of(sys.argv))
    overrides = OverridesParser.create().parse_overrides(request["overrides"])
    for config in configs:
        library_internals.set_values(overrides, config)

    def main() -> None:
        study.execute(configs, is_sweep=True)

    return command_line.run(main)
