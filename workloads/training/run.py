"""One run of a training program: warm-up, check of results, barrier, epochs."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import nullcontext
from itertools import chain, islice, repeat

import torch
from torch import nn

from workloads import client, program
from workloads.data.batches import Batches, TrainingData
from workloads.training import canary
from workloads.training import training_steps as steps
from workloads.training.epochs import Trainer
from workloads.training.recipes import Recipe
from workloads.training.training_steps import Step, Training


def train(
    args: argparse.Namespace,
    job: client.NullJob,
    training: Training,
    data: TrainingData,
    facts: Mapping[str, object],
    *,
    tunes_in_turn: bool = False,
) -> None:
    """Warm up, wait at the group's barrier, and train, as set by the flags that all training programs have.

    Facts other than `None` are recorded. With `tunes_in_turn`, the jobs of a group run their first steps one at a time.
    """
    params = {**facts, "learning_rate": training.recipe.learning_rate}
    job.param(**{name: param for name, param in params.items() if param is not None})
    job.param(samples_per_epoch=data.train.num_batches * args.batch_size)
    job.phase("warmup")
    step = _warm_up(args, job, training, data.train, tunes_in_turn=tunes_in_turn)
    job.ready()
    job.phase("train")
    Trainer(job, training, data, step, epochs=args.epochs, validates=args.validate).train()
    program.report_memory(job, training.device)


def make_training(args: argparse.Namespace, model: nn.Module, recipe: Recipe, device: torch.device) -> Training:
    """Return the `Training` of a model, with the precision given on the command line."""
    return Training(
        model=model,
        recipe=recipe,
        scaler=torch.amp.GradScaler(device.type, enabled=args.precision == "fp16"),
        device=device,
        autocast=program.choose_autocast(args.precision),
    )


def _warm_up(
    args: argparse.Namespace, job: client.NullJob, training: Training, batches: Batches, *, tunes_in_turn: bool
) -> Step:
    """Run warm-up steps and the canary, and return the step; the model does not change.

    The kernels of the step are then chosen, compiled or captured.
    """
    first = next(batches.epoch(1))
    is_drawing_refused = job.is_tenant and args.step_mode != "cuda_graph"
    with steps.undo(training):
        # In the first step, cuDNN tries every algorithm of each layer, forward and backward.
        with job.take_turn() if tunes_in_turn else nullcontext():
            if args.step_mode == "cuda_graph":
                step = steps.capture_step(training, *first)
            else:
                make_step = steps.make_compiled_step if args.step_mode == "compile" else steps.make_eager_step
                step = make_step(training)
            if is_drawing_refused:
                with steps.refuse_drawing(training.device):
                    step(*first)
            elif args.warmup_steps > 0:
                step(*first)
        again_and_again = chain.from_iterable(map(batches.epoch, repeat(1)))
        for batch in islice(again_and_again, max(0, args.warmup_steps - 1)):
            step(*batch)
        if args.canary:
            job.phase("canary")
            eager = steps.make_eager_step(training)
            canary.check(job, training.device, training.autocast, lambda: eager(*first))
    return step
