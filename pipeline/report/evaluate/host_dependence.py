"""The dependence of figures on the host: baselines that drift with it, and figures that hold for one host."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipeline.base.domain import work_units
from pipeline.base.domain.normalisation import MEAN_SLOWDOWN, P99_SLOWDOWN, SPEEDUP
from pipeline.report.evaluate.metrics import (
    BEST_SOLO,
    ENERGY_VS_ALONE,
    ENERGY_VS_BEST_SOLO,
    EPOCH_TIME_VS_SOLO,
    MEAN_LATENCY,
)
from pipeline.report.evaluate.statistics import follows_host, is_baseline_drifting

if TYPE_CHECKING:
    from pipeline.report.evaluate.cells import Case


class HostDependence:
    """The dependence of the figures of a cell on its host."""

    __slots__ = ()
    case: Case
    unit: str
    num_given: int
    values: dict[str, dict[int, float]]
    gpus: dict[int, str]
    boots: frozenset[str]

    @property
    def throughput(self) -> str:
        """The name of the metric for the throughput of all jobs; empty if the jobs have different units."""
        return work_units.total_of(self.unit) if self.unit else ""

    def has_drifting_baseline(self, name: str) -> bool:
        """Return whether a quantity is relative to a baseline whose speed drifts (`is_drifting`)."""
        # A group that waits for the host drifts against a CUDA graph that does not.
        is_over_best = name in (BEST_SOLO, ENERGY_VS_BEST_SOLO)
        return self.is_drifting(self.compare_speeds(name), is_symmetric=is_over_best)

    def compare_speeds(self, name: str) -> Mapping[int, float]:
        """Return the speed over that of the baseline of a quantity, by block; empty for an absolute quantity."""
        if name in (BEST_SOLO, ENERGY_VS_BEST_SOLO):
            return self.values.get(BEST_SOLO, {})
        if name in (MEAN_SLOWDOWN, P99_SLOWDOWN) or (name == ENERGY_VS_ALONE and self.num_given):
            return invert(self.values.get(MEAN_SLOWDOWN, {}))  # a percentile scatters more than the host
        if name in (SPEEDUP, ENERGY_VS_ALONE):
            return self.values.get(SPEEDUP, {})
        is_slowdown = name.startswith("slowdown_") or name == EPOCH_TIME_VS_SOLO
        return invert(self.values.get(name, {})) if is_slowdown else {}

    @property
    def speeds(self) -> Mapping[int, float]:
        """The speed by block, which follows the host if the jobs wait for it; of services, the inverse latency."""
        if self.num_given:
            return {} if self.case.is_mix else invert(self.values.get(MEAN_LATENCY, {}))
        return self.values.get(self.throughput, {})

    def is_drifting(self, ratios: Mapping[int, float], *, is_symmetric: bool = False) -> bool:
        """Return whether the baseline of ratios of speed drifts with the host, and the cell does not; or either does.

        GPUs are independent, so blocks of several GPUs never drift.
        """
        speeds = self.speeds
        blocks = ratios.keys() & speeds.keys()
        if not blocks or len(set(self.gpus.values())) > 1:
            return False
        baselines = [speeds[block] / ratios[block] for block in blocks]
        return is_baseline_drifting([speeds[block] for block in blocks], baselines, is_symmetric=is_symmetric)

    @property
    def has_several_hosts(self) -> bool:
        """True if the blocks ran on several hosts, which differ in their GPUs and boots."""
        return min(len(self.boots), len(set(self.gpus.values()))) > 1

    def shares_host(self, other: HostDependence) -> bool:
        """Return whether blocks of both cells ran on one host."""
        return bool(self.boots & other.boots or set(self.gpus.values()) & set(other.gpus.values()))

    @property
    def depends_on_host(self) -> bool:
        """True if speeds relative to serial hold for this host, because the baseline waits for it."""
        speeds, by_gpu = self.speeds, defaultdict[str, list[float]](list)
        for block, ratio in self.compare_speeds(MEAN_SLOWDOWN if self.num_given else SPEEDUP).items():
            if block in speeds:
                by_gpu[self.gpus.get(block, "")].append(speeds[block] / ratio)
        return follows_host(by_gpu.values())


def invert(by_block: Mapping[int, float]) -> dict[int, float]:
    """Return the inverse of each positive figure."""
    return {block: 1 / value for block, value in by_block.items() if value > 0}
