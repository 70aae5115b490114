"""Load one resource of a GPU or host for a share of the time: `python workloads/stressor.py --help`.

The program runs beside other jobs, or by hand. Its standard output has one line per epoch.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if __name__ == "__main__":  # reason: see workloads/__init__.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from workloads import client, program
from workloads.rates.options import Stressor


def run(args: argparse.Namespace, job: client.NullJob) -> None:
    """Set up, warm up, wait at the group's barrier, and load the resource."""
    job.phase("import")
    import torch

    from workloads.rates import duty_cycle, stressor_loads

    job.phase("build")
    device = program.find_device(args)
    torch.manual_seed(args.seed)
    if args.resource in stressor_loads.OF_TRITON:
        program.need_triton(device)
    load = stressor_loads.build(args.resource, device, args.threads)
    params = program.describe_run(device) | program.record_options(args)
    job.param(**{key: param for key, param in params.items() if param is not None})
    duty_cycle.measure(args, job, load)


if __name__ == "__main__":
    program.run_program(Stressor, run)
