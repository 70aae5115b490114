"""The options of inference, with its own checks."""

from __future__ import annotations

import enum
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from omegaconf import MISSING

from pipeline.base import services, user_command
from pipeline.base.errors import ConfigError
from pipeline.base.paths import expanded, is_file
from pipeline.base.records import Device, Window, WindowKind
from pipeline.base.workload import Objective
from pipeline.plan.text_workloads import TextModel, positions_of
from pipeline.plan.workloads import GPU_ONLY_PX, SEE_PLAN, Precision, StepMode, WorkloadConfig

Library = enum.Enum("Library", "timm transformers diffusers", start=0)
"""Where the model of an inference workload comes from: of the last, a U-Net that takes noise from images."""

Arrival = enum.Enum("Arrival", "closed poisson constant", start=0)
"""How requests come: each client waits for its answer, or they come at a rate, at random or at equal distances."""

Serve = enum.Enum("Serve", "in_process http", start=0)
"""How requests reach the model: they are known to its process, or are sent to it."""

Asked = enum.Enum("Asked", "synthetic digits", start=0)
"""What a model of images is asked: noise, or scikit-learn's handwritten digits."""


@dataclass
class ServiceConfig(WorkloadConfig):
    """Answering requests (docs/inference.md).

    Attributes:
        arrival: how requests come.
        rate_per_s: requests a second of each job, unless `arrival: closed`.
        outstanding: clients of `arrival: closed`, each of which waits for its answer.
        requests: those of an epoch, in a `work` window.
        objective_ms: the latency that counts as good.
        objective_percentile: per cent of the requests that are to be answered within `objective_ms`.
        warmup_requests: answered before the run.
    """

    NODE: ClassVar[str] = "service"
    NOT_FLAGS: ClassVar[frozenset[str]] = frozenset({"objective_ms", "objective_percentile"})

    unit: str = "requests"
    arrival: Arrival = Arrival.closed
    rate_per_s: float | None = None
    outstanding: int = 1
    requests: int = 1000
    objective_ms: float | None = None
    objective_percentile: float | None = None
    warmup_requests: int = 20

    def has_given_rate(self) -> bool:
        return self.arrival is not Arrival.closed

    def objective(self) -> Objective | None:
        if self.objective_ms is None:
            return None
        return Objective(latency_ms=self.objective_ms, percentile=self.objective_percentile)

    def check(self, device: Device, *, device_was_chosen: bool) -> None:
        super().check(device, device_was_chosen=device_was_chosen)
        self._refuse_below(1, "outstanding", "requests", "warmup_requests")
        self._check_arrival()
        self._check_objective()

    def _check_arrival(self) -> None:
        if self.arrival is Arrival.closed:
            if self.rate_per_s is not None:
                raise self._refused(
                    f"rate_per_s={self.rate_per_s:g} needs an arrival process: arrival=poisson or arrival=constant "
                    "(with arrival=closed, each client waits for its answer before it sends again)"
                )
        elif self.rate_per_s is None or not 0 < self.rate_per_s < float("inf"):
            given = "is not given" if self.rate_per_s is None else f"is {self.rate_per_s:g}"
            raise self._refused(f"arrival={self.arrival.name} needs a rate above 0, and rate_per_s {given}")
        elif self.outstanding != 1:
            raise self._refused(f"outstanding={self.outstanding} is for arrival=closed; others wait for no answer")

    def _check_objective(self) -> None:
        if self.objective_ms is not None and not self.objective_ms > 0:
            raise self._refused(f"objective_ms={self.objective_ms:g} must be above 0")
        percents = [percent for _, percent, _ in services.PERCENTILES]
        if self.objective_percentile is None:
            return
        if self.objective_ms is None:
            raise self._refused(f"objective_percentile={self.objective_percentile:g} needs objective_ms")
        if self.objective_percentile not in percents:
            known = ", ".join(f"{percent:g}" for percent in percents)
            raise self._refused(f"objective_percentile={self.objective_percentile:g} must be one of {known}")

    def window_notes(self, window: Window) -> list[str]:
        if window.kind is WindowKind.WORK:
            count = self.requests * window.epochs
            held = f"{count} requests"
        elif self.rate_per_s is not None:
            count = int(self.rate_per_s * window.seconds)
            held = f"about {count} requests ({self.rate_per_s:g}/s for {window.seconds:g} s)"
        else:
            return []  # nobody knows how many clients will send that wait for their answers
        wanted = self.objective_percentile
        if wanted is not None and count < services.needed(wanted):
            raise self._refused(
                f"objective_percentile={wanted:g} needs {services.needed(wanted)} requests, and the window holds "
                f"{held}; {self._enough(window, services.needed(wanted))}"
            )
        if count < (least := services.needed(99)):
            enough = self._enough(window, least)
            return [f"{self.name}: no p99, which needs {least} requests: the window holds {held}; {enough}"]
        return []

    def _enough(self, window: Window, count: int) -> str:
        """Say what makes the window hold so many requests, and a tenth more: how many arrive is random."""
        if window.kind is WindowKind.WORK:
            return "raise workload.requests or window.epochs"
        assert self.rate_per_s is not None
        return f"set window.seconds={math.ceil(1.1 * count / self.rate_per_s)}"


