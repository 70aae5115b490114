"""A trial of operations in green contexts, before jobs run in them: `python workloads/green_trial.py SPEC`.

As the jobs of a group will, operations run in all contexts at the same time, eagerly and as CUDA graphs. Their outputs
are compared with those on the whole device. An operation may never end: the thread blocks of some kernels, such as
those of cuDNN's batch normalisation, wait for one another, which takes forever if the multiprocessors of a context
cannot hold all of them. So the trial is a process of its own, and a signal ends it (`host_green.find_fault`).

SPEC is JSON: `num_contexts`, `multiprocessors`, and `trials`, the settings of `list_operations`. Each line of the
output is JSON: `operation`, the operation that begins, or `fault`, what does not work.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if __name__ == "__main__":  # reason: see workloads/__init__.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from workloads import program
from workloads.green_contexts import make_streams
from workloads.tenants import UnsupportedError

if TYPE_CHECKING:
    import torch

LIMIT_S = 20
"""Seconds in which an operation must end in all contexts; its library was loaded before."""
_REPEATS = 10
_BATCH = 128
_TOLERANCE = 0.1  # of the norm; an output that was not computed differs by about 1

Compute = Callable[[], Any]


class Context(Protocol):
    """A place where operations run."""

    def issue(self, compute: Compute) -> Any:
        """Start an operation; return its outputs, which are complete after `wait`."""

    def capture(self, compute: Compute) -> Compute:
        """Return a function that replays the operation as a CUDA graph."""

    def wait(self) -> None:
        """Wait for all operations that were started."""


class StreamContext:
    """A stream: of a green context, or of the whole device."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream

    def issue(self, compute: Compute) -> Any:
        import torch

        with torch.cuda.stream(self._stream):
            return compute()

    def capture(self, compute: Compute) -> Compute:
        import torch

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            outputs = compute()

        def replay() -> Any:
            graph.replay()
            return outputs

        return replay

    def wait(self) -> None:
        self._stream.synchronize()


def try_operations(
    operations: Iterator[tuple[str, Compute]],
    device: Context,
    contexts: Sequence[Context],
    is_close: Callable[[Any, Any], bool],
    limit_s: int = LIMIT_S,
) -> None:
    """Compare operations in all contexts at once with the same operations on the whole device.

    If an operation does not end in time, SIGALRM ends this process, because no Python code runs meanwhile.

    Raises:
        UnsupportedError: an operation fails or computes other values.
    """
    for name, compute in operations:
        expected = device.issue(compute)
        device.wait()
        for way, is_captured in (("", False), (" as a CUDA graph", True)):
            subject = f"{name}{way} in {len(contexts)} green contexts at once"
            _say(operation=subject)
            signal.alarm(limit_s)
            try:
                steps = [context.capture(compute) if is_captured else compute for context in contexts]
                for _ in range(_REPEATS):
                    outputs = [context.issue(step) for context, step in zip(contexts, steps, strict=True)]
                for context in contexts:
                    context.wait()
                is_right = all(is_close(output, expected) for output in outputs)
            except RuntimeError as error:
                if type(error).__name__ == "OutOfMemoryError":  # for lack of memory, nothing was tried
                    raise
                raise UnsupportedError(f"{subject} failed: {str(error).partition(chr(10))[0]}") from error
            signal.alarm(0)
            if not is_right:
                raise UnsupportedError(f"{subject} computed wrong values")


