"""How fast a device computes, moves data and launches kernels: `python workloads/micro.py --help`.

Runs one operation again and again, as a job or by hand. Standard output is a log: one line an epoch.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if __name__ == "__main__":
    # Started by its path, this folder comes first on the module path, where our file names would shadow others'.
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from workloads import client, program
from workloads.program import positive

UNITS = {
    **dict.fromkeys(("fp16_cuda", "fp32_cuda", "fp64_cuda"), "TFLOP"),
    **dict.fromkeys(("fp16_tensor", "bf16_tensor", "tf32_tensor", "fp8_tensor"), "TFLOP"),
    **dict.fromkeys(("copy", "triad", "to_device", "to_host"), "GB"),
    "launch": "launches",
}
"""By operation: what its work is counted in."""

_LEAST_FOR_FP8 = (8, 9)  # Ada and Hopper


def build_parser() -> program.Parser:
    """Return the parser of the command line."""
    parser = program.Parser(description="Repeat one operation on a device.")
    flag = parser.add_argument
    flag("--operation", required=True, choices=list(UNITS))
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
    if args.operation == "fp8_tensor" and device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability < _LEAST_FOR_FP8:
            build_parser().error(
                f"--operation fp8_tensor: {torch.cuda.get_device_name(device)} has no fp8, which needs compute "
                f"capability 8.9, and has {capability[0]}.{capability[1]}"
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
