"""The options of the programs that repeat one operation: `micro`, `particles`, `stressor`, `stressor_turns`."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from workloads.options import Device, option, refuse_missing_gpu

Operation = enum.Enum(
    "Operation",
    "fp16_cuda fp32_cuda fp64_cuda fp16_tensor bf16_tensor tf32_tensor fp8_tensor copy triad to_device to_host launch",
    start=0,
)
"""Operations of microbenchmarks: multiply-adds on CUDA cores, matrix products on tensor cores, copies within device
memory, copies between device and host, kernel launches."""
Resource = enum.Enum(
    "Resource",
    "issue_fp32 tensor_cores shared_memory l2 memory_bandwidth launches pcie_copies host_cores host_memory",
    start=0,
)
"""Resources that a stressor loads; `shared_memory` includes the L1 cache, `host_memory` the page cache."""
IDLE = ("idle", 0.0)
"""The turn in which the stressor does nothing."""
Turn = tuple[str, float]
"""A resource and a dial."""
_LEAST_DIAL = 0.01
_OF_HOST = (Resource.host_cores, Resource.host_memory)
TrackingPrecision = enum.Enum("TrackingPrecision", "fp32 fp64", start=0)

# FP8 needs compute capability 8.9 (Ada, Hopper); TF32 and BF16 need 8.0 (Ampere). Source: NVIDIA, CUDA C++ Programming
# Guide, arithmetic by compute capability.
_LEAST_CAPABILITY = {Operation.fp8_tensor: (8, 9), Operation.tf32_tensor: (8, 0), Operation.bf16_tensor: (8, 0)}


@dataclass(kw_only=True)
class Repeating:
    """The options that all programs with one repeated operation have."""

    preload = "workloads.rates.loop"

    calls: int | None = option(None, least=1, help="calls of the operation per step; `null`: depends on the operation")
    steps: int = option(100, least=1, help="steps per epoch; matters only with `window=work`")
    warmup_steps: int = option(3, least=0, help="steps before the barrier")
    threads: int | None = option(None, least=1, help="CPU threads of each job; `null`: the framework chooses")

    def explain_own_process(self) -> str:
        return ""


@dataclass(kw_only=True)
class Micro(Repeating):
    """Repeat one operation on a device."""

    script = "workloads/micro.py"

    operation: Operation = option(help="repeated operation; determines the workload's name and work unit")
    rows: int | None = option(None, least=1, help="rows of the multiplied matrices; `null`: 8192 on a GPU")
    array_mib: int | None = option(None, least=1, help="MiB of each array; `null`: 512 on a GPU, 128 for transfers")

    def derive_name(self) -> str:
        return f"micro_{self.operation.name}"

    def derive_work_unit(self) -> str:
        if self.operation.name.endswith(("_cuda", "_tensor")):
            return "TFLOP"
        return "launches" if self.operation is Operation.launch else "GB"

    def check(self, device: Device) -> None:
        name = self.operation.name
        if self.rows is not None and not name.endswith("_tensor"):
            raise ValueError(f"rows={self.rows} is only for matrix products; remove rows, or use operation=..._tensor")
        if self.rows is not None and self.rows % 16:
            raise ValueError(f"rows={self.rows} is not a multiple of 16; use {self.rows // 16 * 16 + 16}")
        if self.array_mib is not None and self.derive_work_unit() != "GB":
            raise ValueError(f"array_mib={self.array_mib} has no effect with operation={name}; remove array_mib")
        least, capability = _LEAST_CAPABILITY.get(self.operation, (0, 0)), device.compute_capability
        if capability is not None and capability < least:
            raise ValueError(
                f"operation={name} needs compute capability {'.'.join(map(str, least))}, but {device.name} has "
                f"{'.'.join(map(str, capability))}; use operation=fp16_tensor"
            )

    def small(self) -> Micro:
        return Micro(operation=self.operation, threads=1)


@dataclass(kw_only=True)
class Stressor:
    """Load one resource for a share of the time."""

    script = "workloads/stressor.py"
    name = "stressor"
    work_unit = "calls"
    preload = "workloads.rates.loop"
    is_load = True

    resource: Resource = option(help="resource that the stressor loads ([sensitivity.md](sensitivity.md#stressors))")
    dial: float = option(1.0, least=0, help="share of time in which the stressor works, from 0 to 1, in short periods")
    calls: int = option(10_000, least=1, help="calls of the operation per epoch; matters only with `window=work`")
    threads: int | None = option(
        None, least=1, help="threads that load `host_cores` or `host_memory`; `null`: one per CPU of the job"
    )

    def check(self, device: Device) -> None:
        if self.dial > 1:
            raise ValueError(f"dial={self.dial:g} must be from 0 to 1")
        _check_resource("resource", self.resource, device)

    def explain_own_launch(self) -> str:
        return ""

    def small(self) -> Stressor:
        resource = self.resource if self.resource in _OF_HOST else Resource.host_cores
        return Stressor(resource=resource, dial=self.dial, threads=self.threads)


@dataclass(kw_only=True)
class StressorTurns:
    """Load one resource after another, each in turns."""

    script = "workloads/stressor_turns.py"
    name = "stressor"
    work_unit = "calls"
    preload = "workloads.rates.loop"
    is_load = True
    takes_turns = True

    resources: list[str] = option(
        choices=tuple(Resource.__members__), help="loaded resources ([sensitivity.md](sensitivity.md#stressors))"
    )
    dials: list[float] = option(help="dials of each resource, from 0.01 to 1", least=0)
    turn_s: float = option(1.0, least=0, help="length of a turn in seconds")
    turn_settle_s: float = option(0.2, least=0, help="time at the beginning of a turn that is not measured")
    lead_s: float = option(
        1.0, least=0, help="time before the first turn, in which the stressor is idle and other jobs settle"
    )
    rounds: int = option(
        2, least=1, is_flag=False, help="number of turns of each resource and dial that fit into a steady window"
    )
    threads: int | None = option(
        None, least=1, help="threads that load `host_cores` or `host_memory`; `null`: one per CPU of the job"
    )

    def check(self, device: Device) -> None:
        for name in ("resources", "dials"):
            entries = getattr(self, name)
            if not entries or len(set(entries)) < len(entries):
                raise ValueError(f"{name}={entries} must name at least one, each once; correct the list")
        for resource in self.resources:
            _check_resource("resources", Resource[resource], device)
        for dial in self.dials:
            if not _LEAST_DIAL <= dial <= 1:
                raise ValueError(f"dials={dial:g} must be from {_LEAST_DIAL} to 1; turns without load are added")
        if self.turn_s < 2 * max(self.turn_settle_s, 0.01):
            raise ValueError(
                f"turn_s={self.turn_s:g} must be at least twice turn_settle_s={self.turn_settle_s:g}, and 0.02; raise "
                "turn_s"
            )

    def fit_window_s(self, settle_s: float) -> float:
        if self.lead_s < settle_s:
            raise ValueError(
                f"lead_s={self.lead_s:g} is below window.settle_s={settle_s:g}, so the first turns would not be "
                "measured; remove lead_s"
            )
        num_turns = len(list_round(self.resources, self.dials))
        return self.lead_s - settle_s + (self.rounds * num_turns + 1) * self.turn_s  # the last turn is a reserve

    def small(self) -> StressorTurns:
        resources = [name for name in self.resources if Resource[name] in _OF_HOST]
        return replace(self, resources=resources or [Resource.host_cores.name], turn_s=min(self.turn_s, 0.5))


def list_round(resources: Sequence[str], dials: Sequence[float]) -> list[Turn]:
    """Return the turns of a round: one for each resource and dial, and idle turns.

    All turns are compared with the idle turns, so there are as many of these as is best for a common baseline: the
    square root of the number of other turns (Dunnett, "A Multiple Comparison Procedure for Comparing Several Treatments
    with a Control", 1955).
    """
    turns = list(itertools.product(resources, dials))
    return [*turns, *[IDLE] * round(math.sqrt(len(turns)))]


def _check_resource(key: str, resource: Resource, device: Device) -> None:
    if resource in _OF_HOST:
        return
    refuse_missing_gpu(device, f"{key}={resource.name}")
    capability = device.compute_capability
    if resource is Resource.tensor_cores and capability is not None and capability < (8, 0):
        raise ValueError(
            f"{key}=tensor_cores needs compute capability 8.0, but {device.name} has "
            f"{'.'.join(map(str, capability))}; use another resource"
        )


@dataclass(kw_only=True)
class Particles(Repeating):
    """Track particles through an accelerator."""

    script = "workloads/particles.py"
    work_unit = "particle_turns"

    dimensions: int = option(6, choices=(4, 6), help="6: with motion along the bunch; 4: without")
    precision: TrackingPrecision = option(TrackingPrecision.fp64, help="number format of the arithmetic")
    particles: int | None = option(None, least=1, help="number of particles; `null`: 5 million on a GPU")
    turns: int | None = option(None, least=1, help="turns per call; `null`: 100 on a GPU")

    def small(self) -> Particles:
        return Particles(dimensions=self.dimensions, precision=self.precision, threads=1)
