"""The loop of a stressor: work and pauses in short periods, so that it works for a given share of the time."""

from __future__ import annotations

import argparse
import itertools
import logging
import time
from collections.abc import Mapping
from typing import Protocol

from workloads import client, program

_PERIOD_NS = 5_000_000
"""Time from one pause to the next, if each phase of work ends in time."""
_WARMUP_PERIODS = 10

_log = logging.getLogger(__name__)


class Load(Protocol):
    """An operation that loads one resource."""

    def run_until(self, end_ns: int) -> int:
        """Repeat the operation until this monotonic time, at least once; wait for it; return the number of calls."""

    def count_wrong(self) -> int:
        """Return the number of wrong results."""


class DutyCycle:
    """Phases of work, each followed by a pause, so that work takes the share `dial` of the time.

    A phase ends after `dial` periods, or later with its last call. The pause is proportional to the actual length of
    the phase, and too long a pause shortens the next one. So the share also holds while other jobs slow down the calls.
    """

    def __init__(self, load: Load, dial: float) -> None:
        self._load, self._dial, self._owed_ns = load, dial, 0.0

    def work(self) -> int:
        """Run a phase of work; return its number of calls, which is 0 with a dial of 0."""
        if self._dial == 0:
            self._owed_ns += _PERIOD_NS
            return 0
        begin_ns = time.monotonic_ns()
        num_calls = self._load.run_until(begin_ns + int(self._dial * _PERIOD_NS))
        self._owed_ns += (time.monotonic_ns() - begin_ns) * (1 - self._dial) / self._dial
        return num_calls

    def warm_up(self) -> None:
        """Run some periods."""
        for _ in range(_WARMUP_PERIODS):
            self.work()
            self.pause()

    def pause(self) -> None:
        """Wait for the rest of the period."""
        if self._owed_ns > 0:
            begin_ns = time.monotonic_ns()
            time.sleep(self._owed_ns / 1e9)
            self._owed_ns -= time.monotonic_ns() - begin_ns


def measure(args: argparse.Namespace, job: client.NullJob, load: Load) -> None:
    """Warm up, wait at the group's barrier, and work in periods for `args.epochs` epochs; 0: until stopped."""
    job.phase("warmup")
    cycle = DutyCycle(load, args.dial)
    cycle.warm_up()
    job.ready()
    job.phase("measure")
    for epoch in range(1, args.epochs + 1) if args.epochs else itertools.count(1):
        begin_ns, held_ns, num_calls = time.monotonic_ns(), job.held_ns, 0
        for _ in job.until_stop(itertools.count(), finish=wait_for_nothing):
            num_new = cycle.work()
            job.step(num_new, epoch)
            num_calls += num_new
            cycle.pause()
            if args.epochs and num_calls >= args.calls:
                break
        if job.stopping:
            break
        seconds = (time.monotonic_ns() - begin_ns - (job.held_ns - held_ns)) / 1e9
        job.epoch(epoch, seconds)
        _log.info("epoch %d: %.3f s, %.6g calls a second", epoch, seconds, num_calls / seconds)
    report_wrong_results(job, {args.resource: load})


def report_wrong_results(job: client.NullJob, loads: Mapping[str, Load]) -> None:
    """Report the wrong results of loads, by resource."""
    for resource, load in loads.items():
        if num_wrong := load.count_wrong():
            program.report_wrong(job, f"{num_wrong} results of the load on {resource} are wrong")


def wait_for_nothing() -> None:
    """Do nothing: a phase of work has waited for its calls."""
