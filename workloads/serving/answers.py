"""Computes answers with a model: from requests on the host to answers on the host, and checks them.

There are a few fixed requests, which come again and again. What each is answered in the run must be what the model said
to it before, computed operator by operator with nothing compiled or captured.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from workloads.serving.arrivals import Answer, AnyRequest, Posted

NUM_INPUTS = 8
# How far an answer may be from the one before, as norms. Other kernels, and the sizes of batches, round otherwise;
# an answer that is not written, or of another request, is off by about 1.
_TOLERANCE = {"fp32": 0.01, "default": 0.02, "tf32": 0.02, "fp16": 0.1, "bf16": 0.1}

Forward = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Requests on the host, `NUM_INPUTS` and as many again of them as a batch can reach beyond the last.

    Attributes:
        values: of all requests, one after another in the first dimension.
        each: how many of its rows belong to one request.
    """

    values: Tensor
    each: int

    @classmethod
    def of(cls, values: Tensor, each: int, max_batch: int, device: torch.device) -> Inputs:
        """Arrange `NUM_INPUTS` requests of `each` rows, for batches of up to so many requests."""
        assert len(values) == NUM_INPUTS * each
        repeated = torch.cat([values] * (1 + -(-max_batch // NUM_INPUTS)))
        needed = (NUM_INPUTS + max_batch - 1) * each
        return cls(values=_reachable(repeated[:needed].clone(memory_format=torch.preserve_format), device), each=each)

    def rows(self, first: int, count: int) -> slice:
        """Where requests from a place on lie."""
        return slice(first * self.each, (first + count) * self.each)

    def bodies(self) -> list[bytes]:
        """Return each of the `NUM_INPUTS` requests as it is sent."""
        every = (self.values[self.rows(number, 1)].contiguous() for number in range(NUM_INPUTS))
        return [one.view(torch.uint8).numpy().tobytes() for one in every]

    def put(self, place: int, body: bytes) -> None:
        """Put a request that was sent into its place."""
        there = self.values[self.rows(place, 1)]
        there.copy_(torch.frombuffer(bytearray(body), dtype=there.dtype).reshape(there.shape))


class Answers:
    """Answers of a model that maps inputs to logits, computed in the precision of the model.

    Args:
        forward: eager, compiled or replayed.
        inputs: the requests.
        reference: the answers to the first `NUM_INPUTS` of them.
        device: of the model.
    """

    def __init__(self, forward: Forward, inputs: Inputs, reference: Tensor, device: torch.device) -> None:
        self._forward, self._inputs, self._reference, self._device = forward, inputs, reference, device
        rows = len(inputs.values)
        self._said = _reachable(torch.full((rows, *reference.shape[1:]), float("nan")), device)
        self._next = 0
        self._asked: dict[int, int] = {}
        self._parts: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self._events: list[torch.cuda.Event] = []  # that no answer is waited for with

    @torch.no_grad()
    def issue(self, batch: Sequence[AnyRequest]) -> Any:
        """Begin to compute the answers to these requests, which are the next ones unless they bring what they ask."""
        first, count = self._next, len(batch)
        self._next = (first + count) % NUM_INPUTS
        for place, request in enumerate(batch, start=first):
            self._asked[place] = place % NUM_INPUTS
            if isinstance(request, Posted):
                self._asked[place] = request.number
                self._inputs.put(place, request.body)
        asked, answered = self._part(first, count)
        # Also on the CPU a copy: a compiled model would be compiled anew for where in the requests a part begins.
        said = self._forward(asked.to(self._device, non_blocking=True, copy=True))
        answered.copy_(said, non_blocking=True)
        if self._device.type != "cuda":
            return None
        event = self._events.pop() if self._events else torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        return event

    def wait(self, issued: Any) -> Answer:
        """Return when these answers are on the host."""
        if issued is not None:
            issued.synchronize()
            self._events.append(issued)
        return Answer()

    def _part(self, first: int, count: int) -> tuple[Tensor, Tensor]:
        """Where these requests and their answers lie; kept, as making a view takes as long as launching a kernel."""
        if (first, count) not in self._parts:
            rows = self._inputs.rows(first, count)
            self._parts[first, count] = self._inputs.values[rows], self._said[rows]
        return self._parts[first, count]

    def forget(self) -> None:
        """Forget what was answered so far, as after a warm-up."""
        self._said.fill_(float("nan"))
        self._asked.clear()
        self._next = 0

    def wrong(self, precision: str) -> list[str]:
        """Return in words which of the newest answers to each request are not what they must be."""
        found = []
        for place, number in sorted(self._asked.items()):
            got = self._said[self._inputs.rows(place, 1)]
            wanted = self._reference[self._inputs.rows(number, 1)]
            off = float((got - wanted).norm() / wanted.norm().clamp_min(torch.finfo(torch.float32).tiny))
            if not off <= _TOLERANCE[precision]:
                found.append(f"the answer to request {number} is off by {off:.3g} of its norm")
        return found


class Texts(Answers):
    """Answers of so many tokens, each the likeliest after those before, by a model that keeps keys and values.

    The logits of the first token are checked; after it, rounding may decide between two tokens.
    """

    def __init__(self, model: Any, tokens: int, inputs: Inputs, reference: Tensor, device: torch.device) -> None:
        self._model, self._tokens = model, tokens
        self._first_ns = 0
        super().__init__(self._speak, inputs, reference, device)

    def wait(self, issued: Any) -> Answer:
        super().wait(issued)
        return Answer(self._first_ns, self._tokens)

    def _speak(self, ids: Tensor) -> Tensor:
        result = self._model(input_ids=ids, use_cache=True)
        first: Tensor = result.logits[:, -1]
        token = first.argmax(-1, keepdim=True)
        token.cpu()  # the first token is there when the host has it
        self._first_ns = time.monotonic_ns()
        for _ in range(self._tokens - 1):
            result = self._model(input_ids=token, past_key_values=result.past_key_values, use_cache=True)
            token = result.logits[:, -1].argmax(-1, keepdim=True)
        token.cpu()
        return first


def replayed(forward: Forward, example: Tensor) -> Forward:
    """Capture a forward pass as a CUDA graph; every later input must have the shape of the example."""
    held = example.clone()
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad(), torch.cuda.stream(side):
        for _ in range(3):  # Source: PyTorch's notes on CUDA graphs: libraries initialise before the capture
            forward(held)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        said = forward(held)

    def replay(inputs: Tensor) -> Tensor:
        held.copy_(inputs, non_blocking=True)
        graph.replay()
        return said

    return replay


def _reachable(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the tensor where a GPU reads and writes it without its host."""
    return tensor.pin_memory() if device.type == "cuda" else tensor
