"""Image classification with a model of timm, as a job or by hand: `python workloads/train_timm.py --help`.

Warm-up runs real steps and leaves no trace, so that the losses of a run depend on its seed alone. Standard output is a
log: one line an epoch.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":  # by its path: workloads/__init__.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from workloads import client, program
from workloads.images.options import TrainTimm

if TYPE_CHECKING:
    import torch

    from workloads.training.recipes import Recipe
    from workloads.training.steps import Training


def run(args: argparse.Namespace, job: client.NullJob) -> None:
    """Set up, warm up, wait for the group, train."""
    job.phase("import")
    from workloads.images.image_data import open_data
    from workloads.training.run import train

    job.phase("build")
    device = program.device_of(args)
    program.set_arithmetic(args, args.precision, autotunes=args.autotune != "off")
    with closing(open_data(args.options, args.seed, device)) as data:
        training = _build(args, device)
        facts = program.recorded(args) | program.facts_of(device, training.model.parameters(), "timm")
        train(args, job, training, data, facts, tunes_in_turn=args.autotune == "in_turn")


def _build(args: argparse.Namespace, device: torch.device) -> Training:
    import torch

    from workloads.images.vision import import_torchvision
    from workloads.training.steps import Training

    import_torchvision()
    import timm

    model = timm.create_model(args.model, num_classes=args.num_classes, **args.model_args).to(device)
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)
    return Training(
        model=model.train(),
        recipe=_recipe(args, model, device),
        scaler=torch.amp.GradScaler(device.type, enabled=args.precision == "fp16"),
        device=device,
        autocast=program.autocast_dtype(args.precision),
    )


def _recipe(args: argparse.Namespace, model: torch.nn.Module, device: torch.device) -> Recipe:
    from workloads.training import recipes

    if args.recipe == "plain":
        return recipes.plain(model, args.learning_rate)
    return recipes.timm(
        model,
        args.learning_rate,
        batch_size=args.batch_size,
        num_epochs=args.epochs,
        rate_on=device if args.step_mode == "cuda_graph" else None,
    )


if __name__ == "__main__":
    program.run_program(TrainTimm, run)
