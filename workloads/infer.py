"""A service with a model of timm or transformers, as a job or by hand: `python workloads/infer.py --help`.

Requests are sent by clients that wait for each answer (closed loop), or at a given rate by a process that does not wait
for answers. The weights are random, because the speed of a model does not depend on them. Answers are checked
nevertheless.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":  # reason: see workloads/__init__.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from workloads import client, program
from workloads.serving.arrivals import Arrivals, ClosedLoop, OpenLoop, Request, arrival_process
from workloads.serving.batch_server import Batching, BatchServer
from workloads.serving.options import Infer

if TYPE_CHECKING:
    import torch

    from workloads.serving.inference import Inference, Inputs

_MOST_DIGITS = 1000
_MOST_TOKENS = 1000  # maximum number of different tokens
_log = logging.getLogger(__name__)


def run(args: argparse.Namespace, job: client.NullJob) -> None:
    """Set up, warm up, wait at the group's barrier, answer requests, and check the answers."""
    with ExitStack() as stack:
        # The process that sends requests starts first, because this process is copied at a fork and will be large.
        process = arrival_process(args, job)
        arrivals: Arrivals | None = None
        if args.serve == "in_process":
            loop = ClosedLoop if process.kind == "closed" else OpenLoop
            arrivals = stack.enter_context(loop(job, process))
        job.phase("import")
        import torch  # noqa: F401  here, so that its time counts as import

        job.phase("build")
        device = program.find_device(args)
        program.set_arithmetic(args, args.precision)
        model = build_model(args, device)
        inputs = make_inputs(args, model, device)
        _describe(args, job, model, device)
        inference = build_inference(args, job, model, inputs, device)
        job.phase("warmup")
        batching = Batching(
            max_batch=args.max_batch,
            max_delay_ns=int(args.max_delay_ms * 1e6),
            max_issued=_limit_ahead(args, process.outstanding, device),
        )
        for size in [*range(1, args.max_batch + 1), *[1] * args.warmup_requests]:
            inference.wait(inference.issue([Request(0, 0)] * size))
        inference.forget()
        if arrivals is None:
            from workloads.serving.over_http import HttpLoop

            arrivals = stack.enter_context(HttpLoop(job, inputs.bodies(), process))
        server = BatchServer(job, arrivals, inference, batching)
        job.ready()
        job.phase("serve")
        _serve(args, job, arrivals, server)
        for description in inference.describe_wrong_answers(args.precision):
            program.report_wrong(job, description)
        program.report_memory(job, device)


def _limit_ahead(args: argparse.Namespace, num_clients: int, device: torch.device) -> int:
    """Return how many batches may be issued before the oldest of them is answered.

    In a closed loop, the result is the number of clients. The exceptions, for which the result is 1, are: a given rate,
    because answers are not noticed while the next batch is issued; the CPU; a decoder, because the host waits for its
    tokens; and HTTP, because a batch is written to memory that the previous batch may still read.
    """
    runs_ahead = args.arrival == "closed" and args.serve == "in_process" and not args.output_tokens
    return num_clients if runs_ahead and device.type == "cuda" else 1


def _serve(args: argparse.Namespace, job: client.NullJob, arrivals: Arrivals, server: BatchServer) -> None:
    began_ns = time.monotonic_ns()
    arrivals.begin(began_ns)
    if args.epochs == 0:
        server.serve(0)
        server.drain()
        return
    for number in range(1, args.epochs + 1):
        server.serve(number * args.requests)
        seconds = (server.last_ns - began_ns) / 1e9
        job.epoch(number, seconds)
        _log.info("%d requests answered in %.3f s", args.requests, seconds)
        began_ns = server.last_ns


