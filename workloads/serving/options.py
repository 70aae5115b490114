"""The options of services (`workloads/infer.py`, `workloads/ask_server.py`)."""

from __future__ import annotations

import enum
import math
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workloads.images.options import TINY_RESNET
from workloads.model_options import GPU_ONLY_PX, NO_GPU, Precision, StepMode, refuse_graphs_without_gpu
from workloads.options import PLACE, Device, option
from workloads.text.options import TINY_BERT, TextModel, count_positions

Library = enum.Enum("Library", "timm transformers diffusers", start=0)
Arrival = enum.Enum("Arrival", "closed poisson constant", start=0)
Serve = enum.Enum("Serve", "in_process http", start=0)
ImageSource = enum.Enum("ImageSource", "synthetic digits", start=0)

PORT = "{port}"
"""Stands in the command of a server for the port that it is to listen on."""
_MOST_IN_A_BATCH, _MOST_TOKENS, _REQUESTS = 64, 64, 200  # of a rehearsal


@dataclass(kw_only=True)
class Service:
    """Answering requests. A study compares one by its latency where the rate is given."""

    work_unit = "requests"

    arrival: Arrival = option(
        Arrival.closed,
        help="clients that wait for their answers, or requests at a rate, at random or at equal distances",
    )
    rate_per_s: float | None = option(None, help="requests a second of each job; required unless `arrival=closed`")
    outstanding: int = option(1, least=1, help="clients of `arrival=closed`")
    requests: int = option(1000, least=1, help="requests of an epoch, in a `work` window")
    objective_ms: float | None = option(None, is_flag=False, help="latency that counts as good, for the goodput")
    objective_percentile: float | None = option(
        None,
        is_flag=False,
        choices=(50.0, 95.0, 99.0, 99.9),
        help="per cent of the requests that are to be answered within `objective_ms`; a window that cannot hold enough "
        "requests is refused",
    )
    warmup_requests: int = option(20, least=1, help="requests that are answered before the barrier")

    def check(self, device: Device) -> None:
        if self.arrival is Arrival.closed:
            if self.rate_per_s is not None:
                raise ValueError(
                    f"rate_per_s={self.rate_per_s:g} needs an arrival process; add arrival=poisson or arrival=constant"
                )
        elif self.rate_per_s is None or not 0 < self.rate_per_s < math.inf:
            state = "is not given" if self.rate_per_s is None else f"is {self.rate_per_s:g}"
            raise ValueError(f"arrival={self.arrival.name} needs a rate above 0, and rate_per_s {state}; set it")
        elif self.outstanding != 1:
            raise ValueError(
                f"outstanding={self.outstanding} has no effect with arrival={self.arrival.name}; leave it out"
            )
        if self.objective_ms is not None and not self.objective_ms > 0:
            raise ValueError(f"objective_ms={self.objective_ms:g} must be above 0")
        if self.objective_percentile is not None and self.objective_ms is None:
            raise ValueError(f"objective_percentile={self.objective_percentile:g} needs objective_ms; add it")


@dataclass(kw_only=True)
class Infer(Service):
    """Answer requests with a model."""

    script = "workloads/infer.py"
    preload = "workloads.timm_imports"

    library: Library = option(Library.timm, help="where the model comes from")
    model: str = option(
        help="name of the model in timm, kind of model in transformers (`bert`, `gpt2`), or class of a U-Net in "
        "diffusers"
    )
    model_args: dict[str, Any] = option(
        {}, help="further arguments of timm's `create_model`, or of transformers' configuration"
    )
    source: ImageSource = option(ImageSource.synthetic, help="what a model of images is asked: noise, or digits")
    image_px: int = option(GPU_ONLY_PX, least=1, help="pixels of a side")
    num_classes: int = option(1000, least=1, help="classes of an answer")
    sequence_tokens: int = option(128, least=1, help="tokens of each text that is asked")
    output_tokens: int = option(0, least=0, help="tokens of each answer of a decoder; 0: the answer is a class")
    batch_size: int = option(1, least=1, help="images or texts of each request")
    serve: Serve = option(
        Serve.in_process, help="requests are known to the job, or come over HTTP, with all that is asked"
    )
    max_batch: int = option(1, least=1, help="requests that are computed together at most")
    max_delay_ms: float = option(0.0, least=0, help="how long a request waits for others to be computed with")
    step_mode: StepMode = option(StepMode.eager, help="how a batch is issued")
    precision: Precision = option(
        Precision.default, help="arithmetic; with `bf16` and `fp16` the weights are kept in it"
    )
    channels_last: bool = option(True, help="memory layout of images")
    threads: int | None = option(None, least=1, help="CPU threads of each job's framework; its own choice if not given")
    canary: bool = option(
        True,
        help="check each job's products and convolutions before the run ([method.md](method.md#are-the-results-right))",
    )

    def packages(self) -> tuple[str, ...]:
        return (self.library.name, *(["uvicorn"] if self.serve is Serve.http else []))

    def check(self, device: Device) -> None:
        super().check(device)
        if self.max_delay_ms == math.inf:
            raise ValueError("max_delay_ms=inf must be finite")
        self._check_positions()
        self._check_batching()
        is_eager = self.step_mode is StepMode.eager
        if self.output_tokens and (self.library is not Library.transformers or self.batch_size > 1 or not is_eager):
            raise ValueError(
                f"output_tokens={self.output_tokens} is for decoders; use library=transformers, step_mode=eager and "
                "batch_size=1 (max_batch computes several requests together)"
            )
        if self.step_mode is StepMode.cuda_graph:
            refuse_graphs_without_gpu(device)
            if self.max_batch > 1:
                raise ValueError(
                    "step_mode=cuda_graph replays one shape, and max_batch makes many; use eager or compile"
                )
        is_large = self.library is not Library.transformers and self.image_px >= GPU_ONLY_PX
        if is_large and not device.is_gpu and not device.was_chosen:
            raise ValueError(f"it looks at {self.image_px}-pixel images and {NO_GPU}")

    def _check_batching(self) -> None:
        if self.arrival is Arrival.closed and self.max_batch > self.outstanding:
            raise ValueError(
                f"max_batch={self.max_batch} is never reached with outstanding={self.outstanding} clients of "
                "arrival=closed; raise outstanding"
            )
        if self.max_delay_ms > 0 and self.max_batch == 1:
            raise ValueError(f"max_delay_ms={self.max_delay_ms:g} has no effect with max_batch=1; raise max_batch")

    def _check_positions(self) -> None:
        if self.library is not Library.transformers or self.model not in TextModel.__members__:
            return
        name, positions = count_positions(TextModel[self.model], self.model_args)
        if positions is not None and self.sequence_tokens + self.output_tokens > positions:
            answered = f" and output_tokens={self.output_tokens}" if self.output_tokens else ""
            raise ValueError(
                f"sequence_tokens={self.sequence_tokens}{answered} are more than the {positions} positions of the "
                f"model ({name})"
            )

    def small(self) -> Infer:
        """Return what a rehearsal runs instead; it holds too few requests for a percentile."""
        settings = {name: getattr(self, name) for name in _KEPT}
        settings |= {"batch_size": min(self.batch_size, _MOST_IN_A_BATCH), "requests": _REQUESTS}
        if self.library is not Library.transformers:
            return TinyInfer(**settings)
        return TinyInferText(**settings, sequence_tokens=min(self.sequence_tokens, _MOST_TOKENS))


