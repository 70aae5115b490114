"""The loop of a stressor that takes turns: it loads one resource after another, and pauses in idle turns.

Each turn is a phase of the job, `turn RESOURCE DIAL`, which ends with the next phase, so the orchestrator can hold the
steps of other jobs against the turns (`pipeline/observe/throughput.py`).
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import time
from collections.abc import Iterator, Mapping, Sequence

from workloads import client
from workloads.rates.duty_cycle import DutyCycle, Load, report_wrong_results
from workloads.rates.options import IDLE, Turn, list_round

_log = logging.getLogger(__name__)


def measure(args: argparse.Namespace, job: client.NullJob, loads: Mapping[str, Load]) -> None:
    """Warm up, wait at the group's barrier, and take turns for `args.epochs` rounds; 0: until stopped."""
    job.phase("warmup")
    turns = list_round(args.resources, args.dials)
    cycles = {
        turn: DutyCycle(next(iter(loads.values())) if turn == IDLE else loads[turn[0]], turn[1]) for turn in turns
    }
    for cycle in cycles.values():
        cycle.warm_up()
    job.ready()
    job.phase("lead")
    order = _choose_order(turns, f"{args.seed}-{job.block}")
    rounds = itertools.count(1) if args.epochs == 0 else range(1, args.epochs + 1)
    _take_turn(job, cycles[IDLE], args.lead_s, 1)
    for number in rounds:
        begin_ns, held_ns = time.monotonic_ns(), job.held_ns
        for turn in itertools.islice(order, len(turns)):
            if job.stopping:
                break
            job.phase(f"turn {turn[0]} {turn[1]:g}")
            num_calls, seconds = _take_turn(job, cycles[turn], args.turn_s, number)
            _log.info("%s, dial %g: %.6g calls a second", *turn, num_calls / seconds)
        if job.stopping:
            break
        job.epoch(number, (time.monotonic_ns() - begin_ns - (job.held_ns - held_ns)) / 1e9)
    job.phase("end")
    report_wrong_results(job, loads)


def _choose_order(turns: Sequence[Turn], seed: str) -> Iterator[Turn]:
    """Yield the turns of round after round, each in an order of its own."""
    generator = random.Random(seed)  # noqa: S311  an order, not a secret
    while True:
        yield from generator.sample(turns, len(turns))


def _take_turn(job: client.NullJob, cycle: DutyCycle, seconds: float, number: int) -> tuple[int, float]:
    """Work in periods until the turn is over or the job is stopped; return the number of calls and the seconds.

    If the orchestrator holds the job, the turn ends: it was not complete.
    """
    begin_ns, held_ns, num_calls = time.monotonic_ns(), job.held_ns, 0
    for _ in job.until_stop(itertools.count(), finish=lambda: job.phase("held")):
        if job.held_ns > held_ns or time.monotonic_ns() - begin_ns >= seconds * 1e9:
            break
        num_new = cycle.work()
        job.step(num_new, number)
        num_calls += num_new
        cycle.pause()
    return num_calls, max(1, time.monotonic_ns() - begin_ns) / 1e9