def build_model(args: argparse.Namespace, device: torch.device) -> torch.nn.Module:
    """Return the model, ready for inference; its weights are random and depend on the seed."""
    import torch

    if args.library == "timm":
        from workloads.images.vision import import_torchvision

        import_torchvision()
        import timm

        model: torch.nn.Module = timm.create_model(args.model, num_classes=args.num_classes, **args.model_args)
    elif args.library == "diffusers":
        from workloads.images.vision import Denoiser

        model = Denoiser(args.model, args.image_px, args.model_args)
    else:
        from workloads.text import models
        from workloads.text.options import Task

        if args.step_mode == "cuda_graph" and not models.takes_graphs():
            program.refuse("--step-mode cuda_graph needs transformers 5 or later; use eager or compile")
        num_classes = None if args.output_tokens else args.num_classes
        config = models.read_config(args.model, args.model_args, num_classes=num_classes)
        model = models.build(config, Task.causal_lm if args.output_tokens else Task.classification)
        positions = getattr(model.text_config, "max_position_embeddings", None)
        if positions is not None and args.sequence_tokens + args.output_tokens > positions:
            raise ValueError(
                f"{args.model} has {positions} positions, too few for --sequence-tokens {args.sequence_tokens} and "
                f"--output-tokens {args.output_tokens}; use fewer tokens"
            )
    model = model.eval().to(device, program.choose_autocast(args.precision) or torch.float32)
    if _is_of_images(args) and args.channels_last:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def _is_of_images(args: argparse.Namespace) -> bool:
    return bool(args.library != "transformers")


def make_inputs(args: argparse.Namespace, model: torch.nn.Module, device: torch.device) -> Inputs:
    """Return the requests: images [.., 3, px, px] in the precision of the model, or token ids [.., tokens]."""
    import torch

    from workloads.serving.inference import NUM_INPUTS, Inputs

    rows = NUM_INPUTS * args.batch_size
    generator = torch.Generator().manual_seed(args.seed)
    if not _is_of_images(args):
        config: Any = model.text_config
        tensor = torch.randint(min(_MOST_TOKENS, config.vocab_size), (rows, args.sequence_tokens), generator=generator)
    else:
        shape = (rows, 3, args.image_px, args.image_px)
        tensor = torch.randn(shape, generator=generator) if args.source == "synthetic" else _digits(args, rows)
        tensor = tensor.to(program.choose_autocast(args.precision) or torch.float32)
        if args.channels_last:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
    return Inputs.arrange(tensor, args.batch_size, args.max_batch, device)


def _digits(args: argparse.Namespace, rows: int) -> torch.Tensor:
    import torch

    from workloads.images.image_data import open_data
    from workloads.images.options import Tiny

    options = Tiny(
        image_px=args.image_px,
        num_classes=args.num_classes,
        batch_size=min(rows, _MOST_DIGITS),
        channels_last=args.channels_last,
    )
    data = open_data(options, args.seed, torch.device("cpu"))
    images, _ = next(data.train.epoch(1))
    data.close()
    return images.repeat(-(-rows // len(images)), 1, 1, 1)[:rows]


def build_inference(
    args: argparse.Namespace, job: client.NullJob, model: torch.nn.Module, inputs: Inputs, device: torch.device
) -> Inference:
    """Run the canary, and return the model's inference with the reference answers."""
    import torch

    from workloads.serving import inference
    from workloads.training import canary

    examples = [inputs.tensor[inputs.rows(number, 1)].to(device) for number in range(inference.NUM_INPUTS)]
    forward: inference.Forward = (lambda ids: model(ids)[:, -1]) if args.output_tokens else model
    with torch.no_grad():
        if args.canary:
            job.phase("canary")
            canary.check(job, device, program.choose_autocast(args.precision), lambda: forward(examples[0]))
        reference = torch.cat([forward(example).float().cpu() for example in examples])
    for number, output in enumerate(reference.reshape(inference.NUM_INPUTS, -1)):
        job.metric("first_output_norm", float(output.norm()), step=number)
    if args.output_tokens:
        return inference.TextGeneration(model.model, args.output_tokens, inputs, reference, device)
    if args.step_mode == "cuda_graph":
        forward = inference.capture(forward, examples[0])
    elif args.step_mode == "compile":
        forward = torch.compile(model)
    return inference.Inference(forward, inputs, reference, device)


def _describe(args: argparse.Namespace, job: client.NullJob, model: torch.nn.Module, device: torch.device) -> None:
    facts = program.record_options(args) | program.describe_run(device, model.parameters(), args.library)
    absent = ("sequence_tokens", "output_tokens") if _is_of_images(args) else ("image_px", "channels_last")
    job.param(**{name: value for name, value in facts.items() if value is not None and name not in absent})
    job.param(**{"images_per_request" if _is_of_images(args) else "texts_per_request": args.batch_size})


if __name__ == "__main__":
    program.run_program(Infer, run)
