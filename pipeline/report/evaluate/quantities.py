"""The quantities of one row, computed with the serial baselines of the same GPU and block.

The quantities are recomputed from the jobs' figures, so they are also correct for an incomplete or resumed study.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.base.domain import service_figures, work_units
from pipeline.base.domain.normalisation import (
    BIT_IDENTICAL,
    MEAN_SLOWDOWN,
    MEMORY_PEAK,
    P99_SLOWDOWN,
    SLOWDOWN,
    SPEEDUP,
    Baselines,
    ComparedJob,
    average_figures,
    normalise,
    rate_name,
)
from pipeline.base.domain.records import CO_RUNNERS
from pipeline.base.domain.window import WindowKind
from pipeline.base.system.grouping import group_by
from pipeline.report.evaluate import job_shares
from pipeline.report.evaluate.metrics import (
    ACTIVITY,
    BEST_SOLO,
    ENERGY_VS_ALONE,
    ENERGY_VS_BEST_SOLO,
    EPOCH_TIME_VS_SOLO,
    HOST,
    INSTANCE_MEMORY,
    LATENCY_DEVIATION,
    STEP_TIME,
    WINDOW,
    find_sampled_metrics,
    find_work_metrics,
    name_instance_metric,
)
from pipeline.report.read import labels
from pipeline.report.read.study_records import JobRow, Row

_RECORDED = (
    *("makespan_s", WINDOW, *ACTIVITY, MEMORY_PEAK, "power_mean_w", "sm_clock_mean_mhz", "temperature_max_c"),
    *("overlap_ratio", *map(service_figures.name_worst, service_figures.LATENCIES), service_figures.GOODPUT_TOTAL),
    *(service_figures.SUSTAINED_WORST, service_figures.OBJECTIVE_MET_WORST, BIT_IDENTICAL, *HOST),
)
"""Metrics of a run that are used unchanged, in addition to those of work units and listeners."""

ENERGY, ENERGY_ABOVE_IDLE = "energy_j", "energy_above_idle_j"
"""Energy of the whole GPU in the window, with and without its idle power."""

BaselineKey = tuple[object, ...]
_Settings = tuple[tuple[str, str], ...]
_WINDOW = "window"


class BestSolo(NamedTuple):
    """The runs of a program alone in its fastest step mode."""

    step_mode: str
    runs: Sequence[Row]


@dataclass(slots=True)
class BlockBaselines(Baselines[Row, JobRow]):
    """The jobs that ran alone in one block, in one machine state and with the same settings.

    Attributes:
        by_program: rows of jobs with a step mode, by their program without the step mode; in every steady window.
        speeds: speeds of these jobs in all blocks, by program and step mode.
        by_job: rows by workload digest.
    """

    by_program: dict[labels.Program, list[Row]] = field(default_factory=lambda: defaultdict(list))
    speeds: dict[labels.Program, dict[str, list[float]]] = field(default_factory=dict)
    by_job: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))

    def find_step_modes(self, row: Row, job: JobRow) -> dict[str, list[Row]]:
        """Return the runs alone of a row's job in each step mode: with the settings of the row, else in other windows.

        Windows of different kinds measure the same rate, but a workload may support only some kinds in a step mode.
        """
        runs = self.by_program.get(labels.identify_program(job.params), [])
        by_step_mode = group_by(runs, lambda run: run.jobs[0].params[labels.STEP_MODE])
        settings = settings_without_co_runners(row)
        return {
            step_mode: [run for run in members if settings_without_co_runners(run) == settings] or members
            for step_mode, members in by_step_mode.items()
        }

    def solo(self, row: Row, job: JobRow) -> JobRow | None:
        """Return the run alone of a row's job; if there are several, with the means of their metrics.

        For a service at a given rate, runs with its arrivals are preferred.
        """
        runs = self.find_runs_alone(job.digest, _digests(row))
        runs = [run for run in runs if _has_same_arrivals(job, run)] or runs
        return dataclasses.replace(runs[0], metrics=average_figures([run.metrics for run in runs])) if runs else None

    def total_time_s(self, row: Row) -> float | None:
        """Return the serial total time of a row's jobs; `None` if they did not run serially."""
        mix = self.find_serial_group(_digests(row))
        return mix.metrics.get("makespan_s") if mix else None


