"""Image classification with a model of timm, as a job or by hand: `python workloads/train_timm.py --help`.

Warm-up runs real steps and leaves no trace, so that the losses of a run depend on its seed alone. Standard output is a
log: one line an epoch.
"""

from __future__ import annotations

import argparse
import logging
import sys
from contextlib import closing, nullcontext
from itertools import chain, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":
    # Started by its path, this folder comes first on the module path, where our file names would shadow others'.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from workloads import client, program
from workloads.program import count, positive

if TYPE_CHECKING:
    import torch

    from workloads.data.batches import Batch, Batches, TrainingData
    from workloads.images.request import DataRequest
    from workloads.training.recipes import Recipe
    from workloads.training.steps import Step, Training

_RECORDED = (
    *("model", "dataset", "source", "image_px", "batch_size", "recipe", "step_mode", "precision"),
    *("channels_last", "loader_workers", "autotune", "warmup_steps", "seed"),
)
_log = logging.getLogger(__name__)


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
    flag("--batch-size", type=positive, required=True)
    flag("--recipe", default="plain", choices=["plain", "timm"],
         help="plain: SGD at one learning rate; timm: what timm's train.py does by default")  # fmt: skip
    flag("--learning-rate", type=float, help="of the first epoch (default: 0.1; recipe timm: 0.1 for 256 images)")
    flag("--step-mode", default="eager", choices=program.STEP_MODES)
    flag("--precision", default="default", choices=program.PRECISIONS,
         help="default: what torch does by itself, which is TF32 in convolutions and fp32 in products")  # fmt: skip
    flag("--channels-last", action=on_off, default=True)
    flag("--loader-workers", type=count, default=2, help="loader processes; 0 loads in this one")
    flag("--threads", type=positive, help="CPU threads of torch (default: its own choice)")
    flag("--autotune", default="off", choices=["in_turn", "together", "off"],
         help="let cuDNN try its algorithms: one job after another, all at once, or not at all")  # fmt: skip
    flag("--warmup-steps", type=count, default=10, help="warm-up steps before the run, undone before it begins")
    flag("--canary", action=on_off, default=True, help="check first that products and convolutions come out right")
    flag("--validate", action=on_off, default=False, help="measure the accuracy; synthetic data has none")
    flag("--seed", type=count, default=0)
    flag("--device", default="auto", choices=["auto", "cuda", "cpu"])
    flag("--epochs", type=count, default=1, help="0: until told to stop, as a job only")
    return parser


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """Return the command line's values; `model_args` becomes a dict.

    Raises:
        UsageError: an argument is wrong, or two exclude each other.
    """
    parser = build_parser()
    args = parser.parse_args(argv)
    args.model_args = dict(args.model_args)
    if args.step_mode == "cuda_graph" and args.precision == "fp16":
        parser.error("--step-mode cuda_graph excludes --precision fp16: the loss scaler reads the device at every step")
    if args.step_mode == "cuda_graph" and args.device == "cpu":
        parser.error("--step-mode cuda_graph needs a GPU")
    if args.samples is not None and args.source in ("disk", "files"):
        parser.error("--samples is for synthetic data; a data set on disk is used whole")
    if args.dataset == "digits" and args.source in ("files", "synthetic_files"):
        parser.error(f"--source {args.source} is for data sets of image files, and the digits come with scikit-learn")
    return args


def main() -> None:
    """Train as the command line says."""
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
    args = parse()
    with client.attach() as job:
        if args.epochs == 0 and not job.attached:
            build_parser().error("--epochs 0 trains until told to stop, which needs the orchestrator; give a number")
        run(args, job)
    if job.attached:
        program.leave()


def run(args: argparse.Namespace, job: client.NullJob) -> None:
    """Set up, warm up, wait for the group, train.

    Raises:
        UsageError: this machine lacks the device.
        FileNotFoundError, ValueError: the data is missing, or does not fit the arguments.
        NonFiniteLossError: training diverged.
    """
    job.phase("import")
    import torch

    from workloads.images.image_data import open_data

    job.phase("build")
    device = program.device_of(args, build_parser())
    program.set_arithmetic(args, autotunes=args.autotune != "off")
    with closing(open_data(_data_request(args), device)) as data:
        _train(args, job, _build(args, device), data)
    if device.type == "cuda":
        job.metric("memory_allocated_peak_mib", torch.cuda.max_memory_allocated() / 2**20)


def _train(args: argparse.Namespace, job: client.NullJob, training: Training, data: TrainingData) -> None:
    from workloads.training.epochs import Trainer

    _describe(args, job, training)
    job.param(samples_per_epoch=data.train.num_batches * args.batch_size)
    job.phase("warmup")
    step = _warm_up(args, job, training, data.train)
    job.ready()
    job.phase("train")
    Trainer(job, training, data, step, epochs=args.epochs, validates=args.validate).train()


def _data_request(args: argparse.Namespace) -> DataRequest:
    from dataclasses import fields

    from workloads.images.request import DataRequest

    return DataRequest(**{field.name: getattr(args, field.name) for field in fields(DataRequest)})


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


def _warm_up(args: argparse.Namespace, job: client.NullJob, training: Training, batches: Batches) -> Step:
    """Return the step, warm: its kernels chosen, compiled or captured, and nothing learned. Also runs the canary."""
    from workloads.training import steps

    first = next(batches.epoch(1))
    with steps.undone(training):
        # cuDNN tries every algorithm of a layer in the first step, forward and backward.
        with job.in_turn() if args.autotune == "in_turn" else nullcontext():
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
            _check_results(job, training, first)
    return step


def _check_results(job: client.NullJob, training: Training, batch: Batch) -> None:
    """Check what this process computes: on a GPU delicate products, and everywhere an eager step of its own."""
    import torch

    from workloads.training import canary, steps

    products, own = canary.Canary(), canary.Canary()
    if training.device.type == "cuda":
        products.check_products(training.device, training.autocast or torch.float32)
    step = steps.eager_step(training)
    with own.watching():
        step(*batch)
    for what in (*products.wrong, *own.wrong):
        _log.warning("wrong result: %s", what)
        job.wrong(what)
    job.metric("canary_checked_count", products.num_checked + own.num_checked)
    job.metric("canary_left_out_count", products.num_left_out + own.num_left_out)
    job.metric("canary_s", products.spent_s + own.spent_s)


def _describe(args: argparse.Namespace, job: client.NullJob, training: Training) -> None:
    """Record what runs, on what, with which versions; what is not there is left out."""
    facts = program.facts_of(training.model, training.device, "timm")
    facts["learning_rate"] = training.recipe.learning_rate
    facts |= {name: getattr(args, name) for name in _RECORDED}
    job.param(**{name: value for name, value in facts.items() if value is not None})


if __name__ == "__main__":
    main()
