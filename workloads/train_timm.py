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
from workloads.program import positive

if TYPE_CHECKING:
    import torch

    from workloads.training.recipes import Recipe
    from workloads.training.steps import Training

_RECORDED = (
    *("model", "dataset", "source", "image_px", "batch_size", "recipe", "step_mode", "precision"),
    *("channels_last", "loader_workers", "autotune", "warmup_steps", "seed"),
)


def build_parser() -> program.Parser:
    """Return the parser of the command line."""
    parser = program.Parser(description="Train a model of timm on images.")
    flag, on_off = parser.add_argument, argparse.BooleanOptionalAction
    flag("--model", required=True, help="name of the model in timm")
    flag("--model-args", nargs="*", action="extend", type=program.model_argument, default=[], metavar="KEY=VALUE",
         help="arguments of the model; values are JSON, or text")  # fmt: skip
    flag("--dataset", required=True, choices=["digits", "cifar10", "imagenet64", "imagenet"])
    flag("--source", default="disk", choices=["disk", "files", "synthetic_files", "synthetic_host", "synthetic_device"])
    flag("--data-root", type=Path, help="folder that holds the data sets")
    flag(
        "--cache-root",
        type=Path,
        help="folder of converted data sets (default: the data set's) and made-up files (default: the user's cache)",
    )
    flag("--image-px", type=positive, required=True)
    flag("--num-classes", type=positive, required=True)
    flag("--samples", type=positive, help="images an epoch of synthetic data (default: as many as the real one has)")
    flag("--recipe", default="plain", choices=["plain", "timm"],
         help="plain: SGD at one learning rate; timm: what timm's train.py does by default")  # fmt: skip
    flag("--channels-last", action=on_off, default=True)
    flag("--autotune", default="off", choices=["in_turn", "together", "off"],
         help="let cuDNN try its algorithms: one job after another, all at once, or not at all")  # fmt: skip
    program.training_flags(parser)
    return parser


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the command line's values; `model_args` becomes a dict.

    Raises:
        UsageError: an argument is wrong, or two exclude each other.
    """
    parser = build_parser()
    args = parser.parse_args(argv)
    args.model_args = dict(args.model_args)
    program.check_training(args, parser)
    if args.samples is not None and args.source in ("disk", "files"):
        parser.error("--samples is for synthetic data; a data set on disk is used whole")
    if args.dataset == "digits" and args.source in ("files", "synthetic_files"):
        parser.error(f"--source {args.source} is for data sets of image files, and the digits come with scikit-learn")
    return args


def main() -> None:
    """Train as the command line says."""
    program.run_program(parse(), build_parser(), run)


def run(args: argparse.Namespace, job: client.NullJob) -> None:
    """Set up, warm up, wait for the group, train.

    Raises:
        UsageError: this machine lacks the device.
        FileNotFoundError, ValueError: the data is missing, or does not fit the arguments.
        NonFiniteLossError: training diverged.
    """
    job.phase("import")
    from workloads.images.image_data import open_data
    from workloads.images.request import DataRequest
    from workloads.training.run import train

    job.phase("build")
    device = program.device_of(args, build_parser())
    program.set_arithmetic(args, args.precision, autotunes=args.autotune != "off")
    with closing(open_data(program.request_of(DataRequest, args), device)) as data:
        training = _build(args, device)
        facts = program.recorded(args, _RECORDED) | program.facts_of(device, training.model.parameters(), "timm")
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
    main()