def collect_baselines(rows: Iterable[Row]) -> dict[BaselineKey, BlockBaselines]:
    """Return the valid baselines of each block, by `baseline_key`."""
    baselines: dict[BaselineKey, BlockBaselines] = defaultdict(BlockBaselines)
    by_program: dict[BaselineKey, dict[labels.Program, list[Row]]] = defaultdict(lambda: defaultdict(list))
    speeds: dict[_Settings, dict[labels.Program, dict[str, list[float]]]] = defaultdict(dict)
    for row in rows:
        block, settings = baselines[baseline_key(row)], settings_without_co_runners(row)
        merged = merge_steady_windows(settings, row.window)
        block.by_program, block.speeds = by_program[row.block, merged], speeds[merged]
        if not (row.is_sequential and row.is_valid):
            continue
        block.add(row, _digests(row), row.jobs)
        for job in row.jobs if row.degree == 1 else ():
            block.by_job[job.digest].append(row)
            if labels.STEP_MODE in job.params:
                program = labels.identify_program(job.params)
                block.by_program[program].append(row)
                if rate := job.metrics.get(rate_name(row.window, job.unit)):
                    in_blocks = block.speeds.setdefault(program, {}).setdefault(job.params[labels.STEP_MODE], [])
                    in_blocks.append(1 / rate if row.window is WindowKind.WORK else rate)
    return dict(baselines)


def baseline_key(row: Row) -> BaselineKey:
    """Return the block and settings, which a row and its baseline have in common.

    Their machine state is the same too, because `read.selection` chooses one for each block.
    """
    return (row.block, settings_without_co_runners(row))


def settings_without_co_runners(row: Row) -> _Settings:
    """Return the settings of a row without its co-runners."""
    return tuple((key, value) for key, value in row.settings if key != CO_RUNNERS)


def merge_steady_windows(settings: _Settings, window: WindowKind) -> _Settings:
    """Return settings that are equal for all windows in which jobs have the same rate: steady and interleaved ones."""
    if not window.is_steady:
        return settings
    return tuple((key, WindowKind.STEADY.value if key == _WINDOW else value) for key, value in settings)


def quantities(row: Row, baselines: BlockBaselines) -> dict[str, float]:
    """Return every known quantity of a row, by the names of `evaluate.metrics`."""
    row_figures = {
        name: row.metrics[name]
        for name in (*_RECORDED, *find_work_metrics(row), *find_sampled_metrics(row))
        if name in row.metrics
    }
    if row.window.is_steady:
        row_figures.pop("makespan_s", None)  # the makespan of a steady window is its length
    energy_j = row.metrics.get(ENERGY)
    if energy_j and ENERGY_ABOVE_IDLE in row.metrics:
        share = row.metrics[ENERGY_ABOVE_IDLE] / energy_j
        for unit in work_units.find_units(row.metrics):
            if work_units.energy_of(unit) in row_figures:
                row_figures[work_units.energy_above_idle_of(unit)] = share * row_figures[work_units.energy_of(unit)]
    row_figures |= _slowest_job(row) | _epochs(row, baselines) | _combine_instances(row) | _energies(row, baselines)
    alone = [baselines.solo(row, job) for job in row.jobs]
    figures = _normalise(row, alone, baselines.total_time_s(row))
    figures |= _compare_with_best(row, find_best_solos(row, baselines))
    return row_figures | figures | _slowdowns(row, alone)


def find_best_solos(row: Row, baselines: BlockBaselines) -> dict[str, BestSolo]:
    """Return the fastest solo runs of each job of a row, by workload digest.

    Empty if the best one is unknown: a program did not run alone with a rate, or all programs ran alone in a single
    step mode in all blocks, or the block lacks the step mode that is the fastest in the others.
    """
    solos = {job.digest: (job, baselines.find_step_modes(row, job)) for job in row.jobs}
    measured = {job.digest: baselines.speeds.get(labels.identify_program(job.params), {}) for job in row.jobs}
    if max(map(len, measured.values()), default=0) < 2:
        return {}
    best = {}
    for digest, (job, step_modes) in solos.items():
        name = rate_name(row.window, job.unit)
        figures = {step_mode: _average_runs(runs).metrics.get(name) for step_mode, runs in step_modes.items()}
        rates = {step_mode: rate for step_mode, rate in figures.items() if rate}
        usual = max(measured[digest], key=lambda step_mode: statistics.median(measured[digest][step_mode]), default="")
        if not rates or (len(rates) < len(measured[digest]) and usual not in rates):
            return {}
        choose = min if row.window is WindowKind.WORK else max
        fastest = choose(rates, key=rates.__getitem__)
        best[digest] = BestSolo(fastest, step_modes[fastest])
    return best