@dataclass
class InferConfig(ServiceConfig):
    """Answering requests with a model (`workloads/infer.py`, docs/inference.md).

    Attributes:
        model: name in timm, kind of model in transformers, whose configuration `model_args` changes, or class of a
            U-Net in diffusers.
        source: what images are asked.
        sequence_tokens: tokens of each text that is asked.
        output_tokens: tokens of each answer of a decoder; 0: the answer is a class.
        batch_size: images or texts of each request.
        serve: `http` sends each request over the loopback to a server of uvicorn in the job.
        max_batch: requests that are computed together at most.
        max_delay_ms: how long a request waits for others to be computed with.
        canary: check before the run that the job's products and convolutions come out right (docs/method.md).
    """

    NODE: ClassVar[str] = "infer"

    script: str = "workloads/infer.py"
    preload: str | None = "workloads.timm_imports"
    library: Library = Library.timm
    model: str = MISSING
    model_args: dict[str, Any] = field(default_factory=dict)
    source: Asked = Asked.synthetic
    image_px: int = 224
    num_classes: int = 1000
    sequence_tokens: int = 128
    output_tokens: int = 0
    batch_size: int = 1
    serve: Serve = Serve.in_process
    max_batch: int = 1
    max_delay_ms: float = 0.0
    step_mode: StepMode = StepMode.eager
    precision: Precision = Precision.default
    channels_last: bool = True
    threads: int | None = None
    canary: bool = True

    def packages(self) -> tuple[str, ...]:
        return (self.library.name, *(["uvicorn"] if self.serve is Serve.http else []))

    def check(self, device: Device, *, device_was_chosen: bool) -> None:
        super().check(device, device_was_chosen=device_was_chosen)
        self._refuse_below(1, "batch_size", "image_px", "num_classes", "sequence_tokens", "max_batch", "threads")
        self._refuse_below(0, "output_tokens", "max_delay_ms")
        if self.max_delay_ms == math.inf:
            raise self._refused("max_delay_ms=inf must be finite")
        self._check_positions()
        self._check_batching()
        is_decoder = self.output_tokens > 0
        if is_decoder and (
            self.library is not Library.transformers or self.batch_size > 1 or self.step_mode is not StepMode.eager
        ):
            raise self._refused(
                "output_tokens is for decoders: it needs library=transformers, step_mode=eager and batch_size=1 "
                "(max_batch computes several requests together)"
            )
        if self.step_mode is StepMode.cuda_graph:
            self._refuse_graphs_without_gpu(device)
            if self.max_batch > 1:
                raise self._refused(
                    "step_mode=cuda_graph replays one shape, and max_batch makes many; use eager or compile"
                )
        is_large = self.library is not Library.transformers and self.image_px >= GPU_ONLY_PX
        if is_large and not device.is_gpu and not device_was_chosen:
            raise ConfigError(
                f"workload {self.name} looks at {self.image_px}-pixel images and no GPU was found; "
                f"use gpu=cpu to run it on the CPUs anyway, or {SEE_PLAN}"
            )

    def _check_batching(self) -> None:
        if self.arrival is Arrival.closed and self.max_batch > self.outstanding:
            raise self._refused(
                f"max_batch={self.max_batch} can never come together: arrival=closed has outstanding="
                f"{self.outstanding} requests at most; raise outstanding"
            )
        if self.max_delay_ms > 0 and self.max_batch == 1:
            raise self._refused(f"max_delay_ms={self.max_delay_ms:g} waits for others, and max_batch=1 takes none")

    def _check_positions(self) -> None:
        if self.library is not Library.transformers or self.model not in TextModel.__members__:
            return
        name, positions = positions_of(TextModel[self.model], self.model_args)
        if positions is not None and self.sequence_tokens + self.output_tokens > positions:
            answered = f" and output_tokens={self.output_tokens}" if self.output_tokens else ""
            raise self._refused(
                f"sequence_tokens={self.sequence_tokens}{answered} are more than the {positions} positions of the "
                f"model ({name})"
            )


