"""One run of a training program: warm-up, check of results, barrier, epochs."""

from __future__ import annotations

import argparse
import logging
import math
import time
from collections.abc import Mapping
from contextlib import nullcontext
from itertools import chain, islice, repeat

import torch
from torch import nn

from workloads import client, program
from workloads.data.batches import IGNORED, Batches, TrainingData
from workloads.training import canary
from workloads.training import training_steps as steps
from workloads.training.recipes import Recipe
from workloads.training.training_steps import LossRecord, Step, StepClock, Training

_log = logging.getLogger(__name__)


class NonFiniteLossError(ArithmeticError):
    """The mean loss of an epoch is infinite or not a number."""


class Trainer:
    """Training for a number of epochs; 0: until stopped.

    With `validates`, accuracy is measured after each of a fixed number of epochs, or once after the stop. With
    synthetic data, accuracy is meaningless: validation after each epoch then only takes its usual time, and validation
    after the stop is omitted.
    """

    def __init__(
        self, job: client.NullJob, training: Training, data: TrainingData, step: Step, *, epochs: int, validates: bool
    ) -> None:
        self._job, self._training, self._data, self._step = job, training, data, step
        self._epochs = epochs
        self._validation = data.validation if validates else None
        self._recipe = training.recipe
        runs_ahead = training.device.type == "cuda" and not training.recipe.reads_loss
        self._clock = StepClock(job.step, runs_ahead=runs_ahead)
        self._losses = LossRecord(training.device)
        self._first_losses_sent = False

    def train(self) -> None:
        """Train for all epochs or until stopped.

        Raises:
            NonFiniteLossError: the mean loss of a complete or partial epoch is not finite.
        """
        done = 0
        while not self._job.stopping and (self._epochs == 0 or done < self._epochs):
            started_ns, held_ns = time.monotonic_ns(), self._job.held_ns
            complete = self._issue_epoch(done + 1)
            self._clock.drain()
            seconds = (self._clock.last_ns - started_ns - (self._job.held_ns - held_ns)) / 1e9
            loss = self._check_loss(done + 1)
            if not complete or loss is None:
                break
            done += 1
            self._report(done, seconds, loss)
        if self._epochs == 0 and self._validation is not None and not self._data.is_made_up:
            accuracy = self._validate(self._validation)
            self._job.metric("accuracy_ratio", accuracy, step=done)
            _log.info("accuracy %.4f after %d complete epochs", accuracy, done)

    def _issue_epoch(self, number: int) -> bool:
        num_steps = 0
        self._recipe.begin_epoch(number)
        for inputs, labels in self._job.until_stop(self._data.train.epoch(number), self._clock.drain):
            loss = self._step(inputs, labels)
            self._losses.add(loss)
            if self._recipe.reads_loss:
                loss.item()
            self._clock.note_issued(len(labels), number)
            num_steps += 1
        return num_steps == self._data.train.num_batches

    def _check_loss(self, number: int) -> float | None:
        if not self._first_losses_sent:
            for index, loss in enumerate(self._losses.first()):
                self._job.metric("first_loss", loss, step=index)
            self._first_losses_sent = True
        mean = self._losses.take_mean()
        if mean is not None and not math.isfinite(mean):
            raise NonFiniteLossError(f"the mean loss is {mean} in epoch {number}; use a smaller learning_rate")
        return mean

    def _report(self, number: int, seconds: float, loss: float) -> None:
        figures = {"loss": loss}
        if self._epochs > 0 and self._validation is not None:
            self._job.phase("validate")
            began = time.monotonic()
            accuracy = self._validate(self._validation)
            figures["validation_s"] = time.monotonic() - began
            if not self._data.is_made_up:
                figures["accuracy_ratio"] = accuracy
            self._job.phase("train")
        self._job.epoch(number, seconds, **figures)
        text = ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
        rate = self._data.train.num_batches / seconds
        _log.info("epoch %d: %.3f s, %.4g steps/s, %s", number, seconds, rate, text)

    def _validate(self, batches: Batches) -> float:
        """Return the share of labels predicted correctly by the original, uncompiled model."""
        model = self._training.model.eval()
        num_correct, total = torch.zeros((2,), dtype=torch.int64, device=self._training.device)
        with torch.no_grad():
            for inputs, labels in batches.epoch(0):
                predicted = self._training.forward(model, inputs).argmax(-1)
                num_correct += (predicted == labels).sum()  # never true for ignored labels
                total += (labels != IGNORED).sum()
        model.train()
        return float(num_correct.item()) / float(total.item())


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
