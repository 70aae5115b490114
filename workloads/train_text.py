"""Text classification and language modelling with a model of transformers: `python workloads/train_text.py --help`.

Runs as a job or by hand, from random weights or from those of a trained model in a folder. Warm-up runs real steps and
leaves no trace, so that the losses of a run depend on its seed alone. Standard output is a log: one line an epoch.
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

    from workloads.text.models import TextModel
    from workloads.training.steps import Training

_RECORDED = (
    *("model", "task", "dataset", "source", "sequence_tokens", "batch_size", "step_mode", "precision", "attention"),
    *("loader_workers", "warmup_steps", "seed"),
)
# Of AdamW, from random weights and from trained ones.
_RATE, _FINE_TUNING_RATE = 1e-4, 5e-5


def build_parser() -> program.Parser:
    """Return the parser of the command line."""
    parser = program.Parser(description="Train a model of transformers on text.")
    flag = parser.add_argument
    flag("--model", required=True, choices=["bert", "distilbert", "gpt2"], help="kind of the model")
    flag("--model-args", nargs="*", action="extend", type=program.model_argument, default=[], metavar="KEY=VALUE",
         help="what differs from the defaults of transformers' configuration; values are JSON, or text")  # fmt: skip
    flag("--task", required=True, choices=["classification", "masked_lm", "causal_lm"])
    flag("--weights", type=Path, help="folder of a trained model and its tokeniser (default: random weights)")
    flag(
        "--attention", default="sdpa", choices=["sdpa", "eager"], help="torch's fused attention, or product by product"
    )
    flag("--dataset", default="pydoc", help="pydoc, or a folder below the data root with a folder of texts a class")
    flag("--source", default="disk", choices=["disk", "files", "synthetic_host", "synthetic_device"],
         help="disk: pydoc; files: the folder")  # fmt: skip
    flag("--data-root", type=Path, help="folder that holds the data sets")
    flag("--cache-root", type=Path, help="folder of tokens (default: in the user's cache)")
    flag("--sequence-tokens", type=positive, required=True, help="tokens of a sample")
    flag("--num-classes", type=positive, help="of a classification; of pydoc, so many topics")
    flag("--samples", type=positive, help="sequences an epoch (default: all; of synthetic data 10,000)")
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
    if (args.task == "causal_lm") != (args.model == "gpt2"):
        parser.error(f"--model {args.model} excludes --task {args.task}: gpt2 is for causal_lm, the others are not")
    if (args.task == "classification") != (args.num_classes is not None):
        parser.error("--num-classes belongs to --task classification")
    if args.source in ("disk", "files") and (args.source == "disk") != (args.dataset == "pydoc"):
        parser.error(f"--dataset {args.dataset} excludes --source {args.source}: pydoc is disk, a folder is files")
    return args


def main() -> None:
    """Train as the command line says."""
    program.run_program(parse(), build_parser(), run)


def run(args: argparse.Namespace, job: client.NullJob) -> None:
    """Set up, warm up, wait for the group, train.

    Raises:
        UsageError: this machine lacks the device, or the packages cannot do what is asked.
        FileNotFoundError, OSError, ValueError: data or weights are missing, or do not fit the arguments.
        NonFiniteLossError: training diverged.
    """
    job.phase("import")
    from workloads.text import models, text_data
    from workloads.text.request import TextRequest
    from workloads.training.run import train

    job.phase("build")
    device = program.device_of(args, build_parser())
    if args.step_mode == "cuda_graph" and not models.takes_graphs():
        build_parser().error("--step-mode cuda_graph needs transformers 5: earlier ones read the device in each step")
    program.set_arithmetic(args, args.precision)
    wanted = program.request_of(models.ModelRequest, args)
    config = models.configuration(wanted)
    if args.sequence_tokens > config.max_position_embeddings:
        raise ValueError(
            f"the model has {config.max_position_embeddings} positions: --sequence-tokens {args.sequence_tokens} is "
            "too long"
        )
    data = text_data.open_data(program.request_of(TextRequest, args), config.vocab_size, device)
    with closing(data.batches):
        model = models.build(wanted, padding=data.padding)
        training = _training(args, model, device)
        facts = program.recorded(args, _RECORDED) | program.facts_of(device, model.parameters(), "transformers")
        facts |= {"weights_digest": models.digest_of(wanted), "tokens_per_sequence": args.sequence_tokens}
        train(args, job, training, data.batches, facts)


def _training(args: argparse.Namespace, model: TextModel, device: torch.device) -> Training:
    import torch

    from workloads.training import recipes
    from workloads.training.steps import Training

    model = model.to(device)
    rate = args.learning_rate
    if rate is None:
        rate = _RATE if args.weights is None else _FINE_TUNING_RATE
    return Training(
        model=model,
        recipe=recipes.adamw(model, rate, is_captured=args.step_mode == "cuda_graph"),
        scaler=torch.amp.GradScaler(device.type, enabled=args.precision == "fp16"),
        device=device,
        autocast=program.autocast_dtype(args.precision),
    )


if __name__ == "__main__":
    main()
