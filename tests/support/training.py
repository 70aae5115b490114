"""Run a small training in this process, and record its reports."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from pipeline.base.system.paths import PROJECT_DIR
from workloads import client, program, train_text, train_timm
from workloads.images.options import TrainTimm
from workloads.text.options import TrainText

TRAIN = PROJECT_DIR / "workloads" / "train_timm.py"
DATA = ["--dataset", "digits", "--image-px", "8", "--num-classes", "10", "--batch-size", "100"]
MODEL = ["--model", "resnetv2_50", "--model-args", "layers=[1,1]", "channels=[8,16]", "stem_chs=8", "stem_type="]
SMALL = [*MODEL, *DATA, "--loader-workers", "0", "--threads", "1", "--no-channels-last", "--device", "cpu"]


class Notebook(client.NullJob):
    """A job without an orchestrator, which stores reported values and can stop after a number of steps."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.losses: list[float] = []
        self.epochs: list[tuple[int, float, dict[str, float]]] = []
        self.metrics: dict[str, tuple[float, int]] = {}
        self.steps: list[tuple[int, int | None, int | None]] = []
        self.phases: list[str] = []
        self.canary: dict[str, float] = {}
        self.wrongs: list[str] = []
        self._stop_after = stop_after

    @property
    def stopping(self):
        return self._stop_after is not None and len(self.steps) >= self._stop_after

    def until_stop(self, items, finish=None):
        for item in items:
            if self.stopping:
                return
            yield item

    def phase(self, name):
        self.phases.append(name)

    def metric(self, name, value, step=0):
        if name == "first_loss":
            assert step == len(self.losses)
            self.losses.append(value)
        elif name.startswith("canary"):
            self.canary[name] = value
        else:
            self.metrics[name] = (value, step)

    def wrong(self, what):
        self.wrongs.append(what)

    def step(self, samples, epoch=None, t_ns=None):
        self.steps.append((samples, epoch, t_ns))

    def epoch(self, number, seconds, **metrics):
        self.epochs.append((number, seconds, metrics))


def train(*flags: str, stop_after: int | None = None) -> Notebook:
    """Train on images in this process; return the job with the reported values."""
    return _run(train_timm.run, program.parse(TrainTimm, [*SMALL, *flags]), stop_after)


def train_on_text(*flags: str, stop_after: int | None = None) -> Notebook:
    """Train on text in this process; return the job with the reported values."""
    return _run(train_text.run, program.parse(TrainText, flags), stop_after)


def _run(
    run: Callable[[argparse.Namespace, client.NullJob], None], args: argparse.Namespace, stop_after: int | None
) -> Notebook:
    job = Notebook(stop_after)
    threads = torch.get_num_threads()
    try:
        run(args, job)
    finally:
        torch.set_num_threads(threads)
    return job
