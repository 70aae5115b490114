"""The options of the microbenchmarks and of particle tracking, with their own checks."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import ClassVar

from omegaconf import MISSING

from pipeline.base.records import Device
from pipeline.plan.workloads import WorkloadConfig

Operation = enum.Enum(
    "Operation",
    "fp16_cuda fp32_cuda fp64_cuda fp16_tensor bf16_tensor tf32_tensor fp8_tensor copy triad to_device to_host launch",
    start=0,
)
"""What a microbenchmark repeats: multiply-adds on CUDA cores, products on tensor cores, copies in the memory of the
device and between it and the host, launches."""

TrackingPrecision = enum.Enum("TrackingPrecision", "fp32 fp64", start=0)
"""Arithmetic of particle tracking."""

# Ada and Hopper. Source: NVIDIA, CUDA C++ Programming Guide, arithmetic by compute capability.
_LEAST_CAPABILITY = {Operation.fp8_tensor: (8, 9), Operation.tf32_tensor: (8, 0), Operation.bf16_tensor: (8, 0)}


@dataclass
class RepeatingConfig(WorkloadConfig):
    """What all programs take that repeat one operation (`workloads/rates/loop.py`).

    Attributes:
        calls: of the operation in a step; by the device if not given.
        steps: of an epoch, in a `work` window.
        threads: CPU threads of each job's framework; the framework's own choice if not given.
    """

    NODE: ClassVar[str] = "repeating"

    preload: str | None = "workloads.rates.loop"
    calls: int | None = None
    steps: int = 100
    warmup_steps: int = 3
    threads: int | None = None

    def check(self, device: Device, *, device_was_chosen: bool) -> None:
        super().check(device, device_was_chosen=device_was_chosen)
        self._refuse_below(1, "calls", "steps", "threads")
        self._refuse_below(0, "warmup_steps")


@dataclass
class MicroConfig(RepeatingConfig):
    """One operation again and again (`workloads/micro.py`, docs/microbenchmarks.md).

    Attributes:
        name, unit: follow from the operation.
        rows: of the square factors of a product; by the device if not given.
        array_mib: of each array of a copy or transfer; by the device if not given.
    """

    NODE: ClassVar[str] = "micro"

    name: str = ""
    script: str = "workloads/micro.py"
    unit: str = ""
    operation: Operation = MISSING
    rows: int | None = None
    array_mib: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.operation, Operation):
            self.name = self.name or f"micro_{self.operation.name}"
            self.unit = self.unit or self._unit()

    def _unit(self) -> str:
        if self.operation.name.endswith(("_cuda", "_tensor")):
            return "TFLOP"
        return "launches" if self.operation is Operation.launch else "GB"

    def check(self, device: Device, *, device_was_chosen: bool) -> None:
        super().check(device, device_was_chosen=device_was_chosen)
        self._refuse_below(1, "rows", "array_mib")
        name = self.operation.name
        if self.unit != self._unit():
            raise self._refused(f"unit={self.unit}: the work of operation={name} is counted in {self._unit()}")
        if self.rows is not None and not name.endswith("_tensor"):
            raise self._refused(f"rows={self.rows} is for products (operation=..._tensor), not for operation={name}")
        if self.rows is not None and self.rows % 16:
            raise self._refused(f"rows={self.rows} must be a multiple of 16, as products in fp8 demand")
        if self.array_mib is not None and self._unit() != "GB":
            raise self._refused(f"array_mib={self.array_mib} is for copies and transfers, not for operation={name}")
        capability = dict(device.details).get("compute_capability")
        least = _LEAST_CAPABILITY.get(self.operation, (0, 0))
        if capability is not None and tuple(map(int, capability.split("."))) < least:
            raise self._refused(
                f"operation={name}: {device.name} has no {name.removesuffix('_tensor')} (compute capability "
                f"{capability}, and {'.'.join(map(str, least))} is needed); choose fp16_tensor"
            )


@dataclass
class ParticlesConfig(RepeatingConfig):
    """Particles that go round an accelerator (`workloads/particles.py`, docs/microbenchmarks.md).

    Attributes:
        dimensions: 4, or 6 with motion along the bunch.
        particles: by the device if not given.
        turns: of a call; by the device if not given.
    """

    NODE: ClassVar[str] = "particles"

    script: str = "workloads/particles.py"
    unit: str = "particle_turns"
    dimensions: int = 6
    precision: TrackingPrecision = TrackingPrecision.fp64
    particles: int | None = None
    turns: int | None = None

    def check(self, device: Device, *, device_was_chosen: bool) -> None:
        super().check(device, device_was_chosen=device_was_chosen)
        self._refuse_below(1, "particles", "turns")
        if self.dimensions not in (4, 6):
            raise self._refused(f"dimensions={self.dimensions} must be 4 or 6")
