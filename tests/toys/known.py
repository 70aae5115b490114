"""A job that keeps the truth: what it did when, in `truth.json` of its output folder, whatever it says of it.

`--by steps` speaks the job protocol and does steps of 5 ms until it is told to stop, `--by epochs` as many epochs as it
is told; both get faster all the time, so that a rate says which time it is of. `--by mlflow`, `tensorboard` or `output`
logs its rate four times a second for `--seconds` and ends. `--lines` names the wrong lines among its events, `--stray`
logs values at times at which no job runs. `--late` is how long a job sleeps first, times its number; with `--degree` it
stays at the end for as long as the last of these sleeps. A clock that was set is read from `KNOWN_CLOCK`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.toys.event_writer import SummaryWriter
from workloads import client

RATE, GROWS_IN_S, STEP_S = 8000.0, 20.0, 0.005
"""Samples a second in the beginning, in how many seconds that becomes e times as much, and the least time of a step."""
STEPS_OF_EPOCH = 60
METRIC = "samples_per_s"
_DAY_MS = 86_400_000


def follow_clock() -> None:
    """Let `time.time` and `time.time_ns` be ahead by the seconds that stand in a file."""
    file, real_ns = os.environ.get("KNOWN_CLOCK"), time.time_ns
    if file is not None:
        time.time_ns = lambda: real_ns() + int(float(Path(file).read_text() or 0) * 1e9)
        time.time = lambda: time.time_ns() / 1e9


def samples_until(since_s: float) -> float:
    """Return the samples that a job in steps has done so many seconds after its begin."""
    return RATE * GROWS_IN_S * math.expm1(since_s / GROWS_IN_S)


@dataclass
class Truth:
    """What a job did; `stamps` are instants with the samples done by then, or with the rate logged at them."""

    begin_ns: int = 0
    stamps: list[tuple[int, float]] = field(default_factory=list)
    epochs_s: list[float] = field(default_factory=list)

    def keep(self) -> None:
        """Write it down so far: a job may be killed."""
        file = Path(os.environ["COLLOCATION_OUTPUT_DIR"]) / "truth.json"
        file.with_suffix(".new").write_text(json.dumps(asdict(self)))
        file.with_suffix(".new").rename(file)


class Worker:
    """Does steps, and tells the orchestrator of them."""

    def __init__(self, job: client.NullJob, truth: Truth, lines: str) -> None:
        self._job, self._truth, self._lines = job, truth, lines
        self._events = Path(os.environ["COLLOCATION_JOB"]) / client.EVENTS_FILE

    def step(self, epoch: int | None) -> None:
        time.sleep(STEP_S)
        now_ns, stamps = time.monotonic_ns(), self._truth.stamps
        done = int(samples_until((now_ns - self._truth.begin_ns) / 1e9))
        samples = done - int(stamps[-1][1]) if stamps else done
        self._job.step(samples=samples, epoch=epoch, t_ns=now_ns)
        stamps.append((now_ns, done))
        event = {"event": "step", "t_ns": now_ns, "samples": samples, "total": done, "epoch": epoch}
        number = len(stamps)
        if self._lines == "each_twice":
            self._write(event)
        elif self._lines == "ahead" and number == 100:
            self._write({**event, "t_ns": now_ns + 1000 * 10**9})
        elif self._lines == "huge" and number == 100:
            self._write({**event, "total": done * 10**9})
        elif self._lines == "noise" and number % 10 == 0:
            self._write({"event": "step", "t_ns": -5, "total": 3})
            with self._events.open("ab") as file:
                file.write(b"\xff\xfe\n")
        if number % 50 == 0:
            self._truth.keep()

    def epoch(self, number: int) -> None:
        begin_ns = time.monotonic_ns()
        for _ in range(STEPS_OF_EPOCH):
            self.step(number)
        seconds = (time.monotonic_ns() - begin_ns) / 1e9
        self._truth.epochs_s.append(seconds)
        self._job.epoch(number, seconds)
        event = {"event": "epoch", "epoch": number, "t_ns": time.monotonic_ns(), "seconds": seconds, "metrics": {}}
        if self._lines == "epochs_twice":
            self._write(event)
        elif self._lines == "validation":
            self._write({**event, "epoch": number + 1000, "metrics": {"validation_s": -100.0}})

    def _write(self, event: dict[str, object]) -> None:
        with self._events.open("ab") as file:
            file.write(json.dumps(event).encode() + b"\n")


def work(options: argparse.Namespace, truth: Truth) -> None:
    """Work in steps, or in epochs, and say so."""
    with client.attach() as job:
        worker = Worker(job, truth, options.lines)
        truth.begin_ns = job.ready()
        if options.by == "epochs":
            for number in range(1, options.epochs + 1):
                worker.epoch(number)
        while options.by == "steps" and not job.stopping:
            worker.step(None)


def log_rates(options: argparse.Namespace, truth: Truth) -> None:
    """Log 100 samples/s in the first half of the time and 50 in the second."""
    truth.begin_ns, writer = time.monotonic_ns(), None
    store = Path(os.environ["MLFLOW_TRACKING_URI"].removeprefix("file://")) / "0/run"
    if options.by == "tensorboard":
        writer = SummaryWriter(os.environ["COLLOCATION_OUTPUT_DIR"])
    elif options.by == "mlflow":
        (store / "metrics").mkdir(parents=True)
        (store / "meta.yaml").write_text("run_id: run\nstart_time: 1\n")
    while (since_s := (time.monotonic_ns() - truth.begin_ns) / 1e9) < options.seconds:
        time.sleep(0.25)
        value = 100.0 if since_s < options.seconds / 2 else 50.0
        truth.stamps.append((time.monotonic_ns(), value))
        number = len(truth.stamps)
        if writer is not None:
            writer.add_scalar(METRIC, value, number)
        elif options.by == "mlflow":
            now_ms = time.time_ns() // 1_000_000
            stray = {"": "", "before": f"{now_ms - _DAY_MS} 9 {number}\n", "after": f"{now_ms + _DAY_MS} 9 {number}\n"}
            with (store / "metrics" / METRIC).open("a") as file:
                file.write(f"{now_ms} {value} {number}\n" + (stray[options.stray] if number % 4 == 0 else ""))
        else:
            print(f"step {number}: {value} samples/s", flush=True)
        truth.keep()


def main() -> None:
    parser = argparse.ArgumentParser()
    for flag, kind in (("--seed", int), ("--device", str), ("--epochs", int)):
        parser.add_argument(flag, type=kind)
    parser.add_argument("--by", default="steps", choices=["steps", "epochs", "mlflow", "tensorboard", "output"])
    parser.add_argument("--lines", default="")
    parser.add_argument("--stray", default="", choices=["", "before", "after"])
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--late", type=float, default=0.0)
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--degree", type=int, default=0)
    options = parser.parse_args()
    follow_clock()
    time.sleep(options.late * options.index)
    truth = Truth()
    try:
        work(options, truth) if options.by in ("steps", "epochs") else log_rates(options, truth)
    finally:
        truth.keep()
    time.sleep(options.late * max(0, options.degree - 1 - options.index))


if __name__ == "__main__":
    main()
