"""Training steps: how a step is issued (eager, compiled, CUDA graph), its completion time, and its loss.

Within a step, the host never reads a value of the device. It runs at most two steps ahead of the device.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from workloads.training.recipes import Recipe

Forward = Callable[[Tensor], Tensor]
Step = Callable[[Tensor, Tensor], Tensor]

_STEPS_AHEAD = 2
_FIRST_LOSSES = 10
# Source: PyTorch's notes on CUDA graphs: libraries must have initialised before the capture; they run three.
_STEPS_BEFORE_CAPTURE = 3


class StepClock:
    """A clock that reports samples, epoch and CLOCK_MONOTONIC nanoseconds of each step as the device completes it.

    A step that runs ahead records an event. Two steps later the host waits for it, in a blocking wait that frees the
    CPU core. Any other step is complete when it is reported.
    """

    def __init__(self, report: Callable[[float, int, int], None], *, runs_ahead: bool) -> None:
        self._runs_ahead = runs_ahead
        self._report = report
        self._pending: deque[tuple[torch.cuda.Event, float, int]] = deque()
        self.last_ns = time.monotonic_ns()

    def note_issued(self, samples: float, epoch: int) -> None:
        """Record a step issued just now; report the one issued two steps earlier."""
        if not self._runs_ahead:
            self._complete(samples, epoch)
            return
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record()
        self._pending.append((event, samples, epoch))
        self.drain(_STEPS_AHEAD)

    def drain(self, num_pending: int = 0) -> None:
        """Wait for and report the oldest steps, until `num_pending` remain."""
        while len(self._pending) > num_pending:
            event, samples, epoch = self._pending.popleft()
            event.synchronize()
            self._complete(samples, epoch)

    def _complete(self, samples: float, epoch: int) -> None:
        self.last_ns = time.monotonic_ns()
        self._report(samples, epoch, self.last_ns)


class LossRecord:
    """The sum of losses on the device, and the first ten losses."""

    def __init__(self, device: torch.device) -> None:
        self._sum = torch.zeros((), dtype=torch.float64, device=device)
        self._count = 0
        self._first = torch.zeros(_FIRST_LOSSES, device=device)
        self._num_first = 0

    def add(self, loss: Tensor) -> None:
        """Add the loss of one step, without waiting for it."""
        self._sum.add_(loss)
        self._count += 1
        if self._num_first < _FIRST_LOSSES:
            self._first[self._num_first].copy_(loss)
            self._num_first += 1

    def take_mean(self) -> float | None:
        """Return the mean since the last call, or `None` without steps; waits for the device."""
        if self._count == 0:
            return None
        mean = self._sum.item() / self._count
        self._sum.zero_()
        self._count = 0
        return mean

    def first(self) -> list[float]:
        """Return the losses of the first steps, up to ten; waits for the device."""
        return [float(loss) for loss in self._first[: self._num_first].tolist()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The objects that a step changes: the model, its optimiser, and the scaler of fp16 losses (else disabled)."""

    model: nn.Module
    recipe: Recipe
    scaler: torch.amp.GradScaler
    device: torch.device
    autocast: torch.dtype | None

    def forward(self, model: Forward, inputs: Tensor) -> Tensor:
        """Return logits [batch, ..., classes], computed in the precision of the training."""
        with torch.autocast(self.device.type, self.autocast or torch.bfloat16, enabled=self.autocast is not None):
            return model(inputs)


def make_eager_step(training: Training, forward: Forward | None = None) -> Step:
    """Return a step that issues its operators one by one, optionally with another forward pass of the same model."""
    model, scaler = training.model if forward is None else forward, training.scaler
    optimizer, loss_of = training.recipe.optimizer, training.recipe.loss

    def step(inputs: Tensor, labels: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(training.forward(model, inputs).float(), labels)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


def make_compiled_step(training: Training) -> Step:
    """Return a step that compiles the model at its first call."""
    return make_eager_step(training, torch.compile(training.model))


def capture_step(training: Training, inputs: Tensor, labels: Tensor) -> Step:
    """Capture forward, backward and optimiser as one CUDA graph; return a step that replays it.

    Trains a few steps on the given batch. Every later batch must have its shape. The loss returned is overwritten by
    the next step.
    """
    inputs_buffer, labels_buffer = inputs.clone(), labels.clone()
    step = make_eager_step(training)
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_STEPS_BEFORE_CAPTURE):
            step(inputs_buffer, labels_buffer)
    torch.cuda.current_stream().wait_stream(side)
    # The gradients must be created within the capture: otherwise every replay would add to the earlier ones.
    training.recipe.optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step(inputs_buffer, labels_buffer)

    def replay(inputs: Tensor, labels: Tensor) -> Tensor:
        inputs_buffer.copy_(inputs, non_blocking=True)
        labels_buffer.copy_(labels, non_blocking=True)
        graph.replay()
        return loss

    return replay


@contextmanager
def undo(training: Training) -> Iterator[None]:
    """Restore weights, optimiser, scaler and random generators on leaving, so that a warm-up has no effect.

    The optimiser must be new. Tensors keep their addresses, which a captured graph uses; so the optimiser's state is
    set to zero, from which the first step of SGD (without dampening) and of Adam is the same as without state. The
    weights are saved on the host, as a second copy of a large model would raise peak GPU memory.
    """
    weights = {name: tensor.to("cpu", copy=True) for name, tensor in training.model.state_dict().items()}
    scaler = training.scaler.state_dict()
    host, gpu = torch.get_rng_state(), torch.cuda.get_rng_state() if training.device.type == "cuda" else None
    yield
    with torch.no_grad():
        for name, tensor in training.model.state_dict().items():
            tensor.copy_(weights[name])
        for state in training.recipe.optimizer.state.values():
            for tensor in state.values():
                if isinstance(tensor, Tensor):
                    tensor.zero_()
    training.scaler.load_state_dict(scaler)
    torch.set_rng_state(host)
    if gpu is not None:
        torch.cuda.set_rng_state(gpu)
