"""A worker of a launcher, which runs shards of a study on one GPU, one after another.

The worker reads a shard number from each line of its standard input, runs the shard, and writes the exit status to its
standard output; an empty line requests the whole study. The worker exits at the end of its input or on a signal. Each
shard is planned and recorded separately; imports, composed configurations and the tracking process are reused.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import random
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO

from omegaconf import DictConfig

from pipeline.base.system import interrupts, words
from pipeline.record import tracking_sender
from pipeline.record.tracking_sender import Sender
from pipeline.study.execution import execute

STATUS = "exit_status"
"""Key of the exit status in a reply to the launcher."""

_SHORTEST_S = 0.1


def run(configs: Sequence[DictConfig]) -> int:
    """Run the shards that standard input requests; return the worst exit status."""
    begin_s, worst, tracker = time.monotonic(), 0, tracking_sender.take()
    with _take_streams() as (requests, answers):
        try:
            for line in requests:
                if not (line.strip() or "0").isdecimal():
                    words.say(f"error: {line.strip()!r} is not a shard; write one number on each line of the input")
                    return 2
                tracker = tracker.renew()
                elapsed_s = time.monotonic() - begin_s
                of_shard = [_take_shard(config, line.strip(), elapsed_s) for config in configs]
                with _preserve_state():
                    status = execute(of_shard, is_sweep=True, take_sender=partial(_lend, tracker))
                worst = max(worst, status)
                with suppress(OSError):  # the launcher was killed; the end of the input ends this loop
                    answers.write(json.dumps({STATUS: status}).encode() + b"\n")
        finally:
            with interrupts.hold_interrupts():
                tracker.close()
    return worst


def _take_shard(config: DictConfig, shard: str, elapsed_s: float) -> DictConfig:
    config = copy.deepcopy(config)
    if shard:
        config.shard = int(shard)
    if config.time_limit_s is not None:
        config.time_limit_s = max(_SHORTEST_S, config.time_limit_s - elapsed_s)
    return config


@contextmanager
def _preserve_state() -> Iterator[None]:
    """Restore process state that a user's code, such as an exporter, may change."""
    environ, path, folder = dict(os.environ), list(sys.path), os.open(".", os.O_RDONLY)
    before, disabled = _read_loggers(), logging.root.manager.disable
    handlers = {number: handler for number in interrupts.SIGNALS if (handler := signal.getsignal(number)) is not None}
    try:
        with warnings.catch_warnings():
            yield
    finally:
        os.fchdir(folder)
        os.close(folder)
        os.environ.clear()
        os.environ.update(environ)
        sys.path[:] = path
        random.seed()
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed()
        for number, handler in handlers.items():
            signal.signal(number, handler)
        logging.disable(disabled)
        for logger in _read_loggers():
            level, logger.handlers[:] = before.get(logger, (logging.NOTSET, ()))
            logger.setLevel(level)


def _read_loggers() -> dict[logging.Logger, tuple[int, Sequence[logging.Handler]]]:
    loggers = (logging.root, *logging.root.manager.loggerDict.values())
    return {logger: (logger.level, tuple(logger.handlers)) for logger in loggers if isinstance(logger, logging.Logger)}


@contextmanager
def _lend(tracker: Sender) -> Iterator[Sender]:
    yield tracker  # stays open for the next shard


@contextmanager
def _take_streams() -> Iterator[tuple[IO[str], IO[bytes]]]:
    """Reserve standard input and output for the launcher; discard the study's tables, which cover one shard only."""
    sys.stdout.flush()
    with (
        os.fdopen(os.dup(0)) as requests,
        os.fdopen(os.dup(1), "wb", buffering=0) as answers,
        Path(os.devnull).open("r+b") as nothing,
    ):
        for descriptor in (0, 1):
            os.dup2(nothing.fileno(), descriptor)
        yield requests, answers
