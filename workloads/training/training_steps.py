"""Training steps: how a step is issued (eager, compiled, CUDA graph), its completion time, and its loss.

Within a step, the host never reads a value from the device. The host runs at most two steps ahead of the device.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from workloads.model_options import SHARES_DROPOUT
from workloads.training.recipes import Recipe

Forward = Callable[[Tensor], Tensor]
Step = Callable[[Tensor, Tensor], Tensor]

_STEPS_AHEAD = 2
_FIRST_LOSSES = 10
# Libraries must be initialised before the capture; PyTorch's notes on CUDA graphs, the source, run three steps.
_STEPS_BEFORE_CAPTURE = 3


class StepClock:
    """A clock that reports samples, epoch and CLOCK_MONOTONIC nanoseconds of each step when the device completes it.

    With `runs_ahead`, each step records an event, and the host waits for this event two steps later, in a blocking wait
    that frees the CPU core. Without `runs_ahead`, each step must be complete when `note_issued` is called.
    """

    def __init__(self, report: Callable[[float, int, int], None], *, runs_ahead: bool) -> None:
        self._runs_ahead = runs_ahead
        self._report = report
        self._pending: deque[tuple[torch.cuda.Event, float, int]] = deque()
        self.last_ns = time.monotonic_ns()

    def note_issued(self, samples: float, epoch: int) -> None:
        """Record a step that was issued just now; report the step that was issued two steps earlier."""
        if not self._runs_ahead:
            self._complete(samples, epoch)
            return
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record()
        self._pending.append((event, samples, epoch))
        self.drain(_STEPS_AHEAD)

    def drain(self, num_pending: int = 0) -> None:
        """Wait for the oldest steps and report them, until `num_pending` steps remain."""
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
        """Return the mean loss since the last call, or `None` without steps; wait for the device."""
        if self._count == 0:
            return None
        mean = self._sum.item() / self._count
        self._sum.zero_()
        self._count = 0
        return mean

    def first(self) -> list[float]:
        """Return the losses of the first steps, at most ten; wait for the device."""
        return [float(loss) for loss in self._first[: self._num_first].tolist()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """The objects that a step changes: the model, its optimiser, and the scaler of losses, which only fp16 uses."""

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
    """Return a step that issues its operators one by one, optionally with a different forward pass of the model."""
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
    """Capture forward pass, backward pass and optimiser as one CUDA graph; return a step that replays the graph.

    Before the capture, a few steps train on the given batch. All later batches must have the same shape. The next step
    overwrites the returned loss.
    """
    inputs_buffer, labels_buffer = inputs.clone(), labels.clone()
    step = make_eager_step(training)
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_STEPS_BEFORE_CAPTURE):
            step(inputs_buffer, labels_buffer)
    torch.cuda.current_stream().wait_stream(side)
    # The gradients must be created within the capture; otherwise every replay would add to the earlier gradients.
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
def refuse_drawing(device: torch.device) -> Iterator[None]:
    """Raise ValueError if the body draws random numbers on the device, as models with stochastic depth do by default.

    Threads of a process share the generator, so the losses of one job would depend on the others.
    """
    before = _read_generator(device)
    yield
    if not torch.equal(before, _read_generator(device)):
        raise ValueError(SHARES_DROPOUT)


def _read_generator(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


@contextmanager
def undo(training: Training) -> Iterator[None]:
    """Restore weights, optimiser, scaler and random generators on exit, so that a warm-up has no effect.

    The optimiser must be new. Because a captured graph uses the addresses of tensors, the optimiser's state is set to
    zero instead of being removed; for SGD (without dampening) and Adam, the first step is then the same as without
    state. The weights are saved in host memory, because a second copy of a large model would raise peak GPU memory.
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
