"""A job of a known rate: a step of 4 samples every 5 ms, but for a stall. `--stall middle --for 0.5 --only 1`."""

import argparse
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from workloads import client

STEP_S, SAMPLES = 0.005, 4


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--device")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--from", dest="begin_s", type=float, help="seconds after the start at which it stalls")
    parser.add_argument("--for", dest="length_s", type=float, default=0.0)
    parser.add_argument("--only", type=int, help="index of the one job that stalls")
    options = parser.parse_args()
    index = int(Path(os.environ["COLLOCATION_JOB"]).name)
    stalls = options.begin_s is not None and options.only in (None, index)
    with client.attach() as job:
        began = due = job.ready() / 1e9
        while not job.stopping:
            # Due instants are kept, so that the rate does not depend on how late a busy machine wakes us.
            due += STEP_S
            if stalls and due - began > options.begin_s:
                stalls, due = False, due + options.length_s
            time.sleep(max(0.0, due - time.monotonic()))
            job.step(samples=SAMPLES)


if __name__ == "__main__":
    main()
