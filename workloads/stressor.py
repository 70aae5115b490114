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
    from workloads.rates import stressor_loads, stressor_loop

    stressor_loop.measure(args, job, stressor_loads.set_up(args, job, [args.resource]))


if __name__ == "__main__":
    program.run_program(Stressor, run)
