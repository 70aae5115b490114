"""The quantities of one row, computed with the serial baselines of the same GPU and block.

The quantities are recomputed from the jobs' figures, so they are also correct for an incomplete or resumed study.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pipeline.base.domain import service_figures, work_units
from pipeline.base.domain.baselines import Baselines
from pipeline.base.domain.normalisation import (
    MEAN_SLOWDOWN,
    P99_SLOWDOWN,
    SLOWDOWN,
    SPEEDUP,
    ComparedJob,
    average_figures,
    normalise,
    rate_name,
)
from pipeline.base.domain.records import CO_RUNNERS, WindowKind
from pipeline.report.evaluate.metrics import (
    ACTIVITY,
    BEST_SOLO,
    ENERGY_VS_ALONE,
    HOST,
    INSTANCE_MEMORY,
    WINDOW,
    find_sampled_metrics,
    find_work_metrics,
    name_instance_metric,
)
from pipeline.report.read import labels
from pipeline.report.read.study_records import JobRow, Row

_RECORDED = (
    *("makespan_s", WINDOW, *ACTIVITY, "memory_peak_mib", "power_mean_w", "sm_clock_mean_mhz", "temperature_max_c"),
    *("overlap_ratio", *map(service_figures.name_worst, service_figures.LATENCIES), service_figures.GOODPUT_TOTAL),
    *(service_figures.SUSTAINED_WORST, service_figures.OBJECTIVE_MET_WORST, *HOST),
)
"""Metrics of a run that are used unchanged, in addition to those of work units and listeners."""

ENERGY, ENERGY_ABOVE_IDLE = "energy_j", "energy_above_idle_j"
"""Energy of the whole GPU in the window, with and without its idle power."""

BaselineKey = tuple[object, ...]


@dataclass(slots=True)
class BlockBaselines(Baselines[Row, JobRow]):
    """The jobs that ran alone in one block, in one machine state and with the same settings.

    Attributes:
        by_program: jobs with a step mode, by their program without the step mode.
        by_job: rows by workload digest.
    """

    by_program: dict[labels.Program, list[JobRow]] = field(default_factory=lambda: defaultdict(list))
    by_job: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))

    def find_step_modes(self, job: JobRow) -> list[JobRow]:
        """Return the runs alone of a job's program in every step mode."""
        return self.by_program.get(labels.identify_program(job.params), [])

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
    for row in (row for row in rows if row.is_sequential and row.is_valid):
        block = baselines[baseline_key(row)]
        block.add(row, _digests(row), row.jobs)
        for job in row.jobs if row.degree == 1 else ():
            block.by_job[job.digest].append(row)
            if labels.STEP_MODE in job.params:
                block.by_program[labels.identify_program(job.params)].append(job)
    return dict(baselines)


def baseline_key(row: Row) -> BaselineKey:
    """Return the block and settings, which a row and its baseline have in common.

    Their machine state is the same too, because `read.selection` chooses one for each block.
    """
    return (row.block, settings_without_co_runners(row))


def settings_without_co_runners(row: Row) -> tuple[tuple[str, str], ...]:
    """Return the settings of a row without its co-runners."""
    return tuple((key, value) for key, value in row.settings if key != CO_RUNNERS)


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
    row_figures |= _epochs(row, baselines) | _combine_instances(row) | _energies(row, baselines)
    alone = [baselines.solo(row, job) for job in row.jobs]
    figures = _normalise(row, alone, baselines.total_time_s(row))
    step_modes = [{solo.params[labels.STEP_MODE] for solo in baselines.find_step_modes(job)} for job in row.jobs]
    if figures and max(map(len, step_modes)) > 1:  # with a single step mode, the best one is unknown
        best = _normalise(row, [_find_best_solo(row, baselines, job) for job in row.jobs], None)
        figures |= {BEST_SOLO: best[SPEEDUP]} if SPEEDUP in best else {}
    return row_figures | figures | _slowdowns(row, alone)


def modelled_energy(label: str) -> str:
    """Return the name of the modelled energy above idle for one work unit of a job in a mix."""
    return f"energy_above_idle_per_unit_of_{label}_model_j"


def energy_alone(label: str) -> str:
    """Return the name of the measured energy above idle for one work unit of a job alone."""
    return f"energy_above_idle_per_unit_of_{label}_alone_j"


