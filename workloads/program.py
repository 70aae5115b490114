"""Shared code of the programs in this folder: command line, torch set-up, exit.

This module imports no slow module, so a wrong command line is refused at once.
"""

from __future__ import annotations

import argparse
import enum
import importlib.metadata
import importlib.util
import json
import logging
import math
import os
import socket
import sys
import types
from contextlib import suppress
from dataclasses import MISSING, Field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Union, get_args, get_origin, get_type_hints

from . import client  # relative imports, because by hand this package may be gpu_collocation.workloads
from .options import Device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import torch

    from .client import NullJob


class UsageError(SystemExit):
    """The command line is wrong, or cannot run on this machine; as with argparse, the process exits with status 2."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = 2


class Parser(argparse.ArgumentParser):
    """An argument parser that raises `UsageError`."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        sys.stderr.write(f"{self.prog}: error: {message}\n")
        raise UsageError(message)


def parse(kind: type[Any], argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse a command line by the fields of an option class.

    Enumeration members are returned by name, maps as dicts, paths as `Path`. A program that runs until it is stopped
    also has `seed`, `device` and `epochs`.

    Returns:
        The value of each option, and in `args.options` an instance of the class.

    Raises:
        UsageError: the command line is wrong.
    """
    parser = Parser(description=(kind.__doc__ or "").partition("\n")[0])
    hints = get_type_hints(kind)
    options = [field for field in fields(kind) if field.metadata.get("is_flag", True)]
    for field in options:
        flag, settings = f"--{field.name.replace('_', '-')}", _describe_flag(field, hints[field.name])
        parser.add_argument(flag, help=field.metadata.get("help", "").replace("%", "%%"), **settings)
    if not getattr(kind, "ends_by_itself", False):
        parser.add_argument("--seed", type=int, default=0)
        parser.add_argument("--device", default="auto", choices=["auto", "cuda", "cpu"])
        parser.add_argument("--epochs", type=int, default=1, help="number of epochs; 0 (only as a job): until stopped")
    args = parser.parse_args(argv)
    values = vars(args).copy()
    for name in {"seed", "epochs"} & values.keys():
        if values[name] < 0:
            parser.error(f"{name}={values[name]} must not be negative")
    for field in options:
        value, kind_of_value = values[field.name], _strip_none(hints[field.name])
        if get_origin(kind_of_value) is dict:
            values[field.name] = dict(value)
        elif value is not None and _is_enumeration(kind_of_value):
            values[field.name] = kind_of_value[value]
    is_gpu = values.get("device") != "cpu"
    args.options = kind(**{field.name: values[field.name] for field in options})
    check(args, Device(name="a GPU" if is_gpu else "the CPUs", is_gpu=is_gpu), parser.error)
    # For a job, the orchestrator computed the derived values when it planned the job.
    if hasattr(kind, "derive_values") and client.FOLDER_VARIABLE not in os.environ:
        defaults = {field.name: _default(field) for field in options}
        derived = args.options.derive_values().items()
        derived = {name: value for name, value in derived if getattr(args.options, name) == defaults[name]}
        args.options = replace(args.options, **derived)
        values |= derived
    values = {name: value.name if isinstance(value, enum.Enum) else value for name, value in values.items()}
    return argparse.Namespace(**values, options=args.options)


def _describe_flag(field: Field[Any], hint: Any) -> dict[str, Any]:
    default = _default(field)
    is_required = default is MISSING
    settings: dict[str, Any] = {"required": is_required, "default": None if is_required else default}
    kind = _strip_none(hint)
    if kind is bool:
        return {**settings, "action": argparse.BooleanOptionalAction}
    if isinstance(default, dict):
        return {**settings, "nargs": "*", "action": "extend", "type": model_argument, "default": list(default.items())}
    if get_origin(kind) is list:
        return {**settings, "nargs": "*", "type": get_args(kind)[0], "choices": field.metadata.get("choices") or None}
    if _is_enumeration(kind):
        return {**settings, "choices": list(kind.__members__), "default": getattr(default, "name", None)}
    is_path = bool(field.metadata.get("path"))
    return {**settings, "type": Path if is_path else kind, "choices": field.metadata.get("choices") or None}


def _default(field: Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _strip_none(hint: Any) -> Any:
    is_union = get_origin(hint) in (Union, types.UnionType)
    return next(part for part in get_args(hint) if part is not type(None)) if is_union else hint


def _is_enumeration(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, enum.Enum)


def check(args: argparse.Namespace, device: Device, refuse: Callable[[str], NoReturn]) -> None:
    """Check the options of a command line for a device; if they are wrong, call `refuse` with the error message."""
    for field in fields(args.options):
        setting, least = getattr(args.options, field.name), field.metadata.get("least")
        for number in setting if isinstance(setting, list) else [setting]:
            if least is not None and number is not None and not least <= number < math.inf:
                bound = "not be negative" if least == 0 else f"be at least {least}"
                refuse(f"{field.name}={number} must {bound if number < least else 'be finite'}")
    try:
        if hasattr(args.options, "check"):
            args.options.check(device)
    except ValueError as error:
        refuse(str(error))


def refuse(message: str) -> NoReturn:
    """Print the reason why the program cannot run, and raise `UsageError`."""
    sys.stderr.write(f"{Path(sys.argv[0]).name}: error: {message}\n")
    raise UsageError(message)


def model_argument(text: str) -> tuple[str, Any]:
    """Parse KEY=VALUE; a value that is not JSON is text."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value


def report_wrong(job: NullJob, description: str) -> None:
    """Log and record that this process computes wrong results."""
    logging.getLogger(__name__).warning("wrong result: %s", description)
    job.wrong(description)


def run_program(kind: type[Any], run: Callable[[argparse.Namespace, NullJob], None]) -> None:
    """Parse the command line by an option class, and run the program, as a job or by hand."""
    args = parse(kind)
    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
    with client.attach() as job:
        if getattr(args, "epochs", None) == 0 and not job.attached:
            refuse("--epochs 0 runs until an orchestrator stops the job; by hand, use --epochs 1 or more")
        run(args, job)
    if job.attached and not job.is_tenant:
        leave()


def find_device(args: argparse.Namespace) -> torch.device:
    """Return the device of `--device`; refuse a device that is missing, or that the options do not support."""
    import torch

    if args.device != "cpu" and torch.cuda.is_available():
        name, capability = torch.cuda.get_device_name(0), torch.cuda.get_device_capability(0)
        check(args, Device(name=name, is_gpu=True, compute_capability=capability), refuse)
        return torch.device("cuda", 0)
    if args.device == "cuda":
        refuse("--device cuda: torch finds no GPU; use --device cpu")
    check(args, Device(name="the CPUs, because torch finds no GPU", is_gpu=False), refuse)
    return torch.device("cpu")


def need_triton(device: torch.device) -> None:
    """Refuse a GPU if Triton, which compiles kernels for GPUs, is not installed."""
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        refuse("GPU kernels need Triton; run pip install triton")


def set_arithmetic(args: argparse.Namespace, precision: str, *, autotunes: bool = False) -> None:
    """Seed all random generators, and set whether TF32 may replace fp32."""
    import random

    import numpy as np
    import torch

    random.seed(args.seed)
    np.random.seed(args.seed % 2**32)
    torch.manual_seed(args.seed)
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    allow_tf32(precision)
    torch.backends.cudnn.benchmark = autotunes


def allow_tf32(precision: str) -> None:
    """Set whether TF32 may replace fp32, in matrix products and in convolutions."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    torch.backends.cudnn.allow_tf32 = precision in ("default", "tf32")


def choose_autocast(precision: str) -> torch.dtype | None:
    """Return the autocast dtype of a `--precision`; `None` without autocast."""
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)


def record_options(args: argparse.Namespace) -> dict[str, object]:
    """Return the options to record for a run, by name: all but maps, paths and unset options, plus the seed."""
    names = [field.name for field in fields(args.options) if not field.metadata.get("path")]
    values = {name: getattr(args, name, None) for name in [*names, "seed"]}
    return {name: value for name, value in values.items() if value is not None and not isinstance(value, dict)}


def describe_run(device: torch.device, parameters: Iterable[torch.Tensor] = (), *packages: str) -> dict[str, object]:
    """Return the facts of a run: versions, device and number of parameters; an unknown fact is `None`."""
    import torch

    facts: dict[str, object] = {
        "torch": torch.__version__,
        **{package: importlib.metadata.version(package) for package in packages},
        "device": device.type,
        "threads": torch.get_num_threads(),
        "parameters": sum(parameter.numel() for parameter in parameters) or None,
    }
    if device.type == "cuda":
        # With an MPS percentage or on a MIG device, the device's properties show only the job's share.
        facts["multiprocessors"] = torch.cuda.get_device_properties(device).multi_processor_count
        facts["gpu_name"] = torch.cuda.get_device_name(device)
        facts["cuda"] = torch.version.cuda
        facts["cudnn"] = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        facts["cublas"] = _cublas_version()
    return facts


def report_memory(job: NullJob, device: torch.device) -> None:
    """Record the largest memory that torch allocated on a GPU, unless other jobs of the process use torch too."""
    import torch

    if device.type == "cuda" and not job.is_tenant:
        job.metric("memory_allocated_peak_mib", torch.cuda.max_memory_allocated() / 2**20)


def find_free_port() -> int:
    """Return a free port of this machine; the kernel assigns ports in turn, so concurrent jobs get different ports."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def leave() -> NoReturn:
    """Exit without tearing down interpreter and libraries.

    For seven jobs on an H200, the exit then takes 0.45 s instead of 0.78 s.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _cublas_version() -> str | None:
    """Return the version of the cuBLAS package used by PyPI's torch; `None` if cuBLAS is not from such a package."""
    for name in ("nvidia-cublas", "nvidia-cublas-cu13", "nvidia-cublas-cu12"):
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    return None
