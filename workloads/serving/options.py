"""The options of services (`workloads/infer.py`, `workloads/ask_server.py`)."""

from __future__ import annotations

import enum
import math
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from workloads.images.options import TINY_RESNET
from workloads.model_options import GPU_ONLY_PX, NO_GPU, Precision, StepMode
from workloads.options import PLACE, Device, option, refuse_missing_gpu
from workloads.text.options import TINY_BERT, TextModel, count_positions

Library = enum.Enum("Library", "timm transformers diffusers", start=0)
Arrival = enum.Enum("Arrival", "closed poisson constant", start=0)
Serve = enum.Enum("Serve", "in_process http", start=0)
ClientsOf = enum.Enum("ClientsOf", "job group", start=0)
ImageSource = enum.Enum("ImageSource", "synthetic digits", start=0)

PORT = "{port}"
"""Placeholder in a server's command for the port on which it must listen."""
MEMORY_FRACTION = "{memory_fraction}"
"""Placeholder in a server's command for its share of the device's memory."""
REHEARSAL_SERVER = Path(__file__).with_name("rehearsal_server.py")
_MOST_IN_A_BATCH, _MOST_TOKENS, _MOST_ANSWER_TOKENS, _REQUESTS = 64, 64, 8, 200  # limits for a rehearsal


@dataclass(kw_only=True)
class Service:
    """The options of a service. If its rate is given, a study compares its latency instead of its throughput."""

    work_unit = "requests"

    arrival: Arrival = option(
        Arrival.closed, help="arrival process: clients that wait for each answer, random arrivals, or equal intervals"
    )
    rate_per_s: float | None = option(
        None, help="offered load of each job in requests/s; required unless `arrival=closed`"
    )
    outstanding: int = option(1, least=1, help="number of clients with `arrival=closed`")
    outstanding_per: ClientsOf = option(
        ClientsOf.job, help="whether each job has `outstanding` clients, or the copies of a group divide them"
    )
    requests: int = option(1000, least=1, help="requests per epoch with `window=work`")
    objective_ms: float | None = option(None, is_flag=False, help="latency objective, which defines the goodput")
    objective_percentile: float | None = option(
        None,
        is_flag=False,
        choices=(50.0, 95.0, 99.0, 99.9),
        help="percentage of the requests that must meet the objectives; the window must have enough requests",
    )
    warmup_requests: int = option(20, least=1, help="requests before the barrier")

    def check(self, device: Device) -> None:
        if self.arrival is Arrival.closed:
            if self.rate_per_s is not None:
                raise ValueError(
                    f"rate_per_s={self.rate_per_s:g} needs an arrival process; add arrival=poisson or arrival=constant"
                )
        elif self.rate_per_s is None or not 0 < self.rate_per_s < math.inf:
            rate = "" if self.rate_per_s is None else f", not {self.rate_per_s:g}"
            raise ValueError(f"arrival={self.arrival.name} needs a finite rate_per_s above 0{rate}; set rate_per_s")
        elif self.outstanding != 1:
            raise ValueError(
                f"outstanding={self.outstanding} has no effect with arrival={self.arrival.name}; remove outstanding"
            )
        elif self.outstanding_per is not ClientsOf.job:
            raise ValueError("outstanding_per=group divides the clients of arrival=closed; remove outstanding_per")
        if self.objective_ms is not None and not self.objective_ms > 0:
            raise ValueError(f"objective_ms={self.objective_ms:g} must be above 0")
        targets = ("objective_ms", "ttft_ms", "tpot_ms")
        if self.objective_percentile is not None and all(getattr(self, name, None) is None for name in targets):
            names = " or ".join(name for name in targets if hasattr(self, name))
            raise ValueError(f"objective_percentile={self.objective_percentile:g} needs {names}; add it")


