"""The quantities of one row, the serial baselines of its block beside it (METHOD: normalise by the same GPU and block).

Recomputed from what each job measured, so that they hold for a half-run or resumed study, and for baselines in other
step modes than the row's own.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from pipeline.compare import in_turn
from pipeline.report.metrics import sampled
from pipeline.report.records import JobRow, Row
from pipeline.types import Result, WindowKind

RECORDED = (
    *("throughput_total_samples_per_s", "makespan_s", "gract_mean_ratio", "smact_mean_ratio", "smocc_mean_ratio"),
    *("dram_active_mean_ratio", "tensor_active_mean_ratio", "memory_peak_mib", "energy_per_sample_j", "power_mean_w"),
    *("sm_clock_mean_mhz", "temperature_max_c", "overlap_ratio"),
)
"""What a row's run has under the same name."""

BaselineKey = tuple[object, ...]


@dataclass(slots=True)
class Baselines:
    """What ran alone in one block, on one GPU and with the same settings.

    Attributes:
        solo: the run of its own of each workload that has one, by digest.
        by_base: of each workload in whatever step mode, by the label without it.
        mixes: several jobs really executed one after another, by their digests in their order.
    """

    solo: dict[str, JobRow] = field(default_factory=dict)
    by_base: dict[str, list[JobRow]] = field(default_factory=lambda: defaultdict(list))
    mixes: dict[tuple[str, ...], Row] = field(default_factory=dict)

    def step_modes(self, job: JobRow) -> set[str]:
        """The step modes in which a job's workload ran alone: of one mode alone, it is not known to be the best."""
        return {solo.digest for solo in self.by_base.get(job.base_label, [])}

    def alone(self, row: Row, job: JobRow) -> JobRow | None:
        """A job of a row alone: its own run, else its turns in the same mix, else those in any; of several the mean."""
        if job.digest in self.solo:
            return self.solo[job.digest]
        mix = in_turn(self.mixes, _digests(row))
        turns = [turn for each in ([mix] if mix else self.mixes.values()) for turn in each.jobs]
        same = [turn for turn in turns if turn.digest == job.digest]
        return _mean_job(same) if same else None

    def total_time_s(self, row: Row) -> float | None:
        """Of a row's jobs one after another; `None` if that did not run."""
        mix = in_turn(self.mixes, _digests(row))
        return mix.metrics.get("makespan_s") if mix else None


def baselines_of(rows: Iterable[Row]) -> dict[BaselineKey, Baselines]:
    """The baselines of each block, by `baseline_key`. Only those that ended well are compared with."""
    found: dict[BaselineKey, Baselines] = defaultdict(Baselines)
    for row in rows:
        if not row.is_sequential or row.result is not Result.OK:
            continue
        mine = found[baseline_key(row)]
        if row.degree > 1:
            mine.mixes[_digests(row)] = row
            continue
        (job,) = row.jobs
        mine.solo[job.digest] = job
        mine.by_base[job.base_label].append(job)
    return dict(found)


def baseline_key(row: Row) -> BaselineKey:
    """What a row and its baseline must share beside their workloads."""
    return (row.block, row.settings, row.gpu_uuid, row.boot_id)


def quantities(row: Row, baselines: Baselines) -> dict[str, float]:
    """Every quantity of a row that can be known, by the names of `pipeline.report.metrics`; the others are absent."""
    found = {name: row.metrics[name] for name in (*RECORDED, *sampled(row)) if name in row.metrics}
    if row.window is WindowKind.STEADY:
        found.pop("makespan_s", None)  # jobs ran until they were told to stop: that is the window's length
    energy_j = row.metrics.get("energy_j")
    if energy_j and "energy_per_sample_j" in found and "energy_above_idle_j" in row.metrics:
        share = row.metrics["energy_above_idle_j"] / energy_j
        found["energy_above_idle_per_sample_j"] = share * found["energy_per_sample_j"]
    found |= _epochs(row, baselines)
    progress = [_progress(row, job, baselines.alone(row, job)) for job in row.jobs]
    known = [value for value in progress if value is not None]
    # Each job of a steady serial mix has a window of its own, so they have no common rate.
    has_no_common_rate = row.window is WindowKind.STEADY and row.is_sequential and row.degree > 1
    if not known or len(known) < len(progress) or has_no_common_rate:
        return found
    found["slowdown_worst_ratio"] = 1 / min(known)
    found["fairness_jain_ratio"] = sum(known) ** 2 / (len(known) * sum(value * value for value in known))
    serial_s = baselines.total_time_s(row)
    found |= _named("speedup_vs_serial_ratio", _speedup(row, lambda job: baselines.alone(row, job), serial_s))
    if any(len(baselines.step_modes(job)) > 1 for job in row.jobs):
        found |= _named("speedup_vs_best_solo_ratio", _speedup(row, lambda job: _best(row, baselines, job), None))
    return found


