"""A job that records when it worked, in `truth.json` of its output folder, so that the machine's noise is in its truth.

It sleeps for `--step-ms` a step, and for `--pause-s` after every `--steps` of them. `--kind threads`: another thread
answers that the job is held, and the main thread works on. `--kind requests`: each step is a request that is recorded
`--times` times. `--kind starved`: beside a stressor that takes turns (the job with the next index), it works in one of
five turns of a resource, and makes one step in each of the others.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from workloads import client

OFTEN = 5
"""A starved job works in one of so many turns."""


class StarvingTurns:
    """The turns of the stressor beside a job, of which most leave it one step."""

    def __init__(self, events: Path) -> None:
        self._file = events.open() if events.exists() else None
        self._numbers: Counter[str] = Counter()
        self._name, self._begin_ns, self._has_stepped = "", 0, False

    def wait(self, job: client.NullJob) -> None:
        """Wait until the job may make a step."""
        while not job.stopping:
            self._read()
            is_free = "turn" not in self._name or "idle" in self._name or self._numbers[self._name] % OFTEN == 1
            is_late = not self._has_stepped and time.monotonic_ns() - self._begin_ns > 0.25e9
            if is_free or is_late:
                self._has_stepped = True
                return
            time.sleep(0.005)

    def _read(self) -> None:
        for line in self._file or ():
            if '"phase"' in line:
                event = json.loads(line)
                self._name, self._begin_ns, self._has_stepped = event["name"], event["t_ns"], False
                self._numbers[self._name] += 1


def work(options: argparse.Namespace, job: client.NullJob, spans: list[tuple[int, int, int]]) -> None:
    """Make steps until the job is told to stop; keep when each began and ended, and how long the job had been held."""
    job.ready()
    turns = StarvingTurns(Path(os.environ["COLLOCATION_JOB"]).parent / str(job.index + 1) / client.EVENTS_FILE)
    numbers: Iterator[int] = job.until_stop(itertools.count(1))
    if options.kind == "threads":
        loop = (time.sleep(0.005) for _ in numbers)
        threading.Thread(target=lambda: list(loop), daemon=True).start()
        numbers = itertools.takewhile(lambda _: not job.stopping, itertools.count(1))
    for number in numbers:
        if options.kind == "starved":
            turns.wait(job)
        held_ns, begin_ns = 0 if options.kind == "threads" else job.held_ns, time.monotonic_ns()
        time.sleep(options.step_ms / 1000)
        end_ns = time.monotonic_ns()
        for _ in range(options.times if options.kind == "requests" else 0):
            job.request(begin_ns, begin_ns, begin_ns, end_ns)
        if options.kind != "requests":
            job.step(samples=1, t_ns=end_ns)
        spans.append((begin_ns, end_ns, held_ns))
        if number % options.steps == 0:
            time.sleep(options.pause_s)


def main() -> None:
    parser = argparse.ArgumentParser()
    for flag in ("--seed", "--device", "--epochs"):
        parser.add_argument(flag)
    parser.add_argument("--kind", default="plain", choices=["plain", "threads", "requests", "starved"])
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--step-ms", type=float, default=10.0)
    parser.add_argument("--pause-s", type=float, default=0.0)
    parser.add_argument("--times", type=int, default=1)
    options = parser.parse_args()
    file, spans = Path(os.environ["COLLOCATION_OUTPUT_DIR"]) / "truth.json", list[tuple[int, int, int]]()
    with client.attach() as job:
        work(options, job, spans)
        file.write_text(json.dumps({"spans": spans, "steps": options.steps, "step_ms": options.step_ms}))


if __name__ == "__main__":
    main()
