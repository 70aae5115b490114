"""A job whose rate a file decides, as another driver or power limit would: samples of a step of 5 ms."""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from workloads import client

parser = argparse.ArgumentParser()
parser.add_argument("file", type=Path)
for flag in ("--seed", "--device", "--epochs"):
    parser.add_argument(flag)
options = parser.parse_args()
with client.attach() as job:
    samples = int(options.file.read_text())
    job.ready()
    while not job.stopping:
        time.sleep(0.005)
        job.step(samples=samples)
