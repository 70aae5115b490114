"""The quantities of the tables and figures, with titles, units and scales."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pipeline.base.domain import service_figures, work_units
from pipeline.base.domain.normalisation import (
    BIT_IDENTICAL,
    FAIRNESS,
    MEAN_SLOWDOWN,
    MEMORY_FORECAST,
    MEMORY_PEAK,
    P99_SLOWDOWN,
    SLOWDOWN,
    SPEEDUP,
)
from pipeline.base.domain.samples import THROTTLED, Summary
from pipeline.report.evaluate.statistics import Estimate, Scale
from pipeline.report.read.study_records import Row

BEST_SOLO, TOTAL_TIME, WINDOW = "speedup_vs_best_solo_ratio", "makespan_s", "window_s"
EPOCH_TIME_VS_SOLO = "epoch_time_vs_solo_ratio"
MEAN_LATENCY, P99_LATENCY = (
    service_figures.name_worst(service_figures.MEAN),
    service_figures.name_worst(service_figures.P99),
)
P95_LATENCY = service_figures.name_worst("latency_p95_ms")
LATENCY_DEVIATION = service_figures.name_worst(service_figures.DEVIATION)
STEP_TIME = service_figures.name_worst(service_figures.STEP_TIME)
HOST_BOUND = "host_bound_ratio"
HOST_CPU, HOST_MEMORY = "host_cpu_total_pct", "host_memory_total_mib"
ENERGY_VS_ALONE, ENERGY_VS_BEST_SOLO = "energy_vs_alone_ratio", "energy_vs_best_solo_ratio"
INSTANCE_MEMORY = "instance_memory_peak_mib"


JOULE = "J"
_PREFIXES = ((1.0, ""), (1e-3, "m"), (1e-6, "u"))
_LEAST = 0.1
"""The highest figure, in the chosen unit, is at least this number, unless no smaller unit exists."""
_PERCENTILE = re.compile(r"_p\d+_")


def is_latency(name: str) -> bool:
    """Return whether a quantity of a group is a latency, or a ratio of latencies."""
    return name.startswith("latency_")


def name_instance_metric(activity: str) -> str:
    """Return the name of the mean activity of the GPU instances of a group."""
    return f"instance_{activity}"


def find_incomplete_percentiles(values: Mapping[str, Mapping[int, float]]) -> list[str]:
    """Return the percentiles of latency that are missing in a block with a mean latency.

    A percentile is missing where the window was too short for it. The other blocks are no random choice: their bursts
    of requests were shorter.
    """
    means = {name: _PERCENTILE.sub("_mean_", name) for name in values if is_latency(name)}
    return [name for name, mean in means.items() if len(values[name]) < len(values.get(mean, ()))]


@dataclass(frozen=True, slots=True)
class Metric:
    """One quantity.

    Attributes:
        name: name in the results.
        title, unit: words for readers; the unit of a ratio is empty.
    """

    name: str
    title: str
    unit: str = ""
    scale: Scale = Scale.POSITIVE

    def heading(self, prefix: str = "") -> str:
        """Return the title, followed by the prefix and the unit in parentheses unless the metric is a ratio."""
        return f"{self.title} ({prefix}{self.unit})" if self.unit else self.title


_ACTIVITY = {
    "gract_mean_ratio": "GRACT",
    "smact_mean_ratio": "SMACT",
    "smocc_mean_ratio": "SM occupancy",
    "tensor_active_mean_ratio": "tensor core activity",
    "dram_active_mean_ratio": "DRAM activity",
}
_LATENCIES = {
    service_figures.name_worst(service_figures.MEAN): "mean latency",
    service_figures.name_worst("latency_p50_ms"): "median latency",
    P95_LATENCY: "p95 latency",
    service_figures.name_worst(service_figures.P99): "p99 latency",
    service_figures.name_worst("latency_p999_ms"): "p99.9 latency",
}
_ALL = (
    Metric("epoch_time_s", "time per epoch", "s"),
    Metric("epoch_time_derived_s", "time per epoch, from throughput", "s"),
    Metric(EPOCH_TIME_VS_SOLO, "time per epoch against alone"),
    Metric(TOTAL_TIME, "total time", "s"),
    Metric(WINDOW, "length of the window", "s", Scale.PEAK),
    Metric(SPEEDUP, "speed-up over serial"),
    Metric(BEST_SOLO, "speed-up over the best step mode alone"),
    Metric(SLOWDOWN, "worst slowdown"),
    *(Metric(name, f"{title} of the slowest job", "ms") for name, title in _LATENCIES.items()),
    Metric(LATENCY_DEVIATION, "standard deviation of the latency of the slowest job", "ms"),
    Metric(STEP_TIME, "median step time of the slowest job", "ms"),
    Metric(service_figures.GOODPUT_TOTAL, "goodput of all jobs", "requests/s"),
    Metric(service_figures.SUSTAINED_WORST, "answers over arrivals", scale=Scale.SHARE),
    Metric(service_figures.OBJECTIVE_MET_WORST, "objective met", scale=Scale.SHARE),
    Metric(MEAN_SLOWDOWN, "worst slowdown of the mean latency"),
    Metric(P99_SLOWDOWN, "worst slowdown of the p99 latency"),
    Metric(FAIRNESS, "fairness (Jain)", scale=Scale.SHARE),
    Metric(BIT_IDENTICAL, "same bits of losses as alone", scale=Scale.SHARE),
    *(Metric(name, title, scale=Scale.SHARE) for name, title in _ACTIVITY.items()),
    Metric(MEMORY_PEAK, "peak memory of the GPU", "MiB", Scale.PEAK),
    Metric(MEMORY_FORECAST, "peak memory of the jobs alone, added", "MiB", Scale.PEAK),
    *(
        Metric(name_instance_metric(name), f"{title} of an instance", scale=Scale.SHARE)
        for name, title in _ACTIVITY.items()
    ),
    Metric(INSTANCE_MEMORY, "peak memory of an instance", "MiB", Scale.PEAK),
    Metric("energy_per_epoch_j", "energy per epoch of a job", "J"),
    Metric(ENERGY_VS_ALONE, "energy against the same work alone"),
    Metric(ENERGY_VS_BEST_SOLO, "energy against the same work in the best step mode alone"),
    Metric("power_mean_w", "power of the GPU", "W"),
    Metric("sm_clock_mean_mhz", "SM clock", "MHz"),
    Metric("temperature_max_c", "highest temperature", "C", Scale.PEAK),
    Metric(THROTTLED, "time throttled by power or heat", scale=Scale.SHARE),
    Metric("process_cpu_mean_pct", "CPU of a job's busiest process", "% of one core", Scale.AMOUNT),
    Metric(HOST_CPU, "CPU of all jobs", "% of one core", Scale.AMOUNT),
    Metric(HOST_MEMORY, "host memory of all jobs", "MiB", Scale.PEAK),
    Metric("run_queue_delay_pct", "waiting for a CPU", "% of one core", Scale.AMOUNT),
    Metric("involuntary_switches_per_s", "involuntary switches", "1/s", Scale.AMOUNT),
    Metric("cpu_clock_mean_mhz", "CPU clock", "MHz"),
    Metric(HOST_BOUND, "share of the jobs bound by the host", scale=Scale.SHARE),
    Metric("overlap_ratio", "overlap", scale=Scale.SHARE),
)
METRICS = {metric.name: metric for metric in _ALL}
"""Metrics by name, in the order of tables; `Cell.counted` and `sampled` add those of work units and listeners."""

_SPEED = ("epoch_time_s", "epoch_time_derived_s", TOTAL_TIME, SPEEDUP, BEST_SOLO, WINDOW)
ACTIVITY = tuple(_ACTIVITY)
"""Metrics of a GPU, and of each of its GPU instances."""

_ENERGY = ("energy_per_epoch_j", ENERGY_VS_ALONE, ENERGY_VS_BEST_SOLO)
_POWER = ("power_mean_w", "sm_clock_mean_mhz", "temperature_max_c")
_SERVED = (service_figures.GOODPUT_TOTAL, service_figures.SUSTAINED_WORST, service_figures.OBJECTIVE_MET_WORST)
_FAIRNESS = (EPOCH_TIME_VS_SOLO, SLOWDOWN, MEAN_SLOWDOWN, P99_SLOWDOWN, FAIRNESS, BIT_IDENTICAL)
HOST = (
    *("process_cpu_mean_pct", "run_queue_delay_pct", "involuntary_switches_per_s", "cpu_clock_mean_mhz"),
    *(HOST_CPU, HOST_MEMORY, HOST_BOUND),
)
"""Metrics of the host's CPUs and memory that the jobs used or waited for."""