def _energies(row: Row, baselines: BlockBaselines) -> dict[str, float]:
    """Return the energy over that of the same work alone; for a mix, also the modelled energy of each workload.

    In a steady window, work and energy are per second. The model assumes that sharing changes the energy above idle of
    every job by the same factor `E / sum(w_i e_i)`: `E` is the energy of the mix, `w_i` the work of a job relative to
    alone, `e_i` its energy alone. The modelled energy for a work unit is the energy alone, times this factor.
    """
    if row.is_sequential or row.co_runners:
        return {}
    name_of = [rate_name(row.window, job.unit) for job in row.jobs]
    solos = [baselines.by_job.get(job.digest, []) for job in row.jobs]
    alone = [average_figures([{**_collect_figures(solo), **solo.jobs[0].metrics} for solo in rows]) for rows in solos]
    work = [
        1.0 if row.window is WindowKind.WORK else _ratio(job.metrics, solo, name)
        for job, solo, name in zip(row.jobs, alone, name_of, strict=True)
    ]
    energies, figures = {}, _collect_figures(row)
    if (against := _compare_energy(figures, alone, work, ENERGY)) is not None:
        energies[ENERGY_VS_ALONE] = against
    grown = _compare_energy(figures, alone, work, ENERGY_ABOVE_IDLE)
    if grown is None or not row.is_mix:
        return energies
    for job, solo in zip(row.jobs, alone, strict=True):
        if (energy_j := solo.get(work_units.energy_above_idle_of(job.unit))) is not None:
            energies |= {energy_alone(job.label): energy_j, modelled_energy(job.label): grown * energy_j}
    return energies


def _collect_figures(row: Row) -> dict[str, float]:
    figures, length = dict(row.metrics), 1.0 if row.window is WindowKind.WORK else row.window_s
    for name in (ENERGY, ENERGY_ABOVE_IDLE):
        energy_j = figures.pop(name, None)
        if energy_j is not None and length:
            figures[name] = energy_j / length
    return figures


def _ratio(figures: Mapping[str, float], of: Mapping[str, float], name: str) -> float | None:
    return figures[name] / of[name] if name in figures and of.get(name) else None


def _compare_energy(
    figures: Mapping[str, float], alone: Sequence[Mapping[str, float]], work: Sequence[float | None], name: str
) -> float | None:
    parts = [share * solo[name] for share, solo in zip(work, alone, strict=True) if share is not None and name in solo]
    if name not in figures or len(parts) < len(work) or sum(parts) <= 0:
        return None
    return figures[name] / sum(parts)


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


def name_workload_metric(worst: str, workload: str) -> str:
    """Return the name of the worst slowdown among the jobs of one workload of a mix."""
    return worst.replace("_worst_", f"_{workload}_")


def derive_serial_copies(alone: Mapping[str, float], solo: Row, degree: int) -> dict[str, float]:
    """Derive the figures of `degree` serial copies from those of the solo run."""
    names = [name for name in _RECORDED if name not in ("makespan_s", WINDOW, "overlap_ratio")]
    names += [SPEEDUP, BEST_SOLO, *find_work_metrics(solo), *find_sampled_metrics(solo)]
    figures = {name: alone[name] for name in names if name in alone}
    if not solo.window.is_steady and "makespan_s" in alone:
        figures["makespan_s"] = degree * alone["makespan_s"]
    return figures


def _digests(row: Row) -> tuple[str, ...]:
    return tuple(job.digest for job in row.jobs)


def _slowdowns(row: Row, alone: Sequence[JobRow | None]) -> dict[str, float]:
    compared: dict[str, list[ComparedJob]] = defaultdict(list)
    for job, both in zip(row.jobs, _pair_with_solo(row, alone), strict=True):
        compared[job.params.get("workload", "")].append(both)
    if not row.is_mix or row.is_sequential:
        return {}
    return {
        name_workload_metric(worst, name): value
        for name, jobs in compared.items()
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
        serial_s=serial_s,
        makespan_s=row.metrics.get("makespan_s"),
    )


def _find_best_solo(row: Row, baselines: BlockBaselines, job: JobRow) -> JobRow | None:
    name = rate_name(row.window, job.unit)
    candidates = [solo for solo in baselines.find_step_modes(job) if solo.metrics.get(name)]
    choose = min if row.window is WindowKind.WORK else max
    return choose(candidates, key=lambda solo: solo.metrics[name], default=None)


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
    return figures | ({"epoch_time_vs_solo_ratio": together / alone} if alone else {})


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
    return next((int(text) for text in texts if text.isdigit()), 0)
