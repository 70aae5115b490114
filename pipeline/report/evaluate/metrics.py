"""The quantities of the tables and figures, with titles, units and scales."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

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
from pipeline.base.domain.window import WindowKind
from pipeline.report.evaluate.statistics import Estimate, Scale
from pipeline.report.read.study_records import JobRow, Row

BEST_SOLO, TOTAL_TIME, WINDOW = "speedup_vs_best_solo_ratio", "makespan_s", "window_s"
EPOCH_TIME_VS_SOLO = "epoch_time_vs_solo_ratio"
MEAN_LATENCY, P99_LATENCY = (
    service_figures.name_worst(service_figures.MEAN),
    service_figures.name_worst(service_figures.P99),
)
P95_LATENCY = service_figures.name_worst("latency_p95_ms")
FIRST_TOKEN_MEAN, FIRST_TOKEN_P95, FIRST_TOKEN_P99 = map(service_figures.name_pooled, service_figures.FIRST_TOKENS)
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
    """Return whether a quantity of a group is a latency or a time to the first token, or a ratio of latencies."""
    return name.startswith(("latency_", "first_token_"))


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


Compute = Callable[[Row, Sequence[JobRow | None]], float | None]
"""The computation of a quantity from a row and the run alone of each of its jobs; `None` if an input is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One quantity: all that tables, figures, claims and contrasts need to know about it.

    Attributes:
        name: name in the results.
        title, unit: words for readers; the unit of a ratio is empty.
        table: name of the table that shows it (`TABLES`); empty for the table of all results only.
        order: place in this table, after the metrics of a lower order.
        is_lower_better: whether the lower of two values is the better one; a contrast of times is inverted to speeds.
        is_recorded: whether the quantity is taken unchanged from the metrics of the run.
        compute: function that computes the quantity, whose docstring has the formula; `None` if it is recorded, or
            computed together with others (`quantities.normalise_row`).
        caption: description for a figure of its own, with bars by number of jobs; empty for no figure.
    """

    name: str
    title: str
    unit: str = ""
    scale: Scale = Scale.POSITIVE
    table: str = ""
    order: int = 0
    is_lower_better: bool = False
    is_recorded: bool = False
    compute: Compute | None = None
    caption: str = ""

    @property
    def is_time(self) -> bool:
        """True for a duration whose lower value is the faster one."""
        return self.is_lower_better and self.unit in ("s", "ms")

    def heading(self, prefix: str = "") -> str:
        """Return the title, followed by the prefix and the unit in parentheses unless the metric is a ratio."""
        return f"{self.title} ({prefix}{self.unit})" if self.unit else self.title


def compute_epoch_time(row: Row, _: Sequence[JobRow | None]) -> float | None:
    """Return the mean of the measured epoch times of the jobs: `mean(t)`."""
    return _average_epochs(row.jobs, is_measured=True) if _has_epochs(row, is_measured=True) else None


def compute_derived_epoch_time(row: Row, _: Sequence[JobRow | None]) -> float | None:
    """Return the mean over the jobs of `N / r`: the work of an epoch, divided by the throughput of the job."""
    return _average_epochs(row.jobs, is_measured=False) if _has_epochs(row, is_measured=False) else None


def compute_epoch_time_vs_solo(row: Row, alone: Sequence[JobRow | None]) -> float | None:
    """Return `t / t_alone`: the time per epoch, divided by that of the first job alone."""
    is_measured = row.window is WindowKind.WORK
    collocated = None if row.is_mix else _average_epochs(row.jobs, is_measured=is_measured)
    solo = None if alone[0] is None else _average_epochs([alone[0]], is_measured=is_measured)
    return collocated / solo if collocated is not None and solo else None


def compute_energy_per_epoch(row: Row, _: Sequence[JobRow | None]) -> float | None:
    """Return `N E / n`: the work of an epoch of a job, times the energy of all jobs per work unit."""
    energy_j, work = row.metrics.get(work_units.energy_of(row.unit)), _find_work_of_epoch(row.jobs[0])
    has_time = not row.is_mix and _average_epochs(row.jobs, is_measured=row.window is WindowKind.WORK) is not None
    return work * energy_j if work and energy_j and has_time else None


def compute_latency_deviation(row: Row, _: Sequence[JobRow | None]) -> float | None:
    """Return `max(s)`: the largest deviation of latency of the services of a row."""
    services = _list_services(row)
    return _find_highest(services, service_figures.DEVIATION) if services else None


def compute_step_time(row: Row, _: Sequence[JobRow | None]) -> float | None:
    """Return `max(t)`: the longest median step time of the jobs of a row without services."""
    return None if _list_services(row) else _find_highest(row.jobs, service_figures.STEP_TIME)


def combine_instances(
    name: str, combine: Callable[[Sequence[float]], float], row: Row, _: Sequence[JobRow | None]
) -> float | None:
    """Return the mean (`combine`) of a figure over the GPU instances of a row, which jobs may share."""
    instances = {job.place["gi_id"]: job.metrics for job in row.jobs if "gi_id" in job.place}
    values = [metrics[name] for metrics in instances.values() if name in metrics]
    return combine(values) if values else None


def _list_services(row: Row) -> list[JobRow]:
    return [job for job in row.jobs if {service_figures.MEAN, service_figures.SUSTAINED} & job.metrics.keys()]


def _find_highest(jobs: Sequence[JobRow], name: str) -> float | None:
    times = [job.metrics[name] for job in jobs if name in job.metrics]
    return max(times) if times and len(times) == len(jobs) else None


def _has_epochs(row: Row, *, is_measured: bool) -> bool:
    return not row.is_mix and (row.window is WindowKind.WORK) == is_measured


def _average_epochs(jobs: Sequence[JobRow], *, is_measured: bool) -> float | None:
    if is_measured:
        times = [job.metrics.get("epoch_time_mean_s") for job in jobs]
    else:
        rates = [(_find_work_of_epoch(job), job.metrics.get(work_units.rate_of(job.unit))) for job in jobs]
        times = [work / rate if work and rate else None for work, rate in rates]
    complete = [time_s for time_s in times if time_s is not None]
    return statistics.fmean(complete) if complete and len(complete) == len(times) else None


def _find_work_of_epoch(job: JobRow) -> int:
    texts = (job.params.get(key, "") for key in ("job.samples_per_epoch", "samples"))
    return next((int(text) for text in texts if text.isdecimal()), 0)


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
_FIRST_TOKENS = {
    FIRST_TOKEN_MEAN: "mean time to the first token",
    FIRST_TOKEN_P95: "p95 of the time to the first token",
    FIRST_TOKEN_P99: "p99 of the time to the first token",
}
TABLES = {
    "speed": "Speed",
    "latency": "Latency",
    "fairness": "Slowdown and fairness",
    "utilisation": "Utilisation and memory",
    "energy": "Energy, power and clocks",
}
"""Title of each table of metrics, by name."""
HOST_TABLE = "host"

_make_share = partial(Metric, scale=Scale.SHARE)
_make_peak = partial(Metric, scale=Scale.PEAK)
_make_host = partial(Metric, scale=Scale.AMOUNT, table=HOST_TABLE, is_recorded=True, is_lower_better=True)
_make_slowdown = partial(Metric, table="fairness", is_lower_better=True)
_make_latency = partial(Metric, unit="ms", table="latency", is_lower_better=True)
_ALL = (
    Metric(name="epoch_time_s", title="time per epoch", unit="s", table="speed", is_lower_better=True,
           compute=compute_epoch_time),
    Metric(name="epoch_time_derived_s", title="time per epoch, from throughput", unit="s", table="speed",
           is_lower_better=True, compute=compute_derived_epoch_time),
    _make_slowdown(name=EPOCH_TIME_VS_SOLO, title="time per epoch against alone", compute=compute_epoch_time_vs_solo),
    Metric(name=TOTAL_TIME, title="total time", unit="s", table="speed", is_lower_better=True, is_recorded=True),
    _make_peak(name=WINDOW, title="length of the window", unit="s", table="speed", order=1, is_recorded=True),
    Metric(name=SPEEDUP, title="speed-up over serial", table="speed"),
    Metric(name=BEST_SOLO, title="speed-up over the best step mode alone", table="speed"),
    _make_slowdown(name=SLOWDOWN, title="worst slowdown"),
    *(
        _make_latency(name=name, title=f"{title} of the slowest job", is_recorded=True)
        for name, title in _LATENCIES.items()
    ),
    *(_make_latency(name=name, title=title, is_recorded=True) for name, title in _FIRST_TOKENS.items()),
    _make_latency(name=LATENCY_DEVIATION, title="standard deviation of the latency of the slowest job",
                  compute=compute_latency_deviation),
    Metric(name=STEP_TIME, title="median step time of the slowest job", unit="ms", is_lower_better=True,
           compute=compute_step_time),
    Metric(name=service_figures.GOODPUT_TOTAL, title="goodput of all jobs", unit="requests/s", table="latency",
           is_recorded=True),
    _make_share(name=service_figures.SUSTAINED_WORST, title="answers over arrivals", table="latency", is_recorded=True),
    _make_share(name=service_figures.OBJECTIVE_MET_WORST, title="objective met", table="latency", is_recorded=True),
    _make_slowdown(name=MEAN_SLOWDOWN, title="worst slowdown of the mean latency"),
    _make_slowdown(name=P99_SLOWDOWN, title="worst slowdown of the p99 latency"),
    _make_share(name=FAIRNESS, title="fairness (Jain)", table="fairness"),
    _make_share(name=BIT_IDENTICAL, title="same bits of losses as alone", table="fairness", is_recorded=True),
    *(_make_share(name=name, title=title, table="utilisation", is_recorded=True) for name, title in _ACTIVITY.items()),
    _make_peak(name=MEMORY_PEAK, title="peak memory of the GPU", unit="MiB", table="utilisation", is_lower_better=True,
               is_recorded=True),
    _make_peak(name=MEMORY_FORECAST, title="peak memory of the jobs alone, added", unit="MiB", table="utilisation",
               is_lower_better=True),
    *(
        _make_share(name=name_instance_metric(name), title=f"{title} of an instance",
                    compute=partial(combine_instances, name, statistics.fmean))
        for name, title in _ACTIVITY.items()
    ),
    _make_peak(name=INSTANCE_MEMORY, title="peak memory of an instance", unit="MiB", is_lower_better=True,
               compute=partial(combine_instances, INSTANCE_MEMORY, max)),
    Metric(name="energy_per_epoch_j", title="energy per epoch of a job", unit="J", table="energy", is_lower_better=True,
           compute=compute_energy_per_epoch),
    Metric(name=ENERGY_VS_ALONE, title="energy against the same work alone", table="energy", is_lower_better=True),
    Metric(name=ENERGY_VS_BEST_SOLO, title="energy against the same work in the best step mode alone", table="energy",
           is_lower_better=True),
    Metric(name="power_mean_w", title="power of the GPU", unit="W", table="energy", is_lower_better=True,
           is_recorded=True),
    Metric(name="sm_clock_mean_mhz", title="SM clock", unit="MHz", table="energy", is_recorded=True),
    _make_peak(name="temperature_max_c", title="highest temperature", unit="C", table="energy", is_lower_better=True,
               is_recorded=True),
    _make_share(name=THROTTLED, title="time throttled by power or heat", table="energy", is_lower_better=True),
    _make_host(name="process_cpu_mean_pct", title="CPU of a job's busiest process", unit="% of one core"),
    _make_host(name=HOST_CPU, title="CPU of all jobs", unit="% of one core", order=1),
    _make_host(name=HOST_MEMORY, title="host memory of all jobs", unit="MiB", scale=Scale.PEAK, order=1),
    _make_host(name="run_queue_delay_pct", title="waiting for a CPU", unit="% of one core"),
    _make_host(name="involuntary_switches_per_s", title="involuntary switches", unit="1/s"),
    _make_host(name="cpu_clock_mean_mhz", title="CPU clock", unit="MHz", scale=Scale.POSITIVE, is_lower_better=False),
    _make_host(name=HOST_BOUND, title="share of the jobs bound by the host", scale=Scale.SHARE, order=2),
    _make_share(name="overlap_ratio", title="overlap", is_recorded=True),
)  # fmt: skip
METRICS = {metric.name: metric for metric in _ALL}
"""Metrics by name, in the order of tables; `Cell.counted` and `sampled` add those of work units and listeners."""
TIMES = frozenset(metric.name for metric in _ALL if metric.is_time)
"""Metrics whose lower value is the faster one."""
ACTIVITY = tuple(_ACTIVITY)
"""Metrics of a GPU, and of each of its GPU instances."""


def list_table(table: str) -> list[str]:
    """Return the names of the metrics of a table, in their order."""
    return [metric.name for metric in sorted(_ALL, key=lambda metric: metric.order) if metric.table == table]


def find_work_metrics(row: Row) -> dict[str, Metric]:
    """Return the metrics of a row that count work, by name, for each unit that all its jobs have."""
    return {
        name: metric for unit in work_units.find_units(row.metrics) for name, metric in make_work_metrics(unit).items()
    }


@functools.cache
def make_work_metrics(unit: str) -> Mapping[str, Metric]:
    """Return the metrics that count work in a unit, by name, in the order of tables."""
    one = work_units.format_singular(unit)
    make_above = partial(Metric, unit=JOULE, scale=Scale.PLAIN, is_lower_better=True)
    metrics = (
        Metric(name=work_units.total_of(unit), title="throughput of all jobs", unit=work_units.per_second(unit)),
        Metric(
            name=work_units.energy_of(unit),
            title=f"energy per {one}",
            unit=JOULE,
            is_lower_better=True,
            caption="Energy of the whole GPU, including idle power, divided by the "
            f"{work_units.format_unit(unit)} of all jobs.",
        ),
        make_above(name=work_units.energy_above_idle_of(unit), title=f"energy per {one} above an idle GPU"),
        make_above(name=work_units.energy_above_waiting_of(unit), title=f"energy per {one} above waiting jobs"),
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
        metrics[name] = Metric(name=name, title=facts["title"], unit="" if is_share else facts["unit"], scale=scale)
    return {name: metric for name, metric in metrics.items() if name not in METRICS}


def find_table(metric: Metric) -> str:
    """Return the name of the table in `TABLES` that shows a metric of a listener or of counted work."""
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
