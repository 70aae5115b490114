"""A bare program with n jobs in one process: CUDA graphs on streams, replayed by a thread each.

    python benchmarks/one_process.py --workload small --jobs 1 2 3 7      # GPU; needs torch, and timm or transformers

It does what `scenario=streams` does for the small and the medium ResNet and for BERT-base services, without the
project: the same models, batches and arithmetic, the same copies and the same pace. It prints the median of the total
rate in interleaved rounds.
"""

import argparse
import random
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch

IMAGES: dict[str, tuple[dict[str, Any], int, int]] = {
    "small": ({"layers": [2, 2, 2, 2]}, 32, 10),
    "medium": ({}, 64, 1000),
}
"""Further arguments of the model, pixels, and classes."""
BATCH, SERVICE = 128, "service"


def capture(
    step: Callable[[], torch.Tensor], prepare: Callable[[], object]
) -> tuple[torch.cuda.CUDAGraph, torch.Tensor]:
    """Capture a step on the current stream, after three steps; return the graph and its output."""
    for _ in range(3):
        step()
    prepare()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        output = step()
    return graph, output


class Training:
    """Training of a ResNet; at most two steps are issued in advance."""

    ahead, units = 2, BATCH

    def __init__(self, case: str, seed: int) -> None:
        import timm

        args, px, classes = IMAGES[case]
        torch.manual_seed(seed)
        model = timm.create_model("resnetv2_50", num_classes=classes, **args).cuda()
        model = model.to(memory_format=torch.channels_last).train()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        images = torch.randn(4 * BATCH, 3, px, px, device="cuda").to(memory_format=torch.channels_last)
        labels = torch.randint(classes, (4 * BATCH,), device="cuda")
        self.batches = list(zip(images.chunk(4), labels.chunk(4), strict=True))
        self.x, self.y = self.batches[0][0].clone(), self.batches[0][1].clone()
        self.total, self.number = torch.zeros((), dtype=torch.float64, device="cuda"), 0

        def train() -> torch.Tensor:
            optimizer.zero_grad(set_to_none=True)
            loss = torch.nn.functional.cross_entropy(model(self.x), self.y)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            return loss.detach()

        self.graph, self.loss = capture(train, optimizer.zero_grad)
        self.kept = model, optimizer  # the graph uses their memory

    def issue(self) -> None:
        """Start a step."""
        images, labels = self.batches[self.number % 4]
        self.number += 1
        self.x.copy_(images, non_blocking=True)
        self.y.copy_(labels, non_blocking=True)
        self.graph.replay()
        self.total.add_(self.loss)


class Service:
    """Answers of a BERT-base to one client in a closed loop, from host memory to host memory."""

    ahead, units = 0, 1

    def __init__(self, case: str, seed: int) -> None:
        from transformers import AutoConfig, AutoModelForSequenceClassification

        torch.manual_seed(seed)
        build: Any = AutoModelForSequenceClassification.from_config
        model = build(AutoConfig.for_model("bert")).cuda().eval()
        self.requests, self.answers = torch.randint(1000, (8, 128)).pin_memory(), torch.empty(8, 2).pin_memory()
        self.x, self.number = self.requests[:1].cuda(), 0
        with torch.no_grad():
            self.graph, self.logits = capture(lambda: model(self.x).logits, lambda: None)
        self.kept = model

    def issue(self) -> None:
        """Start an answer."""
        row = slice(self.number % 8, self.number % 8 + 1)
        self.number += 1
        self.x.copy_(self.requests[row].to("cuda", non_blocking=True), non_blocking=True)
        self.graph.replay()
        self.answers[row].copy_(self.logits, non_blocking=True)


def work(
    stream: torch.cuda.Stream, job: Training | Service, counts: list[int], index: int, stop: threading.Event
) -> None:
    """Make steps until stopped, and count those that are complete."""
    pending: deque[torch.cuda.Event] = deque()
    with torch.cuda.stream(stream):
        while not stop.is_set():
            job.issue()
            pending.append(torch.cuda.Event(blocking=job.ahead > 0))  # type: ignore[no-untyped-call]
            pending[-1].record()
            if len(pending) > job.ahead:
                pending.popleft().synchronize()
                counts[index] += 1
        stream.synchronize()


def measure(streams: Sequence[torch.cuda.Stream], jobs: Sequence[Training | Service], seconds: float) -> float:
    """Return the samples or requests per second of these jobs together."""
    counts, stop = [0] * len(jobs), threading.Event()
    threads = [
        threading.Thread(target=work, args=(stream, job, counts, index, stop), daemon=True)
        for index, (stream, job) in enumerate(zip(streams, jobs, strict=True))
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    before, began = sum(counts), time.perf_counter()
    time.sleep(seconds)
    done, spent = sum(counts) - before, time.perf_counter() - began
    stop.set()
    for thread in threads:
        thread.join()
    if min(counts) == 0:
        raise SystemExit("error: a job made no step; its error is above")
    return done * jobs[0].units / spent


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", choices=[*IMAGES, SERVICE], default="small")
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2, 3, 7])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    streams = [torch.cuda.Stream() for _ in range(max(options.jobs))]  # type: ignore[no-untyped-call]
    jobs: list[Training | Service] = []
    for seed, stream in enumerate(streams):
        with torch.cuda.stream(stream):
            jobs.append((Service if options.workload == SERVICE else Training)(options.workload, seed))
        torch.cuda.synchronize()
    rates: dict[int, list[float]] = {number: [] for number in options.jobs}
    for _ in range(options.rounds):
        for number in random.sample(options.jobs, len(options.jobs)):
            rates[number].append(measure(streams[:number], jobs[:number], options.seconds))
    print(f"| workload | jobs | {'requests/s' if options.workload == SERVICE else 'samples/s'} |\n|---|---|---|")
    for number, readings in rates.items():
        print(f"| {options.workload} | {number} | {statistics.median(readings):,.0f} |")


if __name__ == "__main__":
    main()