def list_operations(
    device: str, *, convolutions: bool, batch_norm: bool, precision: str, channels_last: bool
) -> Iterator[tuple[str, Compute]]:
    """Yield operations of each library that jobs use, with their backward passes, in the precision of the jobs."""
    import torch
    from torch.nn import functional

    from workloads.training import canary

    random, autocast = torch.Generator(device).manual_seed(0), program.choose_autocast(precision)
    memory_format = torch.channels_last if channels_last else torch.contiguous_format

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, generator=random)

    def draw_images(channels: int, px: int) -> torch.Tensor:
        return draw(_BATCH, channels, px, px).to(memory_format=memory_format)

    def differentiate(function: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> Compute:
        def compute() -> list[torch.Tensor]:
            leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
            with torch.autocast(device, autocast or torch.bfloat16, enabled=autocast is not None):
                output = function(*leaves)
            # Not the output itself: normalised outputs are orthogonal to their gradient, which would be rounding only.
            return [output.detach(), *torch.autograd.grad(output, leaves, output.detach().cos())]

        return compute

    matrix, heads = draw(512, 512), draw(4, 8, 128, 64).bfloat16()
    yield "a matrix product", differentiate(torch.mm, matrix / 512**0.5, matrix)
    for rows, inner, columns in canary.PRODUCTS:  # because each job computes them before its first step
        name = f"a product of {rows} x {inner} and {inner} x {columns} matrices"
        yield name, differentiate(torch.mm, draw(rows, inner) / inner**0.5, draw(inner, columns))
    yield "layer normalisation", differentiate(lambda rows: functional.layer_norm(rows, (512,)), matrix)
    yield "attention", differentiate(functional.scaled_dot_product_attention, heads, heads, heads)
    if convolutions:
        images, weights = draw_images(64, 16), (draw(64, 64, 3, 3) / 24).to(memory_format=memory_format)
        yield "a convolution", differentiate(lambda x, w: functional.conv2d(x, w, padding=1), images, weights)
    if not batch_norm:
        return

    # Torch uses cuDNN for batch normalisation only if it has weights.
    def normalise(x: torch.Tensor, scale: torch.Tensor, offset: torch.Tensor) -> torch.Tensor:
        return functional.batch_norm(x, None, None, scale, offset, training=True)

    def run_network(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        stem, inner, outer, classes, *norms = weights
        x = functional.max_pool2d(functional.conv2d(x, stem, stride=2, padding=3), 3, stride=2, padding=1)
        x = functional.conv2d(functional.relu(normalise(x, norms[0], norms[1])), inner, padding=1)
        x = functional.conv2d(functional.relu(normalise(x, norms[2], norms[3])), outer)
        return functional.linear(functional.relu(normalise(x, norms[4], norms[5])).mean((2, 3)), classes)

    for channels, px in ((64, 32), (256, 8), (1024, 4)):
        name = f"batch normalisation of {channels} channels with {px} x {px} pixels"
        yield name, differentiate(normalise, draw_images(channels, px), draw(channels), draw(channels))
    kernels = (
        (draw(*shape) / math.prod(shape[1:]) ** 0.5).to(memory_format=memory_format)
        for shape in ((64, 3, 7, 7), (64, 64, 3, 3), (256, 64, 1, 1))
    )
    norms = (draw(channels) for channels in (64, 64, 64, 64, 256, 256))
    yield "a small ResNet", differentiate(run_network, draw_images(3, 64), *kernels, draw(10, 256) / 16, *norms)


def are_close(outputs: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> bool:
    """Return whether all outputs have the expected values, apart from rounding."""
    pairs = zip(outputs, expected, strict=True)
    return all(float((a - b).float().norm()) <= _TOLERANCE * float(b.float().norm()) for a, b in pairs)


def _say(**message: str) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def run_trial(try_all: Callable[[], None]) -> None:
    """Print the fault that a trial raises, if any, and exit; at another exception, the exit status is 1."""
    try:
        try_all()
    except UnsupportedError as error:
        _say(fault=str(error))
    os._exit(0)  # at once, because a CUDA context with an error may not be torn down


def main() -> None:
    """Try the operations of the command line."""
    import torch

    spec = json.loads(sys.argv[1])

    def try_all() -> None:
        streams = make_streams(spec["num_contexts"], spec["multiprocessors"])
        contexts = [StreamContext(stream) for stream, _ in streams]
        device = StreamContext(torch.cuda.default_stream())
        for trial in map(dict, spec["trials"]):
            program.allow_tf32(trial["precision"])
            try_operations(list_operations("cuda", **trial), device, contexts, are_close)

    run_trial(try_all)


if __name__ == "__main__":
    main()
