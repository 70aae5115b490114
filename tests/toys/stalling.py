"""A job that sleeps, of a known rate but for one stall: `--from 0.9 --for 0.5`; `--leave 0.5` ends it by then.

What it has done by an instant is told by `done_by` alone, and each step says all of it, however late it was woken. The
metric `held_up_s` is the longest time by which it was woken too late.
"""

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from workloads import client

RATE, STEP_S = 8000, 0.005


def done_by(seconds: float, begin_s: float, length_s: float) -> int:
    """Samples since the start, of a job that does nothing for a while."""
    return int(RATE * (seconds - min(max(seconds - begin_s, 0), length_s)))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--device")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--from", dest="begin_s", type=float, default=0.0, help="seconds after the start")
    parser.add_argument("--for", dest="length_s", type=float, default=0.0)
    parser.add_argument("--leave", type=float, help="seconds after the start")
    parser.add_argument("--only", type=int, help="index of the one job that does so")
    options = parser.parse_args()
    if options.only not in (None, int(Path(os.environ["COLLOCATION_JOB"]).name)):
        options.length_s, options.leave = 0.0, None
    with client.attach() as job:
        start_ns, done = job.ready(), 0
        held_up_s = due_s = 0.0
        while not job.stopping:
            due_s += STEP_S
            time.sleep(STEP_S)
            since_s = (time.monotonic_ns() - start_ns) / 1e9
            held_up_s, due_s = max(held_up_s, since_s - due_s), since_s
            if options.begin_s <= since_s < options.begin_s + options.length_s:
                due_s = options.begin_s + options.length_s
                time.sleep(due_s - since_s)
                continue
            if options.leave is not None and since_s > options.leave:
                return
            now = done_by(since_s, options.begin_s, options.length_s)
            job.step(samples=now - done, t_ns=start_ns + round(since_s * 1e9))
            done = now
        job.metric("held_up_s", held_up_s)


if __name__ == "__main__":
    main()