# What a rehearsal of a service keeps.
_KEPT = ("arrival", "rate_per_s", "outstanding", "max_batch", "max_delay_ms", "objective_ms")


@dataclass(kw_only=True)
class TinyInfer(Infer):
    """Answer handwritten digits with a small ResNetv2: inference without a GPU or a download."""

    name = "infer_tiny"

    model: str = "resnetv2_50"
    model_args: dict[str, Any] = field(default_factory=lambda: dict(TINY_RESNET))
    source: ImageSource = ImageSource.digits
    image_px: int = 32
    num_classes: int = 10
    channels_last: bool = False
    threads: int | None = 1


@dataclass(kw_only=True)
class InferText(Infer):
    """Answer requests with a model of text."""

    preload = "workloads.text_imports"

    library: Library = Library.transformers
    num_classes: int = 2


@dataclass(kw_only=True)
class TinyInferText(InferText):
    """Answer texts with a small BERT, on the CPU."""

    name = "infer_tiny_text"

    model: str = "bert"
    model_args: dict[str, Any] = field(default_factory=lambda: dict(TINY_BERT))
    sequence_tokens: int = 32
    threads: int | None = 1


@dataclass(kw_only=True)
class Server(Service):
    """Start a server of any make and ask it over HTTP."""

    script = "workloads/ask_server.py"

    command: str = option(braces=PORT, help="starts the server; `{port}` is the port that it is to listen on")
    path: str = option("/", help="what is asked")
    requests_file: str | None = option(
        None, path=PLACE, help="a request a line: its body, JSON; without a file, requests are `GET`"
    )
    ready_s: float = option(
        600.0,
        help="how long the server may take until it answers (`limits.ready_s` ends a job before, if it is shorter)",
    )

    def input_files(self) -> Mapping[str, str]:
        """Return the files of the command line and the file of requests: both belong to the program."""
        words = [word.rpartition("=")[2] for word in self._split_command() if word.endswith(".py")]
        files = {word: "command" for word in words if Path(word).is_file()}
        return files if self.requests_file is None else files | {self.requests_file: "requests_file"}

    def check(self, device: Device) -> None:
        super().check(device)
        if not any(PORT in word for word in self._split_command()):
            raise ValueError(
                f"command={self.command} does not say where the server listens; write {PORT} in its place, as in "
                "command='vllm serve MODEL --port {port}'"
            )
        if not re.fullmatch(r"/[!-~]*", self.path):
            raise ValueError(f"path={self.path} must begin with / and hold no blanks")
        if not self.ready_s > 0:
            raise ValueError(f"ready_s={self.ready_s:g} must be above 0")

    def check_data(self) -> None:
        if self.requests_file is None:
            return
        file = Path(self.requests_file)
        if not file.is_file():
            raise ValueError(f"requests_file={file} does not exist; name a file with a request in each line")
        if not any(line.strip() for line in file.read_bytes().splitlines()):
            raise ValueError(f"requests_file={file} holds no request; write the body of one in each line")

    def _split_command(self) -> list[str]:
        try:
            return shlex.split(self.command)
        except ValueError as error:
            raise ValueError(f"command={self.command} cannot be split as a shell would: {error}") from error
