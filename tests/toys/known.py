"""A job that keeps the truth: what it did when, in `truth.json` of its output folder, whatever it says of it.

`--by steps` speaks the job protocol and does a step of 5 ms until it is told to stop; `--by mlflow`, `tensorboard` or
`output` logs its rate four times a second for `--seconds` and ends. `--lines` says which wrong lines stand among its
events, `--late` how long a job sleeps first, times its number. A clock that was set is read from `KNOWN_CLOCK`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.toys.event_writer import SummaryWriter
from workloads import client

RATE, STEP_S = 8000, 0.005
METRIC = "samples_per_s"


def follow_clock() -> None:
    """Let `time.time` and `time.time_ns` be ahead by the seconds that stand in a file."""
    file, real_ns = os.environ.get("KNOWN_CLOCK"), time.time_ns
    if file is not None:
        time.time_ns = lambda: real_ns() + int(float(Path(file).read_text() or 0) * 1e9)
        time.time = lambda: time.time_ns() / 1e9


def write_wrong_lines(path: Path, kind: str, line: bytes, number: int) -> None:
    """Append to the events what cannot be true, beside a step that is."""
    event = json.loads(line)
    now_ns, total = event["t_ns"], event["total"]
    ahead = {**event, "t_ns": now_ns + 1000 * 10**9}
    huge = {**event, "total": total * 10**9}
    epoch = {"event": "epoch", "epoch": number, "t_ns": now_ns, "seconds": 0.1, "metrics": {"validation_s": -100.0}}
    every = {
        "each_twice": [line],
        "ahead": [json.dumps(ahead).encode() + b"\n"] if number == 100 else [],
        "huge": [json.dumps(huge).encode() + b"\n"] if number == 100 else [],
        "epochs": [json.dumps(epoch).encode() + b"\n"] if number % 50 == 0 else [],
        "noise": [b'{"event":"step","t_ns":-5,"total":3}\n', b"\xff\xfe\n"] if number % 10 == 0 else [],
    }
    with path.open("ab") as file:
        file.writelines(every[kind])


def work_in_steps(options: argparse.Namespace, truth: list[tuple[int, float]]) -> None:
    path = Path(os.environ["COLLOCATION_JOB"]) / client.EVENTS_FILE
    with client.attach() as job:
        start_ns, done = job.ready(), 0
        while not job.stopping:
            time.sleep(STEP_S)
            now_ns = time.monotonic_ns()
            samples = int((now_ns - start_ns) * RATE / 1e9) - done
            done += samples
            job.step(samples=samples, t_ns=now_ns)
            truth.append((now_ns, done))
            if options.lines:
                step = {"event": "step", "t_ns": now_ns, "samples": samples, "total": done, "epoch": None}
                write_wrong_lines(path, options.lines, json.dumps(step).encode() + b"\n", len(truth))
            if len(truth) % 50 == 0:
                keep(truth)


def log_rates(options: argparse.Namespace, truth: list[tuple[int, float]]) -> None:
    """Log 100 samples/s in the first half of the time and 50 in the second."""
    begin_ns, writer = time.monotonic_ns(), None
    store = Path(os.environ["MLFLOW_TRACKING_URI"].removeprefix("file://")) / "0/run"
    if options.by == "tensorboard":
        writer = SummaryWriter(os.environ["COLLOCATION_OUTPUT_DIR"])
    elif options.by == "mlflow":
        (store / "metrics").mkdir(parents=True)
        (store / "meta.yaml").write_text("run_id: run\nstart_time: 1\n")
    while (since_s := (time.monotonic_ns() - begin_ns) / 1e9) < options.seconds:
        time.sleep(0.25)
        value = 100.0 if since_s < options.seconds / 2 else 50.0
        truth.append((time.monotonic_ns(), value))
        if writer is not None:
            writer.add_scalar(METRIC, value, len(truth))
        elif options.by == "mlflow":
            with (store / "metrics" / METRIC).open("a") as file:
                file.write(f"{time.time_ns() // 1_000_000} {value} {len(truth)}\n")
        else:
            print(f"step {len(truth)}: {value} samples/s", flush=True)
        keep(truth)


def keep(truth: list[tuple[int, float]]) -> None:
    """Write the truth down so far: a job may be killed."""
    file = Path(os.environ["COLLOCATION_OUTPUT_DIR"]) / "truth.json"
    file.with_suffix(".new").write_text(json.dumps(truth))
    file.with_suffix(".new").rename(file)


def main() -> None:
    parser = argparse.ArgumentParser()
    for flag, kind in (("--seed", int), ("--device", str), ("--epochs", int)):
        parser.add_argument(flag, type=kind)
    parser.add_argument("--by", default="steps", choices=["steps", "mlflow", "tensorboard", "output"])
    parser.add_argument("--lines", default="")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--late", type=float, default=0.0)
    parser.add_argument("--index", type=int, default=0)
    options = parser.parse_args()
    follow_clock()
    time.sleep(options.late * options.index)
    truth: list[tuple[int, float]] = []
    try:
        work_in_steps(options, truth) if options.by == "steps" else log_rates(options, truth)
    finally:
        keep(truth)


if __name__ == "__main__":
    main()
