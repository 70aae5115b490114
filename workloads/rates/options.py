"""The options of programs that repeat one operation (`workloads/micro.py`, `workloads/particles.py`)."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from workloads.options import Device, option

Operation = enum.Enum(
    "Operation",
    "fp16_cuda fp32_cuda fp64_cuda fp16_tensor bf16_tensor tf32_tensor fp8_tensor copy triad to_device to_host launch",
    start=0,
)
"""What a microbenchmark repeats: multiply-adds on CUDA cores, products on tensor cores, copies in the memory of the
device and between it and the host, launches."""
TrackingPrecision = enum.Enum("TrackingPrecision", "fp32 fp64", start=0)

# Ada and Hopper; Ampere. Source: NVIDIA, CUDA C++ Programming Guide, arithmetic by compute capability.
_LEAST_CAPABILITY = {Operation.fp8_tensor: (8, 9), Operation.tf32_tensor: (8, 0), Operation.bf16_tensor: (8, 0)}


@dataclass(kw_only=True)
class Repeating:
    """Repeating one operation."""

    preload = "workloads.rates.loop"

    calls: int | None = option(None, least=1, help="calls of the operation in a step; by the operation if not given")
    steps: int = option(100, least=1, help="steps of an epoch, in a `work` window")
    warmup_steps: int = option(3, least=0, help="steps before the barrier")
    threads: int | None = option(None, least=1, help="CPU threads of each job's framework; its own choice if not given")


@dataclass(kw_only=True)
class Micro(Repeating):
    """Repeat one operation on a device."""

    script = "workloads/micro.py"

    operation: Operation = option(help="what `micro` repeats; its name and unit follow")
    rows: int | None = option(None, least=1, help="rows of the factors of a product; 8192 on a GPU if not given")
    array_mib: int | None = option(
        None, least=1, help="MiB of each array that is copied; on a GPU 512, of transfers 128, if not given"
    )

    def derive_name(self) -> str:
        return f"micro_{self.operation.name}"

    def derive_work_unit(self) -> str:
        if self.operation.name.endswith(("_cuda", "_tensor")):
            return "TFLOP"
        return "launches" if self.operation is Operation.launch else "GB"

    def check(self, device: Device) -> None:
        name = self.operation.name
        if self.rows is not None and not name.endswith("_tensor"):
            raise ValueError(f"rows={self.rows} is for products (operation=..._tensor), not for operation={name}")
        if self.rows is not None and self.rows % 16:
            raise ValueError(f"rows={self.rows} must be a multiple of 16, as products in fp8 demand")
        if self.array_mib is not None and self.derive_work_unit() != "GB":
            raise ValueError(f"array_mib={self.array_mib} is for copies and transfers, not for operation={name}")
        least, capability = _LEAST_CAPABILITY.get(self.operation, (0, 0)), device.compute_capability
        if capability is not None and capability < least:
            raise ValueError(
                f"operation={name}: {device.name} has no {name.removesuffix('_tensor')} (compute capability "
                f"{'.'.join(map(str, capability))}, and {'.'.join(map(str, least))} is needed); choose fp16_tensor"
            )

    def small(self) -> Micro:
        return Micro(operation=self.operation, threads=1)


@dataclass(kw_only=True)
class Particles(Repeating):
    """Track particles through an accelerator."""

    script = "workloads/particles.py"
    work_unit = "particle_turns"

    dimensions: int = option(6, choices=(4, 6), help="of `particles`: without or with motion along the bunch")
    precision: TrackingPrecision = option(TrackingPrecision.fp64, help="arithmetic of `particles`")
    particles: int | None = option(None, least=1, help="number of particles; 5 million on a GPU if not given")
    turns: int | None = option(None, least=1, help="turns of a call; 100 on a GPU if not given")

    def small(self) -> Particles:
        return Particles(dimensions=self.dimensions, precision=self.precision, threads=1)