@dataclass
class InferTextConfig(InferConfig):
    """Answering requests with a model of text."""

    NODE: ClassVar[str] = "infer_text"

    preload: str | None = "workloads.text_imports"
    library: Library = Library.transformers
    num_classes: int = 2


@dataclass
class ServerConfig(ServiceConfig):
    """Asking a server of any make over HTTP (`workloads/ask_server.py`, docs/inference.md).

    Attributes:
        command: starts the server, which listens on the port that stands for `{port}` in it.
        path: what is asked.
        requests_file: a request a line: its body, JSON; without a file, requests have no body.
        ready_s: how long the server may take until it answers.
    """

    NODE: ClassVar[str] = "server"
    PATHS: ClassVar[frozenset[str]] = frozenset({"requests_file"})

    script: str = "workloads/ask_server.py"
    command: str = MISSING
    path: str = "/"
    requests_file: str | None = None
    ready_s: float = 600.0

    def own_options(self) -> dict[str, Any]:
        """The port is chosen where the server starts; other placeholders are filled as everywhere."""
        options = super().own_options()
        return options | {"command": options["command"].replace("{port}", "{{port}}")}

    def source_files(self) -> dict[str, str]:
        """Return what the command line names and what is asked: both belong to the program."""
        words = self._split("command", self.command)
        named = [file for file in user_command.source_files("", words) if is_file(Path(file))]
        asked = {} if self.requests_file is None else {self.requests_file: "requests_file"}
        return {**super().source_files(), **dict.fromkeys(named, "command"), **asked}

    def check(self, device: Device, *, device_was_chosen: bool) -> None:
        super().check(device, device_was_chosen=device_was_chosen)
        if not any("{port}" in word for word in self._split("command", self.command)):
            raise self._refused(
                f"command={self.command} does not say where the server listens; write {{port}} in its place, as in "
                "command='vllm serve MODEL --port {port}'"
            )
        if not re.fullmatch(r"/[!-~]*", self.path):
            raise self._refused(f"path={self.path} must begin with / and hold no blanks")
        if not self.ready_s > 0:
            raise self._refused(f"ready_s={self.ready_s:g} must be above 0")

    def check_data(self) -> None:
        if self.requests_file is None:
            return
        file = expanded("workload.requests_file", self.requests_file)
        if not is_file(file):
            raise self._refused(f"requests_file={self.requests_file}: there is no file {file}")
        if not any(line.strip() for line in file.read_bytes().splitlines()):
            raise self._refused(f"requests_file={file} holds no request: write the body of one in each line")
