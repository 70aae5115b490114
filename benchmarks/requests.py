"""The accuracy with which requests are sent and recorded, and the cost of both.

    python -m benchmarks.requests generator --rate 2000 --seconds 20   # requests to a fake service of 0.1 ms
    python -m benchmarks.requests record                               # record a million requests, then evaluate them
    python -m benchmarks.requests queue --seconds 60                   # a service of 5 ms, compared with M/D/1
    python -m benchmarks.requests closed                               # infer.py's loop, compared with a plain loop

All of these run without a GPU and without the orchestrator.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pipeline.launch import requests
from pipeline.observe import latency
from workloads import client
from workloads.serving.arrivals import Answer, AnyRequest, ArrivalProcess, ClosedLoop, OpenLoop
from workloads.serving.batch_server import Batching, BatchServer

MILLION = 1_000_000


class Job(client.Job):
    """A job without an orchestrator: it records requests, and stops at a given time."""

    def __init__(self, folder: Path) -> None:
        (folder / client.JOB_FILE).write_text(json.dumps({"index": 0, "socket": ""}))
        super().__init__(str(folder))
        self.end_ns = sys.maxsize

    @property
    def stopping(self) -> bool:
        return time.monotonic_ns() >= self.end_ns

    def read_requests(self, folder: Path) -> requests.Requests:
        """Return the recorded requests, read as the orchestrator reads them."""
        self._write_requests()
        recorded = requests.read(folder / client.REQUESTS_FILE)
        assert recorded is not None
        return recorded


class Fake:
    """A service that needs the same time for each request: it sleeps, and polls the clock in the last 0.2 ms."""

    def __init__(self, seconds: float) -> None:
        self._ns = int(seconds * 1e9)

    def issue(self, batch: Sequence[AnyRequest]) -> int:
        """Return the time at which the answer is complete."""
        return time.monotonic_ns() + self._ns

    def wait(self, issued: int) -> Answer:
        """Wait until this time."""
        if (left_s := (issued - time.monotonic_ns()) / 1e9 - 0.0002) > 0:
            time.sleep(left_s)
        while time.monotonic_ns() < issued:
            pass
        return Answer()


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="requests-") as name:
        yield Path(name)


class Served(NamedTuple):
    """A run of a fake service: its figures, the generator's share of a core, its requests, and the window."""

    figures: dict[str, float]
    share: float
    requests: requests.Requests
    window: tuple[int, int]


def serve(rate: float, service_s: float, seconds: float, arrival: str, seed: int) -> Served:
    """Send requests to a fake service."""
    with _folder() as folder:
        job, before = Job(folder), _children_s()
        with OpenLoop(job, ArrivalProcess(kind=arrival, rate_per_s=rate, seed=seed)) as arrivals:
            server = BatchServer(job, arrivals, Fake(service_s), Batching())
            time.sleep(0.2)
            start_ns = time.monotonic_ns() + 50_000_000
            window = (start_ns, start_ns + int(seconds * 1e9))
            job.end_ns = window[1] + 10_000_000
            arrivals.begin(start_ns)
            server.serve(0)
            server.drain()
        share = (_children_s() - before) / seconds
        recorded = job.read_requests(folder)
        figures = latency.compute_figures(recorded, window, is_rate_given=True)
        if late := latency.describe_lateness(recorded, window):
            print(f"flagged: {late}")
        return Served(figures, share, recorded, window)


def generator(options: argparse.Namespace) -> None:
    """Measure rate, send-time error and cost of the generator."""
    print("| arrival | asked, requests/s | sent in the window, requests/s | late p50, ms | late p99, ms | of a core |")
    print("|---|---|---|---|---|---|")
    for arrival in ("poisson", "constant"):
        for _ in range(options.runs):
            figures, share, _, _ = serve(options.rate, 0.0001, options.seconds, arrival, 0)
            rate = figures["num_requests"] / options.seconds
            late = f"{figures['send_late_p50_ms']:.3f} | {figures['send_late_p99_ms']:.3f}"
            print(f"| {arrival} | {options.rate:g} | {rate:.1f} | {late} | {100 * share:.1f} % |", flush=True)
    print(f"at the same time, {_sleeper()}")


def _sleeper() -> str:
    """Describe how late this machine wakes a process that only sleeps."""
    late_ms = []
    for _ in range(2000):
        begin_ns = time.monotonic_ns()
        time.sleep(0.001)
        late_ms.append((time.monotonic_ns() - begin_ns) / 1e6 - 1)
    late_ms.sort()
    return f"a process that sleeps 1 ms wakes up {late_ms[1000]:.3f} ms late at p50, {late_ms[1980]:.3f} at p99"


def queue(options: argparse.Namespace) -> None:
    """Compare the latencies of a real-time service of 5 ms with those of a perfect service and of M/D/1.

    The perfect service needs exactly 5 ms for each of the same requests. M/D/1 is the theoretical result for infinitely
    many requests.
    """
    print("| load | requests | over | mean | p50 | p95 | p99 |")
    print("|---|---|---|---|---|---|---|")
    for load in (0.5, 0.8):
        figures, _, recorded, window = serve(load / 0.005, 0.005, options.seconds, "poisson", options.seed)
        perfect = latency.compute_figures(_perfect(recorded, 5_000_000), window)
        theory = {"latency_mean_ms": 5 + 5 * load / (2 * (1 - load))}
        theory |= {
            f"latency_p{percentile}_ms": 5 + 5 * waiting_quantile(load, percentile / 100) for percentile in (50, 95, 99)
        }
        for name, wanted in (("the same arrivals", perfect), ("M/D/1", theory)):
            ratios = (f"{figures[key] / wanted[key]:.3f}" for key in theory)
            print(f"| {load} | {figures['num_requests']:.0f} | {name} | {' | '.join(ratios)} |", flush=True)
    print(f"at the same time, {_sleeper()}")