GROUPS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("speed", "Speed", _SPEED),
    ("latency", "Latency", (*_LATENCIES, LATENCY_DEVIATION, *_SERVED)),
    ("fairness", "Slowdown and fairness", _FAIRNESS),
    ("utilisation", "Utilisation and memory", (*ACTIVITY, MEMORY_PEAK, MEMORY_FORECAST)),
    ("energy", "Energy, power and clocks", (*_ENERGY, *_POWER, THROTTLED)),
)
"""Name, title and metrics of each table."""


def find_work_metrics(row: Row) -> dict[str, Metric]:
    """Return the metrics of a row that count work, by name, for each unit that all its jobs have."""
    return {
        name: metric for unit in work_units.find_units(row.metrics) for name, metric in make_work_metrics(unit).items()
    }


@functools.cache
def make_work_metrics(unit: str) -> Mapping[str, Metric]:
    """Return the metrics that count work in a unit, by name, in the order of tables."""
    one = work_units.format_singular(unit)
    metrics = (
        Metric(work_units.total_of(unit), "throughput of all jobs", work_units.per_second(unit)),
        Metric(work_units.energy_of(unit), f"energy per {one}", "J"),
        Metric(work_units.energy_above_idle_of(unit), f"energy per {one} above an idle GPU", "J", Scale.PLAIN),
        Metric(work_units.energy_above_waiting_of(unit), f"energy per {one} above waiting jobs", "J", Scale.PLAIN),
    )
    return {metric.name: metric for metric in metrics}


