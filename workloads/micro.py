"""Measure how fast a device computes, moves data and launches kernels: `python workloads/micro.py --help`.

The program repeats one operation, as a job or by hand. Its standard output has one line per epoch.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if __name__ == "__main__":  # reason: see workloads/__init__.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from workloads import client, program
from workloads.rates.options import Micro


def run(args: argparse.Namespace, job: client.NullJob) -> None:
    """Set up, warm up, wait at the group's barrier, and repeat the operation."""
    job.phase("import")
    import dataclasses

    from workloads.rates import loop, operations

    job.phase("build")
    device = program.find_device(args)
    if operations.find_kind(args.operation) == "fma":
        program.need_triton(device)
    program.set_arithmetic(args, "tf32" if args.operation == "tf32_tensor" else "fp32")
    size = operations.SIZES[device.type]
    if args.rows is not None:
        size = dataclasses.replace(size, rows=args.rows)
    if args.array_mib is not None:
        size = dataclasses.replace(size, array_mib=args.array_mib, transfer_mib=args.array_mib)
    operation = operations.build(args.operation, device, size)
    facts = {"work_per_call": f"{operation.work:.12g}"} | program.describe_run(device)
    calls = operations.count_calls(args.operation, device) if args.calls is None else args.calls
    loop.measure(args, job, operation, device, calls, args.operation, facts)


if __name__ == "__main__":
    program.run_program(Micro, run)
