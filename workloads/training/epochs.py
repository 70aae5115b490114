"""Epochs of training: steps, times, losses and accuracies, sent to the orchestrator and written to a log."""

from __future__ import annotations

import logging
import math
import time

import torch

from workloads import client
from workloads.data.batches import IGNORED, Batches, TrainingData
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
        _log.info("epoch %d: %.3f s, %s", number, seconds, text)

    def _validate(self, batches: Batches) -> float:
        """Return the share of labels predicted correctly by the original, uncompiled model."""
        model = self._training.model.eval()
        right, total = torch.zeros((2,), dtype=torch.int64, device=self._training.device)
        with torch.no_grad():
            for inputs, labels in batches.epoch(0):
                predicted = self._training.forward(model, inputs).argmax(-1)
                right += (predicted == labels).sum()  # never true for ignored labels
                total += (labels != IGNORED).sum()
        model.train()
        return float(right.item()) / float(total.item())