def _compare_with_best(row: Row, best: Mapping[str, BestSolo]) -> dict[str, float]:
    if not best:
        return {}
    runs = [best[job.digest].runs for job in row.jobs]
    speed = _normalise(row, list(map(_average_runs, runs)), None)
    if SPEEDUP not in speed:
        return {}
    figures = {BEST_SOLO: speed[SPEEDUP]}
    is_in_turn = row.is_sequential and row.degree > 1
    if not is_in_turn and not row.co_runners and (energy := _compare_energy(row, runs)) is not None:
        figures[ENERGY_VS_BEST_SOLO] = energy
    return figures


def _average_runs(runs: Sequence[Row]) -> JobRow:
    return dataclasses.replace(runs[0].jobs[0], metrics=average_figures([run.jobs[0].metrics for run in runs]))


def _energies(row: Row, baselines: BlockBaselines) -> dict[str, float]:
    """Return the energy over that of the same work alone, and the share and energy of each workload."""
    solos = [baselines.by_job.get(job.digest, []) for job in row.jobs]
    figures = job_shares.compute_shares(row, list(map(_average_solos, solos)))
    if row.is_sequential or row.co_runners:
        return figures
    against = _compare_energy(row, solos)
    return figures if against is None else figures | {ENERGY_VS_ALONE: against}


def _compare_energy(row: Row, solos: Sequence[Sequence[Row]]) -> float | None:
    """Divide the energy of a row by that of the same work with each job alone; in a steady window, both per second."""
    figures, alone = _collect_figures(row), list(map(_average_solos, solos))
    parts = []
    for job, solo in zip(row.jobs, alone, strict=True):
        work = 1.0 if row.window is WindowKind.WORK else _ratio(job.metrics, solo, rate_name(row.window, job.unit))
        if work is None or ENERGY not in solo:
            return None
        parts.append(work * solo[ENERGY])
    return figures[ENERGY] / sum(parts) if ENERGY in figures and sum(parts) > 0 else None


def _average_solos(runs: Sequence[Row]) -> dict[str, float]:
    return average_figures([{**_collect_figures(run), **run.jobs[0].metrics} for run in runs])


def _collect_figures(row: Row) -> dict[str, float]:
    figures, length = dict(row.metrics), 1.0 if row.window is WindowKind.WORK else row.window_s
    energy_j = figures.pop(ENERGY, None)
    if energy_j is not None and length:
        figures[ENERGY] = energy_j / length
    return figures


def _ratio(figures: Mapping[str, float], of: Mapping[str, float], name: str) -> float | None:
    return figures[name] / of[name] if name in figures and of.get(name) else None


def _slowest_job(row: Row) -> dict[str, float]:
    """Return the largest deviation of latency of the services of a row; without services, the longest step time."""
    services = [job for job in row.jobs if {service_figures.MEAN, service_figures.SUSTAINED} & job.metrics.keys()]
    name, jobs = (service_figures.DEVIATION, services) if services else (service_figures.STEP_TIME, row.jobs)
    times = [job.metrics[name] for job in jobs if name in job.metrics]
    return {service_figures.name_worst(name): max(times)} if times and len(times) == len(jobs) else {}


def _combine_instances(row: Row) -> dict[str, float]:
    # Jobs may share an instance.
    instances = {job.place["gi_id"]: job.metrics for job in row.jobs if "gi_id" in job.place}
    figures = {}
    for name in (*ACTIVITY, INSTANCE_MEMORY):
        values = [metrics[name] for metrics in instances.values() if name in metrics]
        if values and name == INSTANCE_MEMORY:
            figures[name] = max(values)
        elif values:
            figures[name_instance_metric(name)] = statistics.fmean(values)
    return figures


