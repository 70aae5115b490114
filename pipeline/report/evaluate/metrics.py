"""The quantities of the tables and figures: what they are called, their unit, and which direction is good."""

from __future__ import annotations

import enum
import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass

from pipeline.base.samples import Summary
from pipeline.report.read.records import Row


class Scale(enum.Enum):
    """How values of a quantity scatter: by factors, or by differences, and there as a share between 0 and 1.

    A peak scatters in neither way: it takes a few distinct values, and what counts is the highest that must fit.
    """

    POSITIVE = "positive"
    PLAIN = "plain"
    SHARE = "share"
    PEAK = "peak"


SPEEDUP, BEST_SOLO = "speedup_vs_serial_ratio", "speedup_vs_best_solo_ratio"
THROUGHPUT, TOTAL_TIME = "throughput_total_samples_per_s", "makespan_s"
MEMORY, ENERGY_PER_SAMPLE = "memory_peak_mib", "energy_per_sample_j"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One quantity.

    Attributes:
        name: with its unit, as in the results.
        title: for axes and column heads, without the unit.
        unit: for axes; empty for a ratio.
        higher_is_better: `None` where neither is.
    """

    name: str
    title: str
    unit: str
    scale: Scale = Scale.POSITIVE
    higher_is_better: bool | None = None


_ALL = (
    Metric(
        name="throughput_total_samples_per_s", title="throughput of all jobs", unit="samples/s", higher_is_better=True
    ),
    Metric(name="epoch_time_s", title="time per epoch", unit="s", higher_is_better=False),
    Metric(name="epoch_time_derived_s", title="time per epoch, from throughput", unit="s", higher_is_better=False),
    Metric(name="epoch_time_vs_solo_ratio", title="time per epoch against alone", unit="", higher_is_better=False),
    Metric(name="makespan_s", title="total time", unit="s", higher_is_better=False),
    Metric(name="speedup_vs_serial_ratio", title="speed-up against serial", unit="", higher_is_better=True),
    Metric(
        name="speedup_vs_best_solo_ratio",
        title="speed-up against the best step mode alone",
        unit="",
        higher_is_better=True,
    ),
    Metric(name="slowdown_worst_ratio", title="worst slowdown", unit="", higher_is_better=False),
    Metric(name="fairness_jain_ratio", title="fairness (Jain)", unit="", scale=Scale.SHARE, higher_is_better=True),
    Metric(name="gract_mean_ratio", title="GRACT", unit="", scale=Scale.SHARE),
    Metric(name="smact_mean_ratio", title="SMACT", unit="", scale=Scale.SHARE),
    Metric(name="smocc_mean_ratio", title="SM occupancy", unit="", scale=Scale.SHARE),
    Metric(name="dram_active_mean_ratio", title="DRAM activity", unit="", scale=Scale.SHARE),
    Metric(name="tensor_active_mean_ratio", title="tensor core activity", unit="", scale=Scale.SHARE),
    Metric(name="memory_peak_mib", title="peak memory of the GPU", unit="MiB", scale=Scale.PEAK),
    Metric(name="energy_per_sample_j", title="energy per sample", unit="J", higher_is_better=False),
    Metric(
        name="energy_above_idle_per_sample_j",
        title="energy per sample above idle",
        unit="J",
        scale=Scale.PLAIN,
        higher_is_better=False,
    ),
    Metric(name="power_mean_w", title="power of the GPU", unit="W"),
    Metric(name="sm_clock_mean_mhz", title="SM clock", unit="MHz"),
    Metric(name="temperature_max_c", title="highest temperature", unit="C", scale=Scale.PEAK),
    Metric(name="overlap_ratio", title="overlap", unit="", scale=Scale.SHARE),
)
METRICS = {metric.name: metric for metric in _ALL}
"""By name, in the order of tables."""

_SPEED = ("throughput_total_samples_per_s", "epoch_time_s", "epoch_time_derived_s", "makespan_s")
_SHARE = ("gract_mean_ratio", "smact_mean_ratio", "smocc_mean_ratio", "tensor_active_mean_ratio")
_POWER = ("energy_per_sample_j", "energy_above_idle_per_sample_j", "power_mean_w", "sm_clock_mean_mhz")
GROUPS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("speed", "Speed", (*_SPEED, "speedup_vs_serial_ratio", "speedup_vs_best_solo_ratio")),
    ("fairness", "What each job gets", ("epoch_time_vs_solo_ratio", "slowdown_worst_ratio", "fairness_jain_ratio")),
    ("utilisation", "Utilisation and memory", (*_SHARE, "dram_active_mean_ratio", "memory_peak_mib")),
    ("energy", "Energy, power and clocks", (*_POWER, "temperature_max_c")),
)
"""Quantities that are printed side by side: name and title of the table, and what is in it."""


@functools.cache
def _sampled(titled: str) -> Mapping[str, Metric]:
    """From what `pipeline.observe.fields.Fields.titled` gives."""
    told = json.loads(titled) if titled else {}
    return {name: _metric(name, **facts) for name, facts in told.items() if name not in METRICS}


def sampled(row: Row) -> Mapping[str, Metric]:
    """The figures of a row that come from its listeners and that `METRICS` does not know, by name."""
    return _sampled(row.facts.get("figures", ""))


def table_of(metric: Metric) -> str:
    """The table of `GROUPS` that shows a figure of a listener."""
    return "utilisation" if metric.scale is Scale.SHARE or metric.unit == "MiB" else "energy"


def _metric(name: str, *, title: str, unit: str, summary: str) -> Metric:
    if unit == "ratio":
        return Metric(name=name, title=title, unit="", scale=Scale.SHARE)
    is_peak = summary in (Summary.MAX, Summary.PEAK)
    return Metric(name=name, title=title, unit=unit, scale=Scale.PEAK if is_peak else Scale.POSITIVE)
