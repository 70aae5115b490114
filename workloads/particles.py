"""Track particles through the magnets of an accelerator: `python workloads/particles.py --help`.

This is a compute-bound simulation with little memory access. It runs as a job or by hand, and its standard output has
one line per epoch.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if __name__ == "__main__":  # reason: see workloads/__init__.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from workloads import client, program
from workloads.rates.options import Particles

PARTICLES = {"cuda": 5_000_000, "cpu": 2_000}
"""Default number of particles by device type; `TURNS` has turns per call, and `CALLS` has calls per step."""
TURNS = {"cuda": 100, "cpu": 5}
CALLS = {"cuda": 4, "cpu": 2}
_MOST_DIFFERENT = {"fp32": 0.01, "fp64": 1e-7}
"""Maximum difference from fp64 on the CPU after the first call, relative to the amplitudes."""


def run(args: argparse.Namespace, job: client.NullJob) -> None:
    """Set up, compare with the CPU, warm up, wait at the group's barrier, and track particles."""
    job.phase("import")
    import torch

    from workloads.rates import loop
    from workloads.rates.particle_tracking import Tracking

    job.phase("build")
    device = program.find_device(args)
    program.need_triton(device)
    program.set_arithmetic(args, "fp32")
    particles, turns, calls = (
        by_device[device.type] if setting is None else setting
        for by_device, setting in ((PARTICLES, args.particles), (TURNS, args.turns), (CALLS, args.calls))
    )
    dtype = torch.float32 if args.precision == "fp32" else torch.float64
    tracking = Tracking(particles, turns, dtype, device, is_6d=args.dimensions == 6)
    job.phase("canary")
    if not (difference := tracking.difference()) <= _MOST_DIFFERENT[args.precision]:
        program.report_wrong(job, f"particles differ from the CPU's result by {difference:.3g} of their amplitude")
    facts = {"particles": particles, "turns": turns} | program.describe_run(device)
    loop.measure(args, job, tracking, device, calls, "the tracking", facts)


if __name__ == "__main__":
    program.run_program(Particles, run)
