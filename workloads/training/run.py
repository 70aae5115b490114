"""One run of a training program: warm-up, the check that its results are right, the barrier, the epochs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING

import torch

from workloads.training import canary, steps
from workloads.training.epochs import Trainer

if TYPE_CHECKING:
    import argparse

    from workloads import client
    from workloads.data.batches import Batches, TrainingData
    from workloads.training.steps import Step, Training


def train(
    args: argparse.Namespace,
    job: client.NullJob,
    training: Training,
    data: TrainingData,
    facts: Mapping[str, object],
    *,
    tunes_in_turn: bool = False,
) -> None:
    """Warm up, wait for the group, train as the command line says, with the flags that all training programs have.

    Args:
        args: the command line.
        job: that is told.
        training: what is trained.
        data: with what.
        facts: to be recorded of it; what is `None` is left out.
        tunes_in_turn: the first step may not be made while other jobs make theirs.

    Raises:
        NonFiniteLossError: training diverged.
    """
    found = {**facts, "learning_rate": training.recipe.learning_rate}
    job.param(**{name: value for name, value in found.items() if value is not None})
    job.param(samples_per_epoch=data.train.num_batches * args.batch_size)
    job.phase("warmup")
    step = _warm_up(args, job, training, data.train, tunes_in_turn=tunes_in_turn)
    job.ready()
    job.phase("train")
    Trainer(job, training, data, step, epochs=args.epochs, validates=args.validate).train()
    if training.device.type == "cuda":
        job.metric("memory_allocated_peak_mib", torch.cuda.max_memory_allocated() / 2**20)


def _warm_up(
    args: argparse.Namespace, job: client.NullJob, training: Training, batches: Batches, *, tunes_in_turn: bool
) -> Step:
    """Return the step, warm: its kernels chosen, compiled or captured, and nothing learned. Also runs the canary."""
    first = next(batches.epoch(1))
    with steps.undone(training):
        # cuDNN tries every algorithm of a layer in the first step, forward and backward.
        with job.in_turn() if tunes_in_turn else nullcontext():
            if args.step_mode == "cuda_graph":
                step = steps.graph_step(training, *first)
            else:
                step = steps.compiled_step(training) if args.step_mode == "compile" else steps.eager_step(training)
            if args.warmup_steps > 0:
                step(*first)
        again_and_again = chain.from_iterable(map(batches.epoch, repeat(1)))
        for batch in islice(again_and_again, max(0, args.warmup_steps - 1)):
            step(*batch)
        if args.canary:
            job.phase("canary")
            eager = steps.eager_step(training)
            canary.check(job, training.device, training.autocast, lambda: eager(*first))
    return step