@dataclass(kw_only=True)
class Infer(Service):
    """Answer requests with a model."""

    script = "workloads/infer.py"
    preload = "workloads.timm_imports"

    library: Library = option(Library.timm, help="library of the model")
    model: str = option(
        help="model name in timm, model type in transformers (`bert`, `gpt2`), or U-Net class in diffusers"
    )
    model_args: dict[str, Any] = option({}, help="further arguments for the model")
    source: ImageSource = option(ImageSource.synthetic, help="images in the requests: noise or digits")
    image_px: int = option(GPU_ONLY_PX, least=1, help="height and width in pixels")
    num_classes: int = option(1000, least=1, help="number of classes")
    sequence_tokens: int = option(128, least=1, help="tokens of each text")
    output_tokens: int = option(0, least=0, help="tokens of each answer; 0: classify")
    batch_size: int = option(1, least=1, help="images or texts in each request")
    serve: Serve = option(Serve.in_process, help="requests are created in the job, or arrive over HTTP with their data")
    max_batch: int = option(1, least=1, help="largest number of requests in a batch")
    max_delay_ms: float = option(0.0, least=0, help="longest time that a request waits for its batch to fill")
    step_mode: StepMode = option(StepMode.eager, help="how a batch is issued")
    precision: Precision = option(Precision.default, help="number format; `bf16` and `fp16` also apply to the weights")
    channels_last: bool = option(True, help="use the channels-last memory format")
    threads: int | None = option(None, least=1, help="CPU threads of each job; `null`: the framework chooses")
    canary: bool = option(
        True,
        help="check matrix products and convolutions before the run ([method.md](method.md#are-the-results-right))",
    )

    def explain_own_process(self) -> str:
        return "it serves HTTP" if self.serve is Serve.http else ""

    def packages(self) -> tuple[str, ...]:
        return (self.library.name, *(["uvicorn"] if self.serve is Serve.http else []))

    def check(self, device: Device) -> None:
        super().check(device)
        if self.max_delay_ms == math.inf:
            raise ValueError("max_delay_ms=inf is not finite; use a number of milliseconds")
        self._check_positions()
        self._check_batching()
        is_eager = self.step_mode is StepMode.eager
        if self.output_tokens and (self.library is not Library.transformers or self.batch_size > 1 or not is_eager):
            raise ValueError(
                f"output_tokens={self.output_tokens} needs a decoder; use library=transformers, step_mode=eager and "
                "batch_size=1"
            )
        if self.step_mode is StepMode.cuda_graph:
            refuse_missing_gpu(device, "step_mode=cuda_graph")
            if self.max_batch > 1:
                raise ValueError(
                    "step_mode=cuda_graph needs max_batch=1; set max_batch=1, or step_mode=eager or compile"
                )
        is_large = self.library is not Library.transformers and self.image_px >= GPU_ONLY_PX
        if is_large and not device.is_gpu and not device.was_chosen:
            raise ValueError(f"image_px={self.image_px} is too large for CPUs unless gpu=cpu is set, and {NO_GPU}")

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
            suffix = f" and output_tokens={self.output_tokens}" if self.output_tokens else ""
            raise ValueError(
                f"sequence_tokens={self.sequence_tokens}{suffix} are more than the {positions} positions of the "
                f"model ({name}); use fewer tokens"
            )

    def small(self) -> Infer:
        """Return smaller options for a rehearsal, without a percentile, for which it has too few requests."""
        settings = {name: getattr(self, name) for name in _KEPT}
        settings |= {"batch_size": min(self.batch_size, _MOST_IN_A_BATCH), "requests": _REQUESTS}
        if self.library is not Library.transformers:
            return TinyInfer(**settings)
        return TinyInferText(**settings, sequence_tokens=min(self.sequence_tokens, _MOST_TOKENS))