def _perfect(recorded: requests.Requests, service_ns: int) -> requests.Requests:
    """Return the same requests with ideal times.

    Each begins when it is due or, if later, when the service is free, and is served for exactly `service_s`.
    """
    import numpy as np

    due = recorded["intended_ns"]
    turns = np.arange(len(due)) * service_ns
    records = np.zeros(len(due), np.dtype(list(requests.RECORD)))
    records["intended_ns"] = records["sent_ns"] = due
    records["begun_ns"] = np.maximum.accumulate(due - turns) + turns
    records["done_ns"], records["batch"] = records["begun_ns"] + service_ns, 1
    return requests.Requests({name: records[name] for name, _ in requests.RECORD})


def waiting_quantile(load: float, share: float) -> float:
    """Return a quantile of the queueing time of M/D/1, in service times. Source: the series of Erlang (1909)."""

    def count_at_most(t: float) -> float:
        terms = ((-load * (t - k)) ** k / math.factorial(k) * math.exp(load * (t - k)) for k in range(int(t) + 1))
        return (1 - load) * sum(terms)

    low, high = 0.0, 25.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if count_at_most(middle) < share else (low, middle)
    return high


def evaluate(file: str, start_ns: int) -> None:
    """Print the time and peak memory to evaluate a file of a million requests, 1 ns apart."""
    begin = time.perf_counter()
    recorded = requests.read(Path(file))
    assert recorded is not None
    latency.compute_figures(recorded, (start_ns, start_ns + MILLION), is_rate_given=True)
    latency.make_series(recorded)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{time.perf_counter() - begin:.2f} s, {peak_mib:.0f} MiB at most")


def record(options: argparse.Namespace) -> None:
    """Measure the time to record a request, and time and peak memory of a process that evaluates a million requests."""
    for _ in range(options.runs):
        with _folder() as folder:
            job, t_ns = Job(folder), time.monotonic_ns()
            begin = time.perf_counter()
            for number in range(MILLION):
                job.request(t_ns + number, t_ns + number, t_ns + number, t_ns + number + 1000)
            job.read_requests(folder)
            each_us = (time.perf_counter() - begin) / MILLION * 1e6
            code = f"from benchmarks.requests import evaluate; evaluate({str(folder / client.REQUESTS_FILE)!r}, {t_ns})"
            evaluated = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            print(f"recorded in {each_us:.2f} us each; a million evaluated in {evaluated.stdout.strip()}", flush=True)


def compare_closed_loop(options: argparse.Namespace) -> None:
    """Time requests of one client in `infer.py`, alternately with a plain loop around the same model.

    On the CPU, the CPU time of the thread is measured, which other programs on the machine affect little.
    """
    import torch

    from workloads import infer, program
    from workloads.serving.options import Infer

    args, device = program.parse(Infer, options.model.split()), torch.device(options.device)
    torch.set_num_threads(args.threads or torch.get_num_threads())
    clock_ns = time.thread_time_ns if device.type == "cpu" else time.perf_counter_ns
    model = infer.build_model(args, device)
    inputs = infer.make_inputs(args, model, device)
    with _folder() as folder:
        job = Job(folder)
        arrivals = ClosedLoop(job, ArrivalProcess(kind="closed"))
        inference = infer.build_inference(args, job, model, inputs, device)
        server = BatchServer(job, arrivals, inference, Batching())
        arrivals.begin(time.monotonic_ns())
        for _ in range(options.runs):
            plain, ours = [], []
            for number in range(options.requests):
                begin = clock_ns()
                with torch.no_grad():
                    model(inputs.tensor[inputs.rows(number % 8, 1)].to(device, non_blocking=True)).cpu()
                plain.append(clock_ns() - begin)
                begin, before = clock_ns(), server.num_answered
                server.serve(before + 1)
                ours.append(clock_ns() - begin)
            few, all_of_it = statistics.median(plain), statistics.median(ours)
            print(f"plain {few / 1e3:.0f} us, infer.py {all_of_it / 1e3:.0f} us: {few / all_of_it:.3f} of its rate")


def _children_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Run the requested measurement and print its results."""
    tiny = "--model resnetv2_50 --model-args layers=[1,1,1,1] channels=[64,128,256,512] stem_chs=32 stem_type= "
    tiny += "--source digits --image-px 32 --num-classes 10 --no-channels-last --threads 1 --no-canary"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["generator", "record", "queue", "closed"])
    parser.add_argument("--rate", type=float, default=2000.0)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--requests", type=int, default=3000, help="number of requests of each side of `closed`")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default=tiny, help="arguments for infer.py")
    options = parser.parse_args()
    {"generator": generator, "record": record, "queue": queue, "closed": compare_closed_loop}[options.what](options)


if __name__ == "__main__":
    main()