def serial_quantities(solo: Row, degree: int, baselines: Baselines) -> dict[str, float]:
    """Those of `degree` copies one after another: `degree` times the solo run, which is what was measured."""
    alone = quantities(solo, baselines)
    kept = (
        *("throughput_total_samples_per_s", "gract_mean_ratio", "smact_mean_ratio", "smocc_mean_ratio"),
        *("dram_active_mean_ratio", "tensor_active_mean_ratio", "memory_peak_mib", "power_mean_w"),
        *("energy_per_sample_j", "energy_above_idle_per_sample_j", "sm_clock_mean_mhz", "temperature_max_c"),
        *("speedup_vs_serial_ratio", "speedup_vs_best_solo_ratio"),
        *sampled(solo),
    )
    found = {name: alone[name] for name in kept if name in alone}
    if solo.window is WindowKind.WORK and "makespan_s" in alone:
        found["makespan_s"] = degree * alone["makespan_s"]
    return found


def _mean_job(jobs: Sequence[JobRow]) -> JobRow:
    """Equal jobs that each ran alone, as one with the means of their figures."""
    known = set.intersection(*(set(job.metrics) for job in jobs))
    means = {name: statistics.fmean(job.metrics[name] for job in jobs) for name in known}
    return dataclasses.replace(jobs[0], metrics=means)


def _digests(row: Row) -> tuple[str, ...]:
    return tuple(job.digest for job in row.jobs)


def _rate_name(row: Row) -> str:
    return "throughput_samples_per_s" if row.window is WindowKind.STEADY else "makespan_s"


def _progress(row: Row, job: JobRow, alone: JobRow | None) -> float | None:
    """Speed of a job relative to its speed alone."""
    name = _rate_name(row)
    if alone is None or not job.metrics.get(name) or not alone.metrics.get(name):
        return None
    ratio = job.metrics[name] / alone.metrics[name]
    return ratio if row.window is WindowKind.STEADY else 1 / ratio


def _speedup(row: Row, alone: Callable[[JobRow], JobRow | None], serial_s: float | None) -> float | None:
    """Progress of all jobs together over what the device does with one at a time.

    Args:
        row: the group.
        alone: the run alone that a job is compared with.
        serial_s: total time of the same jobs really executed one after another, if it was measured.
    """
    solos = [alone(job) for job in row.jobs]
    progress = [_progress(row, job, solo) for job, solo in zip(row.jobs, solos, strict=True)]
    known = [value for value in progress if value is not None]
    if len(known) < len(progress):
        return None
    if row.window is WindowKind.STEADY:
        return sum(known)
    makespan_s = row.metrics.get("makespan_s")
    if not makespan_s:
        return None
    return (serial_s or sum(solo.metrics["makespan_s"] for solo in solos if solo is not None)) / makespan_s


def _best(row: Row, baselines: Baselines, job: JobRow) -> JobRow | None:
    """The fastest run alone of a job's workload in any step mode; `None` if no step mode was run alone."""
    name = _rate_name(row)
    candidates = [solo for solo in baselines.by_base.get(job.base_label, []) if solo.metrics.get(name)]
    if not candidates:
        return None
    choose = max if row.window is WindowKind.STEADY else min
    return choose(candidates, key=lambda solo: solo.metrics[name])


def _epochs(row: Row, baselines: Baselines) -> dict[str, float]:
    """Time per epoch of equal jobs, and against the job alone. Epochs of different jobs have no common length."""
    if row.is_mix:
        return {}
    measured = row.window is WindowKind.WORK
    together = _mean_epoch_s(row.jobs, measured=measured)
    if together is None:
        return {}
    found = {"epoch_time_s" if measured else "epoch_time_derived_s": together}
    solo = baselines.alone(row, row.jobs[0])
    alone = _mean_epoch_s([solo], measured=measured) if solo is not None else None
    return found | _named("epoch_time_vs_solo_ratio", together / alone if alone else None)


def _mean_epoch_s(jobs: Sequence[JobRow], *, measured: bool) -> float | None:
    times = []
    for job in jobs:
        if measured:
            time_s = job.metrics.get("epoch_time_mean_s")
        else:
            samples, rate = samples_per_epoch(job), job.metrics.get("throughput_samples_per_s")
            time_s = samples / rate if samples and rate else None
        if time_s is None:
            return None
        times.append(time_s)
    return statistics.fmean(times) if times else None


def samples_per_epoch(job: JobRow) -> int | None:
    """Training samples of an epoch, as the job reported or was told; `None` if nobody said."""
    for key in ("job.samples_per_epoch", "samples"):
        text = job.params.get(key, "")
        if text.isdigit():
            return int(text)
    return None


def _named(name: str, value: float | None) -> dict[str, float]:
    return {} if value is None else {name: value}