# Options that do not change in a rehearsal of a service.
_KEPT = ("arrival", "rate_per_s", "outstanding", "outstanding_per", "max_batch", "max_delay_ms", "objective_ms")


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
    """Answer requests with a text model."""

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
    """Start any HTTP server and send requests to it."""

    script = "workloads/ask_server.py"

    command: str = option(
        braces=f"{PORT} {MEMORY_FRACTION}", help="command that starts the server; `{port}` is the port to listen on"
    )
    path: str = option("/", help="URL path of the requests")
    requests_file: str | None = option(
        None, path=PLACE, help="file with one JSON body per line; without it, requests are `GET`"
    )
    ready_s: float = option(
        600.0,
        help="seconds until the server must answer; `limits.ready_s` applies as well",
    )
    drain_s: float = option(
        2.0, help="seconds after the window until the last answer; longer than an answer, and below `limits.stop_s`"
    )

    def input_files(self) -> Mapping[str, str]:
        """Return the files in the command line and the file of requests, which count as files of the program."""
        words = [word.rpartition("=")[2] for word in self._split_command() if word.endswith(".py")]
        files = {word: "command" for word in words if Path(word).is_file()}
        return files if self.requests_file is None else files | {self.requests_file: "requests_file"}

    def check(self, device: Device) -> None:
        super().check(device)
        if not any(PORT in word for word in self._split_command()):
            raise ValueError(
                f"command={self.command} does not contain {PORT}, the port to listen on; add it, as in "
                "command='vllm serve MODEL --port {port}'"
            )
        if not re.fullmatch(r"/[!-~]*", self.path):
            raise ValueError(f"path={self.path} must begin with / and contain no blanks")
        if not self.ready_s > 0:
            raise ValueError(f"ready_s={self.ready_s:g} must be above 0")
        if not 0 <= self.drain_s < math.inf:
            raise ValueError(f"drain_s={self.drain_s:g} must be finite and not negative")

    def check_data(self) -> None:
        if self.requests_file is None:
            return
        file = Path(self.requests_file)
        if not file.is_file():
            raise ValueError(f"requests_file={file} does not exist; use a file with one body per line")
        if not any(line.strip() for line in file.read_bytes().splitlines()):
            raise ValueError(f"requests_file={file} has no request; write one body in each line")

    def _split_command(self) -> list[str]:
        try:
            return shlex.split(self.command)
        except ValueError as error:
            raise ValueError(f"command={self.command} cannot be split ({error}); check its quotes") from error


@dataclass(kw_only=True)
class OpenAIServer(Server):
    """Start a server with OpenAI's API and stream answers from it."""

    script = "workloads/ask_openai.py"

    path: str = option(
        "/v1/chat/completions", help="URL path; of completions, if it does not end in `chat/completions`"
    )
    drain_s: float = option(60.0, help="seconds after the window until the last answer, as for `server`")
    model: str = option(help="name of the model in the requests")
    input_tokens: int = option(
        256, least=1, help="tokens of each prompt, as the server counts them; not used with `requests_file`"
    )
    output_tokens: int = option(128, least=1, help="most tokens of each answer; not used with `requests_file`")
    distinct_prompts: int = option(64, least=1, help="number of different prompts; a server may keep common beginnings")
    body: dict[str, Any] = option({}, help="further fields of each request, such as `ignore_eos: true`")
    memory_fraction: float = option(
        0.9, help="share of the device's memory for all copies on it; `{memory_fraction}` in the command is that of one"
    )
    ttft_ms: float | None = option(None, is_flag=False, help="objective of the time to the first token")
    tpot_ms: float | None = option(None, is_flag=False, help="objective of the mean time of each further token")

    def small(self) -> OpenAIServer:
        """Return options for a rehearsal: a server without a model, few requests and short texts."""
        return replace(
            self,
            command=f"{shlex.quote(sys.executable)} {shlex.quote(str(REHEARSAL_SERVER))} {PORT} 20 2",
            requests_file=None,
            requests=_REQUESTS,
            warmup_requests=2,
            objective_percentile=None,
            input_tokens=min(self.input_tokens, _MOST_TOKENS),
            output_tokens=min(self.output_tokens, _MOST_ANSWER_TOKENS),
        )

    def check(self, device: Device) -> None:
        super().check(device)
        if not 0 < self.memory_fraction <= 1:
            raise ValueError(f"memory_fraction={self.memory_fraction:g} must be above 0 and at most 1")
        for name in ("ttft_ms", "tpot_ms"):
            if (target := getattr(self, name)) is not None and not target > 0:
                raise ValueError(f"{name}={target:g} must be above 0")