def find_sampled_metrics(row: Row) -> Mapping[str, Metric]:
    """Return the metrics of a row that come from listeners and are not in `METRICS`, by name."""
    return _sampled(row.facts.get("figures", ""))


@functools.cache
def _sampled(titled: str) -> Mapping[str, Metric]:
    metrics = {}
    for name, facts in (json.loads(titled) if titled else {}).items():
        is_share, is_peak = facts["unit"] == "ratio", facts["summary"] in (Summary.MAX, Summary.PEAK)
        scale = Scale.SHARE if is_share else Scale.PEAK if is_peak else Scale.POSITIVE
        metrics[name] = Metric(name, facts["title"], "" if is_share else facts["unit"], scale)
    return {name: metric for name, metric in metrics.items() if name not in METRICS}


def find_table(metric: Metric) -> str:
    """Return the name of the table in `GROUPS` that shows a metric of a listener or of counted work."""
    if work_units.find_units([metric.name]):
        return "speed"
    return "utilisation" if metric.scale is Scale.SHARE or metric.unit == "MiB" else "energy"


def choose_prefix(figures: Iterable[float], unit: str = JOULE) -> tuple[float, str]:
    """Return scale and prefix of the unit for energies; figures in other units have no prefix."""
    if unit != JOULE:
        return 1.0, ""
    highest = max(figures, default=1.0)
    return next(((scale, prefix) for scale, prefix in _PREFIXES if highest >= _LEAST * scale), _PREFIXES[-1])


def scale_estimate(estimate: Estimate, scale: float) -> Estimate:
    """Return an estimate in units of `scale`."""
    low, high = (None if end is None else end / scale for end in (estimate.low, estimate.high))
    return dataclasses.replace(estimate, median=estimate.median / scale, low=low, high=high)
