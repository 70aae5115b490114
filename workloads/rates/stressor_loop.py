"""The loop of a stressor: work and pauses in short periods, so that it works for a given share of the time.

A stressor loads one resource, or one after another in turns, and pauses in idle turns.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from workloads import client, program
from workloads.rates.options import IDLE, Turn, list_round

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


def measure(args: argparse.Namespace, job: client.NullJob, loads: Mapping[str, Load]) -> None:
    """Warm up, wait at the group's barrier, and load the resources for `args.epochs` epochs; 0: until stopped.

    A load of one resource is one turn that does not end: an epoch has a number of calls. With `args.resources`, an
    epoch is a round of turns, each for a time. Each of these is a phase of the job, `turn RESOURCE DIAL`, which ends
    with the next phase, so the orchestrator can hold the steps of other jobs against the turns
    (`pipeline/observe/throughput.py`).
    """
    takes_turns = hasattr(args, "turn_s")
    turns = list_round(args.resources, args.dials) if takes_turns else [(args.resource, args.dial)]
    job.phase("warmup")
    cycles = {
        turn: DutyCycle(next(iter(loads.values())) if turn == IDLE else loads[turn[0]], turn[1]) for turn in turns
    }
    for cycle in cycles.values():
        cycle.warm_up()
    job.ready()
    job.phase("lead" if takes_turns else "measure")
    order = _choose_order(turns, f"{args.seed}-{job.block}") if takes_turns else itertools.cycle(turns)
    if takes_turns:
        _take_turn(job, cycles[IDLE], 1, args.lead_s)
    for number in range(1, args.epochs + 1) if args.epochs else itertools.count(1):
        begin_ns, held_ns = time.monotonic_ns(), job.held_ns
        for turn in itertools.islice(order, len(turns)):
            if job.stopping:
                break
            if takes_turns:
                job.phase(f"turn {turn[0]} {turn[1]:g}")
                num_calls, seconds = _take_turn(job, cycles[turn], number, args.turn_s)
                _log.info("%s, dial %g: %.6g calls a second", *turn, num_calls / seconds)
            else:
                num_calls, _ = _take_turn(job, cycles[turn], number, most_calls=args.calls if args.epochs else None)
        if job.stopping:
            break
        seconds = (time.monotonic_ns() - begin_ns - (job.held_ns - held_ns)) / 1e9
        job.epoch(number, seconds)
        if not takes_turns:
            _log.info("epoch %d: %.3f s, %.6g calls a second", number, seconds, num_calls / seconds)
    if takes_turns:
        job.phase("end")
    for resource, load in loads.items():
        if num_wrong := load.count_wrong():
            program.report_wrong(job, f"{num_wrong} results of the load on {resource} are wrong")


def _choose_order(turns: Sequence[Turn], seed: str) -> Iterator[Turn]:
    """Yield the turns of round after round, each in an order of its own."""
    generator = random.Random(seed)  # noqa: S311  an order, not a secret
    while True:
        yield from generator.sample(turns, len(turns))


def _take_turn(
    job: client.NullJob, cycle: DutyCycle, number: int, turn_s: float | None = None, most_calls: int | None = None
) -> tuple[int, float]:
    """Work in periods until the turn is over or the job is stopped; return the number of calls and the seconds.

    If the orchestrator holds the job, a turn of a given length ends: it was not complete. A phase of work has waited
    for its calls.
    """
    begin_ns, held_ns, num_calls = time.monotonic_ns(), job.held_ns, 0
    for _ in job.until_stop(itertools.count(), finish=lambda: None if turn_s is None else job.phase("held")):
        if turn_s is not None and (job.held_ns > held_ns or time.monotonic_ns() - begin_ns >= turn_s * 1e9):
            break
        num_new = cycle.work()
        job.step(num_new, number)
        num_calls += num_new
        cycle.pause()
        if most_calls is not None and num_calls >= most_calls:
            break
    return num_calls, max(1, time.monotonic_ns() - begin_ns) / 1e9
