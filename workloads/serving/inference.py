"""Inference: a model computes answers, in host memory, to requests in host memory, and the answers are checked.

A few fixed requests are repeated. Their answers during the run are compared with a reference: the answers that the
model computed before the run, operator by operator, neither compiled nor captured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from workloads.serving.arrivals import Answer, AnyRequest, HttpRequest

NUM_INPUTS = 8
# The largest allowed difference of an answer from the reference, as a ratio of norms. Other kernels and batch sizes
# round differently; for an answer that was not written, or belongs to another request, the difference is about 1.
_TOLERANCE = {"fp32": 0.01, "default": 0.02, "tf32": 0.02, "fp16": 0.1, "bf16": 0.1}

Forward = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """`NUM_INPUTS` requests in host memory. `tensor` has `rows_per_request` rows for each request.

    The first requests are repeated at the end of `tensor`, so that any batch is contiguous.
    """

    tensor: Tensor
    rows_per_request: int

    @classmethod
    def arrange(cls, tensor: Tensor, rows_per_request: int, max_batch: int, device: torch.device) -> Inputs:
        """Arrange `NUM_INPUTS` requests for batches of up to `max_batch`."""
        assert len(tensor) == NUM_INPUTS * rows_per_request
        repeated = torch.cat([tensor] * (1 + -(-max_batch // NUM_INPUTS)))
        num_rows = (NUM_INPUTS + max_batch - 1) * rows_per_request
        reachable = _make_reachable(repeated[:num_rows].clone(memory_format=torch.preserve_format), device)
        return cls(tensor=reachable, rows_per_request=rows_per_request)

    def rows(self, first: int, count: int) -> slice:
        """Return the rows of `count` requests from position `first` on."""
        return slice(first * self.rows_per_request, (first + count) * self.rows_per_request)

    def bodies(self) -> list[bytes]:
        """Return the `NUM_INPUTS` requests as bytes, as they are sent."""
        requests = (self.tensor[self.rows(number, 1)].contiguous() for number in range(NUM_INPUTS))
        return [request.view(torch.uint8).numpy().tobytes() for request in requests]

    def put(self, position: int, body: bytes) -> None:
        """Write a received request to this position."""
        rows = self.tensor[self.rows(position, 1)]
        rows.copy_(torch.frombuffer(bytearray(body), dtype=rows.dtype).reshape(rows.shape))


class Inference:
    """A model's answers: logits, computed in the precision of the model.

    `reference` has the expected answers to the `NUM_INPUTS` requests.
    """

    def __init__(self, forward: Forward, inputs: Inputs, reference: Tensor, device: torch.device) -> None:
        self._forward, self._inputs, self._reference, self._device = forward, inputs, reference, device
        rows = len(inputs.tensor)
        self._answers = _make_reachable(torch.full((rows, *reference.shape[1:]), float("nan")), device)
        self._next = 0
        self._numbers: dict[int, int] = {}  # the number of the request at each position
        self._views: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._free_events: list[torch.cuda.Event] = []

    @torch.no_grad()
    def issue(self, batch: Sequence[AnyRequest]) -> Any:
        """Start to compute the answers to these requests; requests without a body are the next fixed requests."""
        first, count = self._next, len(batch)
        self._next = (first + count) % NUM_INPUTS
        for position, request in enumerate(batch, start=first):
            self._numbers[position] = position % NUM_INPUTS
            if isinstance(request, HttpRequest):
                self._numbers[position] = request.number
                self._inputs.put(position, request.body)
        inputs, answers = self._view(first, count)
        # Inputs are copied on the CPU too, because a compiled model would be recompiled for each start position of a
        # batch.
        outputs = self._forward(inputs.to(self._device, non_blocking=True, copy=True))
        answers.copy_(outputs, non_blocking=True)
        if self._device.type != "cuda":
            return None
        event = self._free_events.pop() if self._free_events else torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event

    def wait(self, issued: Any) -> Answer:
        if issued is not None:
            issued.synchronize()
            self._free_events.append(issued)
        return Answer()

    def _view(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Return views of these requests and answers.

        Views are cached, because creating a view takes as long as a kernel launch.
        """
        if (first, count) not in self._views:
            rows = self._inputs.rows(first, count)
            self._views[first, count] = self._inputs.tensor[rows], self._answers[rows]
        return self._views[first, count]

    def forget(self) -> None:
        """Discard the answers so far, for example after a warm-up."""
        self._answers.fill_(float("nan"))
        self._numbers.clear()
        self._next = 0

    def describe_wrong_answers(self, precision: str) -> list[str]:
        """Describe the answers, of the newest batches, that differ from the reference by more than rounding."""
        descriptions = []
        for position, number in sorted(self._numbers.items()):
            answer = self._answers[self._inputs.rows(position, 1)]
            expected = self._reference[self._inputs.rows(number, 1)]
            error = float((answer - expected).norm() / expected.norm().clamp_min(torch.finfo(torch.float32).tiny))
            if not error <= _TOLERANCE[precision]:
                descriptions.append(f"the answer to request {number} is off by {error:.3g} of the reference's norm")
        return descriptions


class TextGeneration(Inference):
    """Answers of several tokens, generated greedily by a model with a cache of keys and values.

    Only the logits of the first token are checked; later tokens may differ by rounding.
    """

    def __init__(self, model: Any, tokens: int, inputs: Inputs, reference: Tensor, device: torch.device) -> None:
        self._model, self._tokens = model, tokens
        self._first_ns = 0
        super().__init__(self._generate, inputs, reference, device)

    def wait(self, issued: Any) -> Answer:
        super().wait(issued)
        return Answer(self._first_ns, self._tokens)

    def _generate(self, ids: Tensor) -> Tensor:
        output = self._model(input_ids=ids, use_cache=True)
        first: Tensor = output.logits[:, -1]
        token = first.argmax(-1, keepdim=True)
        token.cpu()  # the first token's time is its arrival on the host
        self._first_ns = time.monotonic_ns()
        for _ in range(self._tokens - 1):
            output = self._model(input_ids=token, past_key_values=output.past_key_values, use_cache=True)
            token = output.logits[:, -1].argmax(-1, keepdim=True)
        token.cpu()
        return first


def capture(forward: Forward, example: Tensor) -> Forward:
    """Capture a forward pass as a CUDA graph; inputs must have the shape of the example."""
    inputs_buffer = example.clone()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(side):
        for _ in range(3):  # libraries must initialise before the capture (source: PyTorch's notes on CUDA graphs)
            forward(inputs_buffer)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        outputs = forward(inputs_buffer)

    def replay(inputs: Tensor) -> Tensor:
        inputs_buffer.copy_(inputs, non_blocking=True)
        graph.replay()
        return outputs

    return replay


def _make_reachable(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the tensor in pinned memory if the device is a GPU, which reads and writes such memory directly."""
    return tensor.pin_memory() if device.type == "cuda" else tensor
