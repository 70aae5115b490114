"""A bare program with n training steps in one process: CUDA graphs on streams, replayed by a thread each.

    python benchmarks/one_process.py --workload small --jobs 1 2 3 7      # GPU; needs torch and timm only

It does what `scenario=streams` does for the small and the medium ResNet, without the project: the same model, batch and
arithmetic, copies of the batch, and at most two steps in advance. It prints the median of the total rate in interleaved
rounds.
"""

import argparse
import random
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import timm
import torch

Step = Callable[[], None]

CASES: dict[str, tuple[dict[str, Any], int, int]] = {
    "small": ({"layers": [2, 2, 2, 2]}, 32, 10),
    "medium": ({}, 64, 1000),
}
"""Further arguments of the model, pixels, and classes."""


def make_step(case: str, seed: int, batch: int = 128) -> Step:
    """Return a function that replays the training step of a new model on the current stream."""
    args, px, classes = CASES[case]
    torch.manual_seed(seed)
    model = timm.create_model("resnetv2_50", num_classes=classes, **args).cuda()
    model = model.to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.randn(batch, 3, px, px, device="cuda").to(memory_format=torch.channels_last)
    labels, total = torch.randint(classes, (batch,), device="cuda"), torch.zeros((), device="cuda")
    x, y = images.clone(), labels.clone()

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.detach()

    for _ in range(4):
        step()
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        loss = step()

    def replay() -> None:
        x.copy_(images, non_blocking=True)
        y.copy_(labels, non_blocking=True)
        graph.replay()
        total.add_(loss)

    return replay


def work(stream: torch.cuda.Stream, step: Step, counts: list[int], index: int, stop: threading.Event) -> None:
    """Make steps until stopped, and count those that are complete."""
    pending: deque[torch.cuda.Event] = deque()
    with torch.cuda.stream(stream):
        while not stop.is_set():
            step()
            pending.append(torch.cuda.Event(blocking=True))  # type: ignore[no-untyped-call]
            pending[-1].record()
            if len(pending) > 2:
                pending.popleft().synchronize()
                counts[index] += 1
        stream.synchronize()


def measure(streams: Sequence[torch.cuda.Stream], steps: Sequence[Step], jobs: int, seconds: float) -> float:
    """Return the samples per second of the first so many jobs together."""
    counts, stop = [0] * jobs, threading.Event()
    threads = [
        threading.Thread(target=work, args=(streams[i], steps[i], counts, i, stop), daemon=True) for i in range(jobs)
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
    return done * 128 / spent


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--workload", choices=list(CASES), default="small")
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2, 3, 7])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5)
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    streams = [torch.cuda.Stream() for _ in range(max(options.jobs))]  # type: ignore[no-untyped-call]
    steps = []
    for seed, stream in enumerate(streams):
        with torch.cuda.stream(stream):
            steps.append(make_step(options.workload, seed))
        torch.cuda.synchronize()
    rates: dict[int, list[float]] = {jobs: [] for jobs in options.jobs}
    for _ in range(options.rounds):
        for jobs in random.sample(options.jobs, len(options.jobs)):
            rates[jobs].append(measure(streams, steps, jobs, options.seconds))
    print("| workload | jobs | samples/s |\n|---|---|---|")
    for jobs, of_jobs in rates.items():
        print(f"| {options.workload} | {jobs} | {statistics.median(of_jobs):,.0f} |")


if __name__ == "__main__":
    main()
