"""Image classification with a model of timm, as a job or by hand: `python workloads/train_timm.py --help`.

Warm-up runs real steps and then undoes their effect, so the losses of a run depend only on its seed. Standard output
has one line per epoch.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":  # reason: see workloads/__init__.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from workloads import client, program
from workloads.images.options import TrainTimm

if TYPE_CHECKING:
    import torch

    from workloads.training.recipes import Recipe
    from workloads.training.training_steps import Training


def run(args: argparse.Namespace, job: client.NullJob) -> None:
    """Set up, warm up, wait at the group's barrier, and train."""
    job.phase("import")
    from workloads.images.image_data import open_data
    from workloads.training.run import train

    job.phase("build")
    device = program.find_device(args)
    program.set_arithmetic(args, args.precision, autotunes=args.autotune != "off")
    with closing(open_data(args.options, args.seed, device)) as data:
        training = _build(args, device)
        facts = program.record_options(args) | program.describe_run(device, training.model.parameters(), "timm")
        train(args, job, training, data, facts, tunes_in_turn=args.autotune == "in_turn")


def _build(args: argparse.Namespace, device: torch.device) -> Training:
    import torch

    from workloads.images.vision import import_torchvision
    from workloads.training.run import make_training

    import_torchvision()
    import timm

    model = timm.create_model(args.model, num_classes=args.num_classes, **args.model_args).to(device)
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)
    return make_training(args, model.train(), _recipe(args, model, device), device)


def _recipe(args: argparse.Namespace, model: torch.nn.Module, device: torch.device) -> Recipe:
    from workloads.training import recipes

    if args.recipe == "plain":
        return recipes.make_plain(model, args.learning_rate)
    return recipes.make_timm(
        model,
        args.learning_rate,
        batch_size=args.batch_size,
        num_epochs=args.epochs,
        rate_on=device if args.step_mode == "cuda_graph" else None,
    )


if __name__ == "__main__":
    program.run_program(TrainTimm, run)
