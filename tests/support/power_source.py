"""A power sensor of a simulated GPU."""

from __future__ import annotations

from pipeline.simulation.machine.readings import Quantity
from pipeline.simulation.machine.state_file import Gpu, GpuInstance

IDLE_W, WAITING_W = 70.0, 120.0


class PowerSource:
    """A source with a constant power without processes, and a higher one with processes."""

    def read(self, quantity: Quantity, gpu: Gpu, instance: GpuInstance | None, t_ns: int) -> float | None:
        power_w = WAITING_W if gpu.processes else IDLE_W
        return {Quantity.POWER: power_w, Quantity.ENERGY: power_w * t_ns / 1e9}.get(quantity)
