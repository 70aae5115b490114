"""What the programs of this folder have in common: how they read a command line, set torch up, and end.

Nothing heavy is imported here: a command line that is wrong is refused at once.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import logging
import math
import os
import sys
from contextlib import suppress
from dataclasses import fields
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from workloads import client

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch

    from workloads.client import NullJob

T = TypeVar("T")

PRECISIONS = ["default", "tf32", "fp32", "bf16", "fp16"]
STEP_MODES = ["eager", "compile", "cuda_graph"]


class UsageError(SystemExit):
    """The command line cannot be run here; ends the process with status 2, as argparse does."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = 2


class Parser(argparse.ArgumentParser):
    """Ends by `UsageError`."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        sys.stderr.write(f"{self.prog}: error: {message}\n")
        raise UsageError(message)


def at_least(least: int) -> Callable[[str], int]:
    """Return a reader of whole numbers from `least` on."""

    def number(text: str) -> int:
        if (value := int(text)) < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return value

    return number


count, positive = at_least(0), at_least(1)


def model_argument(text: str) -> tuple[str, Any]:
    """Read KEY=VALUE; the value is JSON, or text where it is not JSON."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


def run_flags(parser: Parser) -> None:
    """Add the flags that all programs have."""
    flag = parser.add_argument
    flag("--threads", type=positive, help="CPU threads of torch (default: its own choice)")
    flag("--seed", type=count, default=0)
    flag("--device", default="auto", choices=["auto", "cuda", "cpu"])
    flag("--epochs", type=count, default=1, help="0: until told to stop, as a job only")


def repeating_flags(parser: Parser) -> None:
    """Add the flags that all programs have which repeat one operation."""
    flag = parser.add_argument
    flag("--calls", type=positive, help="calls a step (default: by the device)")
    flag("--steps", type=positive, default=100, help="steps an epoch")
    flag("--warmup-steps", type=count, default=3, help="steps before the run")
    run_flags(parser)


def model_flags(parser: Parser) -> None:
    """Add the flags that all programs with a model have."""
    flag = parser.add_argument
    flag("--step-mode", default="eager", choices=STEP_MODES)
    flag("--precision", default="default", choices=PRECISIONS,
         help="default: what torch does by itself, which is TF32 in convolutions and fp32 in products")  # fmt: skip
    flag("--canary", action=argparse.BooleanOptionalAction, default=True,
         help="check first that what is computed comes out right")  # fmt: skip
    run_flags(parser)


def training_flags(parser: Parser) -> None:
    """Add the flags that all training programs have."""
    flag = parser.add_argument
    flag("--batch-size", type=positive, required=True)
    flag("--learning-rate", type=float, help="of the first epoch (default: the recipe's own)")
    flag("--loader-workers", type=count, default=2, help="loader processes; 0 loads in this one")
    flag("--warmup-steps", type=count, default=10, help="warm-up steps before the run, undone before it begins")
    flag("--validate", action=argparse.BooleanOptionalAction, default=False,
         help="measure the accuracy; synthetic data has none")  # fmt: skip
    model_flags(parser)


def check_training(args: argparse.Namespace, parser: Parser) -> None:
    """Refuse what excludes each other among these flags.

    Raises:
        UsageError: something does.
    """
    if args.step_mode == "cuda_graph" and args.precision == "fp16":
        parser.error("--step-mode cuda_graph excludes --precision fp16: the loss scaler reads the device at every step")
    check_step_mode(args, parser)


def check_step_mode(args: argparse.Namespace, parser: Parser) -> None:
    """Refuse a step mode that the device of `--device` cannot have.

    Raises:
        UsageError: it cannot.
    """
    if args.step_mode == "cuda_graph" and args.device == "cpu":
        parser.error("--step-mode cuda_graph needs a GPU")


