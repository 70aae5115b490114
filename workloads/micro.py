"""How fast a device computes, moves data and launches kernels: `python workloads/micro.py --help`.

Runs one operation again and again, as a job or by hand. Standard output is a log: one line an epoch.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if __name__ == "__main__":  # by its path: workloads/__init__.py
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from workloads import client, program
from workloads.program import positive

OPERATIONS = (
    *("fp16_cuda", "fp32_cuda", "fp64_cuda"),
    *("fp16_tensor", "bf16_tensor", "tf32_tensor", "fp8_tensor"),
    *("copy", "triad", "to_device", "to_host"),
    "launch",
)

# Ada and Hopper; Ampere. An older GPU computes in fp32 what is asked for in TF32.
_LEAST_CAPABILITY = {"fp8_tensor": (8, 9), "tf32_tensor": (8, 0), "bf16_tensor": (8, 0)}


def build_parser() -> program.Parser:
    """Return the parser of the command line."""
    parser = program.Parser(description="Repeat one operation on a device.")
    flag = parser.add_argument
    flag("--operation", required=True, choices=OPERATIONS)
    flag("--rows", type=positive, help="of the factors of a product (default: by the device)")
    flag("--array-mib", type=positive, help="MiB of each array that is copied (default: by the device)")
    program.repeating_flags(parser)
    return parser


def main() -> None:
    """Measure as the command line says."""
    program.run_program(build_parser().parse_args(), build_parser(), run)


def run(args: argparse.Namespace, job: client.NullJob) -> None:
    """Set up, warm up, wait for the group, repeat.

    Raises:
        UsageError: this machine lacks the device, or the device the format.
    """
    job.phase("import")
    import dataclasses

    import torch

    from workloads.rates import loop, operations

    job.phase("build")
    device = program.device_of(args, build_parser())
    if operations.kind_of(args.operation) == "fma":
        program.need_triton(device, build_parser())
    if args.operation in _LEAST_CAPABILITY and device.type == "cuda":
        capability, least = torch.cuda.get_device_capability(device), _LEAST_CAPABILITY[args.operation]
        if capability < least:
            build_parser().error(
                f"--operation {args.operation}: {torch.cuda.get_device_name(device)} cannot compute it, which needs "
                f"compute capability {least[0]}.{least[1]}, and has {capability[0]}.{capability[1]}"
            )
    program.set_arithmetic(args, "tf32" if args.operation == "tf32_tensor" else "fp32")
    size = operations.SIZES[device.type]
    if args.rows is not None:
        size = dataclasses.replace(size, rows=args.rows)
    if args.array_mib is not None:
        size = dataclasses.replace(size, array_mib=args.array_mib, transfer_mib=args.array_mib)
    operation = operations.build(args.operation, device, size)
    facts = {"operation": args.operation, "work_per_call": f"{operation.work:.12g}"} | program.facts_of(device)
    calls = operations.calls_of(args.operation, device) if args.calls is None else args.calls
    loop.measure(args, job, operation, device, calls, args.operation, facts)


if __name__ == "__main__":
    main()
