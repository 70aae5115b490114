"""The loop of a microbenchmark: repeat one operation and check its results after every step."""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Mapping
from typing import Protocol

import torch

from workloads import client, program
from workloads.training.training_steps import StepClock

_log = logging.getLogger(__name__)


class Operation(Protocol):
    """A measured operation. Its methods issue work to the device and do not wait for it.

    `work` is the work of one call, in the work unit of the workload.
    """

    work: float

    def begin(self) -> None:
        """Reset all state; called before each epoch."""

    def call(self) -> None: ...

    def count_wrong(self) -> torch.Tensor:
        """Return the number of wrong results in a sample, as a scalar tensor.

        The sampled results are overwritten, so the next call checks new results.
        """


def measure(
    args: argparse.Namespace,
    job: client.NullJob,
    operation: Operation,
    device: torch.device,
    calls: int,
    name: str,
    facts: Mapping[str, object],
) -> None:
    """Warm up, wait at the group's barrier, and repeat an operation for `args.epochs` epochs; 0: until stopped.

    `name` is used in messages, `calls` is the number of calls per step, and facts other than `None` are recorded.
    """
    params = {**program.record_options(args), **facts, "calls": calls}
    job.param(**{key: param for key, param in params.items() if param is not None})
    job.phase("warmup")
    num_wrong = torch.zeros((), dtype=torch.int64, device=device)
    operation.begin()
    for _ in range(args.warmup_steps):
        _step(operation, calls, num_wrong)
    _finish(device)
    job.ready()
    job.phase("measure")
    clock = StepClock(job.step, runs_ahead=device.type == "cuda")
    done = 0
    while not job.stopping and (args.epochs == 0 or done < args.epochs):
        operation.begin()
        _finish(device)
        began_ns, held_ns, num_steps = time.monotonic_ns(), job.held_ns, 0
        for _ in job.until_stop(range(args.steps), clock.drain):
            _step(operation, calls, num_wrong)
            clock.note_issued(calls * operation.work, done + 1)
            num_steps += 1
        clock.drain()
        if num_steps < args.steps:
            break
        done += 1
        seconds = (clock.last_ns - began_ns - (job.held_ns - held_ns)) / 1e9
        job.epoch(done, seconds)
        _log.info("epoch %d: %.3f s, %.6g a second", done, seconds, num_steps * calls * operation.work / seconds)
    if count := int(num_wrong.item()):
        program.report_wrong(job, f"{count} results of {name} are wrong")
    program.report_memory(job, device)


def _step(operation: Operation, calls: int, num_wrong: torch.Tensor) -> None:
    for _ in range(calls):
        operation.call()
    num_wrong += operation.count_wrong()


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
