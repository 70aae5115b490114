"""Text classification and language modelling with a model of transformers: `python workloads/train_text.py --help`.

The program runs as a job or by hand, with random or trained weights. Warm-up runs real steps and then undoes their
effect, so the losses of a run depend only on its seed. Standard output has one line per epoch.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from pathlib import Path

if __name__ == "__main__":  # reason: see workloads/__init__.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from workloads import client, program
from workloads.text.options import TrainText

# Learning rates of AdamW, for random and for trained weights.
_RATE, _FINE_TUNING_RATE = 1e-4, 5e-5


def run(args: argparse.Namespace, job: client.NullJob) -> None:
    """Set up, warm up, wait at the group's barrier, and train."""
    job.phase("import")
    from workloads.text import models, text_data
    from workloads.training import recipes
    from workloads.training.run import make_training, train

    job.phase("build")
    device = program.find_device(args)
    if args.step_mode == "cuda_graph" and not models.takes_graphs():
        program.refuse("--step-mode cuda_graph needs transformers 5 or later; use eager or compile")
    program.set_arithmetic(args, args.precision)
    config = models.read_config(args.model, args.model_args, num_classes=args.num_classes, weights=args.weights)
    if args.sequence_tokens > config.max_position_embeddings:
        raise ValueError(
            f"--sequence-tokens {args.sequence_tokens} is more than the {config.max_position_embeddings} positions of "
            "the model; use fewer tokens"
        )
    data, padding = text_data.open_data(args.options, args.seed, config.vocab_size, device)
    with closing(data):
        task, attention = args.options.task, args.attention
        model = models.build(config, task, weights=args.weights, attention=attention, padding=padding)
        model = model.to(device)
        rate = args.learning_rate
        if rate is None:
            rate = _RATE if args.weights is None else _FINE_TUNING_RATE
        recipe = recipes.make_adamw(model, rate, is_captured=args.step_mode == "cuda_graph")
        training = make_training(args, model, recipe, device)
        facts = program.record_options(args) | program.describe_run(device, model.parameters(), "transformers")
        facts |= {"weights_digest": models.digest_weights(args.weights), "tokens_per_sequence": args.sequence_tokens}
        train(args, job, training, data, facts)


if __name__ == "__main__":
    program.run_program(TrainText, run)
