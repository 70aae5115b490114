"""Compare each microbenchmark with a plain loop that does the same work: `python -m benchmarks.microbenchmarks`.

The script prints a table with the rate of the program, the rate of the loop, and their ratio; rates are medians of
several alternating runs. The exit status is 1 if a ratio differs from 1 by more than 3 %. `--tiny` tests this script on
the CPU.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

WITHIN = 0.03
PROGRAMS = Path(__file__).resolve().parents[1] / "workloads"
UNITS = {"copy": "GB/s", "triad": "GB/s", "to_device": "GB/s", "to_host": "GB/s", "launch": "launches/s"}
PRODUCTS = ("fp16_tensor", "bf16_tensor", "tf32_tensor", "fp8_tensor")
CHAINS = ("fp16_cuda", "fp32_cuda", "fp64_cuda")
PARTICLES = ("particles_4d", "particles_6d")


def main() -> int:
    """Print the table, or run one plain loop."""
    parser = argparse.ArgumentParser(description=__doc__)
    every = [*CHAINS, *PRODUCTS, *UNITS, *PARTICLES]
    parser.add_argument("--operations", nargs="+", choices=every, default=every)
    parser.add_argument("--rounds", type=int, default=2, help="alternating processes of program and loop")
    parser.add_argument("--epochs", type=int, default=3, help="measurements per process")
    parser.add_argument("--steps", type=int, default=100, help="steps per measurement")
    parser.add_argument("--tiny", action="store_true", help="test this script on the CPU")
    parser.add_argument(
        "--plain", metavar="OPERATION", choices=every, help="only run the plain loop of OPERATION; print its rates"
    )
    args = parser.parse_args()
    if args.plain:
        for rate in plain(args.plain, args.steps, args.epochs, "cpu" if args.tiny else "cuda"):
            sys.stdout.write(f"{rate:.9g} a second\n")
        return 0
    sys.stdout.write(f"{'operation':14} {'program':>12} {'plain loop':>12} {'ratio':>7}\n")
    within = [is_within(name, args) for name in args.operations]
    return 0 if all(within) else 1


def is_within(name: str, args: argparse.Namespace) -> bool:
    """Print the line of an operation; return whether program and loop are equally fast.

    If the GPU does not support fp8, the fp8 operation counts as equally fast.
    """
    ours, theirs = [], []
    for _ in range(args.rounds):
        rates, refused = run(build_argv(name, args))
        if refused:
            sys.stdout.write(f"{name:14} {refused}\n")
            return name == "fp8_tensor"
        ours += rates
        theirs += run([sys.executable, "-m", "benchmarks.microbenchmarks", *list_flags(args), "--plain", name])[0]
    ratio = statistics.median(ours) / statistics.median(theirs)
    unit = UNITS.get(name, "turns/s" if name in PARTICLES else "TFLOP/s")
    figures = f"{statistics.median(ours):12.6g} {statistics.median(theirs):12.6g} {ratio:7.3f}"
    spread = f"program {min(ours):.6g} to {max(ours):.6g}, loop {min(theirs):.6g} to {max(theirs):.6g}"
    sys.stdout.write(f"{name:14} {figures}  {unit}; {spread}\n")
    sys.stdout.flush()
    return abs(ratio - 1) <= WITHIN


def build_argv(name: str, args: argparse.Namespace) -> list[str]:
    """Return the command line of the program that runs an operation."""
    if name in PARTICLES:
        what = [str(PROGRAMS / "particles.py"), "--dimensions", name.removeprefix("particles_").removesuffix("d")]
    else:
        what = [str(PROGRAMS / "micro.py"), "--operation", name]
    return [sys.executable, *what, "--device", "cpu" if args.tiny else "cuda", *lengths(args)]


def list_flags(args: argparse.Namespace) -> list[str]:
    """Return the flags that the plain loop shares with this run."""
    return [*lengths(args), *(["--tiny"] if args.tiny else [])]


def lengths(args: argparse.Namespace) -> list[str]:
    """Return the flags that set the number of epochs and steps."""
    return ["--steps", str(args.steps), "--epochs", str(args.epochs)]


def run(argv: list[str]) -> tuple[list[float], str]:
    """Return the rates that a program prints, or the reason why it refuses to run on this machine."""
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode == 2:
        return [], done.stderr.strip().rpartition("\n")[2]
    if done.returncode or "wrong result" in done.stdout:
        raise SystemExit(f"{' '.join(argv)} ended with status {done.returncode}:\n{done.stdout}{done.stderr}")
    return [float(rate) for rate in re.findall(r"([0-9.e+-]+) a second", done.stdout)], ""


def plain(name: str, steps: int, epochs: int, device: str) -> Iterator[float]:
    """Return the rates of a loop with as many calls as the program, in the work unit of the operation."""
    import torch

    from workloads import particles
    from workloads.rates import operations

    on_gpu = device == "cuda"
    if name in PARTICLES:
        call, work = tracking(name, device)
        calls = particles.CALLS[device]
    else:
        size = operations.SIZES[device]
        calls = operations.count_calls(name, torch.device(device))
        call, work = (chain if name in CHAINS else loop)(name, device, size)

    def synchronize() -> None:
        if on_gpu:
            torch.cuda.synchronize()

    for _ in range(3 * calls):
        call()
    for _ in range(epochs):
        synchronize()
        began = time.perf_counter()
        for _ in range(steps * calls):
            call()
        synchronize()
        yield steps * calls * work / (time.perf_counter() - began)


def loop(name: str, device: str, size) -> tuple[Callable[[], object], float]:  # type: ignore[no-untyped-def]
    """Return a call as a plain script would write it, and its work."""
    import torch

    if name in PRODUCTS:
        n = size.rows
        torch.backends.cuda.matmul.allow_tf32 = name == "tf32_tensor"
        kinds = {"fp16": torch.float16, "bf16": torch.bfloat16, "tf32": torch.float32, "fp8": torch.float8_e4m3fn}
        kind = kinds[name.removesuffix("_tensor")]
        a, b = (torch.randn(n, n, device=device).to(kind) for _ in range(2))
        if name != "fp8_tensor":
            return (lambda: a @ b), 2 * n**3 / 1e12
        if device == "cpu":
            return (lambda: (a.float() @ b.float()).bfloat16()), 2 * n**3 / 1e12
        one = torch.ones((), device=device)
        return (lambda: torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)), 2 * n**3 / 1e12
    if name == "launch":
        counter = torch.zeros((), device=device, dtype=torch.int64)
        return (lambda: counter.add_(1)), 1.0
    if name in ("copy", "triad"):
        a, b, c = (torch.rand(size.array_mib * 2**18, device=device) for _ in range(3))
        if name == "copy":
            return (lambda: a.copy_(b)), 2 * 4 * a.numel() / 1e9
        return (lambda: torch.add(b, c, alpha=3, out=a)), 3 * 4 * a.numel() / 1e9
    host = torch.rand(size.transfer_mib * 2**18, pin_memory=device == "cuda")
    there = torch.rand(size.transfer_mib * 2**18, device=device)
    target, source = (there, host) if name == "to_device" else (host, there)
    return (lambda: target.copy_(source, non_blocking=True)), 4 * host.numel() / 1e9


def chain(name: str, device: str, size) -> tuple[Callable[[], object], float]:  # type: ignore[no-untyped-def]
    """Return a launch of the same kernel, and its work; only the loops around the kernel are compared."""
    import torch

    if device == "cpu":
        from workloads.rates.operations import MultiplyAdd

        operation = MultiplyAdd(name.removesuffix("_cuda"), torch.device("cpu"), size)
        return operation.call, operation.work
    import triton.language as tl

    from workloads.rates.kernels import multiply_add

    kinds = {"fp16": (torch.float16, tl.float16), "fp32": (torch.float32, tl.float32)}
    kind, dtype = {**kinds, "fp64": (torch.float64, tl.float64)}[name.removesuffix("_cuda")]
    out = torch.empty(size.elements, dtype=kind, device=device)
    grid, packed = (size.elements // 1024,), name == "fp16_cuda"

    def call() -> None:
        multiply_add[grid](out, -1.0, 1.0, size.rounds, dtype, packed, 1024, 32, num_warps=4)

    return call, 2 * (size.rounds * 32 + 1) * size.elements / 1e12


def tracking(name: str, device: str) -> tuple[Callable[[], object], float]:
    """Return a launch of the same kernel, and its work."""
    import torch

    from workloads import particles
    from workloads.rates.particle_tracking import CAVITY, CELLS, DRIFT, SLIPPAGE, STRENGTH, Lattice, track

    number, turns, is_6d = particles.PARTICLES[device], particles.TURNS[device], name == "particles_6d"
    state = 1e-4 * torch.randn(6, number, dtype=torch.float64, device=device)
    if device == "cpu":
        return (lambda: track(state, Lattice(), turns, is_6d=is_6d)), number * turns
    from workloads.rates import kernels

    lattice = torch.tensor([STRENGTH, DRIFT, SLIPPAGE, CAVITY], dtype=torch.float64, device=device)
    grid = (-(-number // 256),)
    done = torch.zeros(grid[0], dtype=torch.int64, device=device)
    return (
        lambda: kernels.track[grid](state, lattice, done, number, turns, CELLS, is_6d, 256, num_warps=4)
    ), number * turns


if __name__ == "__main__":
    sys.exit(main())