def name_workload_metric(worst: str, label: str) -> str:
    """Return the name of the worst slowdown among the equal jobs of a mix, by their label in `Case.workloads`."""
    return worst.replace("_worst_", f"_{label}_")


def derive_serial_copies(alone: Mapping[str, float], solo: Row, degree: int) -> dict[str, float]:
    """Derive the figures of `degree` serial copies from those of the solo run."""
    names = [name for name in _RECORDED if name not in ("makespan_s", WINDOW, "overlap_ratio")]
    names += [LATENCY_DEVIATION, STEP_TIME]
    names += [SPEEDUP, BEST_SOLO, ENERGY_VS_BEST_SOLO, *find_work_metrics(solo), *find_sampled_metrics(solo)]
    figures = {name: alone[name] for name in names if name in alone}
    if not solo.window.is_steady and "makespan_s" in alone:
        figures["makespan_s"] = degree * alone["makespan_s"]
    return figures


def _digests(row: Row) -> tuple[str, ...]:
    return tuple(job.digest for job in row.jobs)


def _slowdowns(row: Row, alone: Sequence[JobRow | None]) -> dict[str, float]:
    compared: dict[str, list[ComparedJob]] = defaultdict(list)
    for job, both in zip(row.jobs, _pair_with_solo(row, alone), strict=True):
        compared[job.label].append(both)
    if not row.is_mix or row.is_sequential:
        return {}
    return {
        name_workload_metric(worst, label): value
        for label, jobs in compared.items()
        for worst, value in normalise(row.window, jobs).items()
        if worst in (SLOWDOWN, MEAN_SLOWDOWN, P99_SLOWDOWN)
    }


def _pair_with_solo(row: Row, alone: Sequence[JobRow | None]) -> list[ComparedJob]:
    return [
        ComparedJob(
            job.unit,
            job.is_rate_given,
            together=job.metrics,
            alone={} if solo is None else solo.metrics,
            has_same_arrivals=solo is not None and _has_same_arrivals(job, solo),
        )
        for job, solo in zip(row.jobs, alone, strict=True)
    ]


def _has_same_arrivals(job: JobRow, solo: JobRow) -> bool:
    """Return whether two services had the same arrivals; unknown for results of earlier versions."""
    if not job.is_rate_given:
        return True
    arrivals = job.params.get(work_units.ARRIVALS)
    return arrivals is not None and arrivals == solo.params.get(work_units.ARRIVALS)


def _normalise(row: Row, alone: Sequence[JobRow | None], serial_s: float | None) -> dict[str, float]:
    return normalise(
        row.window,
        _pair_with_solo(row, alone),
        is_sequential=row.is_sequential,
        has_co_runners=bool(row.co_runners),
        adds_memory=row.sharing.adds_memory,
        serial_s=serial_s,
        makespan_s=row.metrics.get("makespan_s"),
    )


def _epochs(row: Row, baselines: BlockBaselines) -> dict[str, float]:
    if row.is_mix:
        return {}
    measured = row.window is WindowKind.WORK
    together = _mean_epoch_s(row.jobs, measured=measured)
    if together is None:
        return {}
    figures = {"epoch_time_s" if measured else "epoch_time_derived_s": together}
    if (work := _work_of_epoch(row.jobs[0])) and (energy_j := row.metrics.get(work_units.energy_of(row.unit))):
        figures["energy_per_epoch_j"] = work * energy_j
    solo = baselines.solo(row, row.jobs[0])
    alone = _mean_epoch_s([solo], measured=measured) if solo is not None else None
    return figures | ({EPOCH_TIME_VS_SOLO: together / alone} if alone else {})


def _mean_epoch_s(jobs: Sequence[JobRow], *, measured: bool) -> float | None:
    if measured:
        times = [job.metrics.get("epoch_time_mean_s") for job in jobs]
    else:
        rates = [(_work_of_epoch(job), job.metrics.get(work_units.rate_of(job.unit))) for job in jobs]
        times = [work / rate if work and rate else None for work, rate in rates]
    known = [time_s for time_s in times if time_s is not None]
    return statistics.fmean(known) if known and len(known) == len(times) else None


def _work_of_epoch(job: JobRow) -> int:
    texts = (job.params.get(key, "") for key in ("job.samples_per_epoch", "samples"))
    return next((int(text) for text in texts if text.isdecimal()), 0)