def check_arrival(args: argparse.Namespace, parser: Parser) -> None:
    """Refuse a rate that no requests can come at, and one where none belongs.

    Raises:
        UsageError: it is one.
    """
    if (args.arrival == "closed") != (args.rate_per_s is None):
        parser.error("--rate-per-s belongs to --arrival poisson and constant, which need it")
    if args.rate_per_s is not None and not 0 < args.rate_per_s < math.inf:
        parser.error(f"--rate-per-s {args.rate_per_s:g} must be above 0 and finite")


def request_of(kind: Callable[..., T], args: argparse.Namespace) -> T:
    """Return a dataclass whose fields are values of the command line."""
    return kind(**{field.name: getattr(args, field.name) for field in fields(kind)})  # type: ignore[arg-type]


def run_program(args: argparse.Namespace, parser: Parser, run: Callable[[argparse.Namespace, NullJob], None]) -> None:
    """Run a program as the command line says, as a job or by hand."""
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
    with client.attach() as job:
        if args.epochs == 0 and not job.attached:
            parser.error("--epochs 0 goes on until told to stop, which needs the orchestrator; give a number")
        run(args, job)
    if job.attached:
        leave()


def device_of(args: argparse.Namespace, parser: Parser) -> torch.device:
    """Return the device of `--device`.

    Raises:
        UsageError: this machine lacks it, or `--step-mode` needs another one.
    """
    import torch

    if args.device != "cpu" and torch.cuda.is_available():
        return torch.device("cuda", 0)
    if args.device == "cuda":
        parser.error("--device cuda: torch finds no GPU here")
    if getattr(args, "step_mode", None) == "cuda_graph":
        parser.error("--step-mode cuda_graph needs a GPU, and torch finds none here")
    return torch.device("cpu")


def need_triton(device: torch.device, parser: Parser) -> None:
    """Refuse a GPU whose kernels cannot be built, because Triton is not installed.

    Raises:
        UsageError: it is not.
    """
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        parser.error("its kernels for GPUs need Triton, which comes with torch for GPUs: pip install triton")


def set_arithmetic(args: argparse.Namespace, precision: str, *, autotunes: bool = False) -> None:
    """Seed everything, and say where TF32 may stand for fp32."""
    import random

    import numpy as np
    import torch

    random.seed(args.seed)
    np.random.seed(args.seed % 2**32)
    torch.manual_seed(args.seed)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision in ("default", "tf32")
    torch.backends.cudnn.benchmark = autotunes


def autocast_dtype(precision: str) -> torch.dtype | None:
    """Return what `--precision` computes in under autocast; `None` without it."""
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)


def recorded(args: argparse.Namespace, names: Iterable[str]) -> dict[str, object]:
    """Return these values of the command line by name."""
    return {name: getattr(args, name) for name in names}


def facts_of(device: torch.device, parameters: Iterable[torch.Tensor] = (), *packages: str) -> dict[str, object]:
    """Return what runs, with these parameters, on what, with which versions; what is not there is `None`."""
    import torch

    facts: dict[str, object] = {
        "torch": torch.__version__,
        **{package: importlib.metadata.version(package) for package in packages},
        "device": device.type,
        "threads": torch.get_num_threads(),
        "parameters": sum(parameter.numel() for parameter in parameters) or None,
    }
    if device.type == "cuda":
        # Under an MPS percentage, and on a MIG device, this is what the job has of them.
        facts["multiprocessors"] = torch.cuda.get_device_properties(device).multi_processor_count
        facts["gpu_name"] = torch.cuda.get_device_name(device)
        facts["cuda"] = torch.version.cuda
        facts["cudnn"] = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        facts["cublas"] = _cublas_version()
    return facts


def leave() -> NoReturn:
    """End without taking interpreter and libraries apart, which leaves nothing behind and takes longer.

    From the last word of seven jobs to their end on an H200: 0.45 instead of 0.78 s, under MPS 0.35 instead of 0.61 s.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _cublas_version() -> str | None:
    """Return the version of the package that PyPI's torch takes cuBLAS from; `None` if it comes from elsewhere."""
    for name in ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12"):
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None
