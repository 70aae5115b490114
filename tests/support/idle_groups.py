"""Groups whose energy is measured, so that a study measures idle power before them."""

from __future__ import annotations

import dataclasses
from typing import Any

from pipeline.base.domain.records import Group, ListenerSpec, Required
from pipeline.base.system.factory import Spec
from tests.support.rows import gpu_settings, group

NVML = ListenerSpec(
    name="nvml", build=Spec(target="listeners.nvml.NvmlListener"), interval_ms=1000, required=Required.IF_GPU
)
HOST = dataclasses.replace(NVML, name="host", build=Spec(target="listeners.host.HostListener"))
MPS = Spec(target="pipeline.prepare.sharing.mps.Mps")


def make_groups(*changes: dict[str, Any], names: str = "aa") -> list[Group]:
    """Make groups with jobs of these names and these differences."""
    settings = gpu_settings(idle_power_s=10.0, waiting_power_s=4.0)
    common = {"listeners": (HOST, NVML), "gpu": settings}
    return [group(*names, **common | {"number": number} | change) for number, change in enumerate(changes, 1)]
