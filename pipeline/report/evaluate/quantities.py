"""The quantities of one row, computed with the serial baselines of the same GPU and block.

The quantities are recomputed from the jobs' figures, so they are also correct for an incomplete or resumed study.

The share of the GPU that each job of a group takes is measured, or a model. A measured share is the time with kernels
of the job on multiprocessors (NVML). The modelled share is the time that the job's steps take the GPU when it runs
alone: its speed, times its busy time per step alone. The modelled energy divides the idle power equally among the jobs,
and the energy above it by their shares.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pipeline.base.domain import work_units
from pipeline.base.domain.normalisation import (
    MEAN_SLOWDOWN,
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
from pipeline.base.system.words import group_by
from pipeline.report.evaluate.metrics import (
    BEST_SOLO,
    ENERGY_VS_ALONE,
    ENERGY_VS_BEST_SOLO,
    LATENCY_DEVIATION,
    METRICS,
    STEP_TIME,
    TOTAL_TIME,
    WINDOW,
    find_sampled_metrics,
    find_work_metrics,
)
from pipeline.report.read import labels
from pipeline.report.read.study_records import JobRow, Row

ENERGY, ENERGY_ABOVE_IDLE = "energy_j", "energy_above_idle_j"
"""Energy of the whole GPU in the window, with and without its idle power."""

_MEASURED_SHARE, _MEMORY_SHARE = "process_sm_utilization_mean_pct", "process_memory_utilization_mean_pct"
_BUSY = (_MEASURED_SHARE, "utilization_gpu_mean_pct")
"""Figures of a job alone that are its busy share of the time; the first one known is used."""
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
        return mix.metrics.get(TOTAL_TIME) if mix else None


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
    """Return every known quantity of a row, by the names of `evaluate.metrics`; of a pack, only its total time."""
    if row.is_pack:
        return {TOTAL_TIME: row.metrics[TOTAL_TIME]} if TOTAL_TIME in row.metrics else {}
    row_figures = {
        name: row.metrics[name]
        for name in (*_list_recorded(), *find_work_metrics(row), *find_sampled_metrics(row))
        if name in row.metrics
    }
    if row.window.is_steady:
        row_figures.pop(TOTAL_TIME, None)  # the makespan of a steady window is its length
    energy_j = row.metrics.get(ENERGY)
    if energy_j and ENERGY_ABOVE_IDLE in row.metrics:
        share = row.metrics[ENERGY_ABOVE_IDLE] / energy_j
        for unit in work_units.find_units(row.metrics):
            if work_units.energy_of(unit) in row_figures:
                row_figures[work_units.energy_above_idle_of(unit)] = share * row_figures[work_units.energy_of(unit)]
    alone = [baselines.solo(row, job) for job in row.jobs]
    row_figures |= {
        metric.name: value
        for metric in METRICS.values()
        if metric.compute is not None and (value := metric.compute(row, alone)) is not None
    }
    row_figures |= _energies(row, baselines)
    figures = normalise_row(row, alone, baselines.total_time_s(row))
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
    speed = normalise_row(row, list(map(_average_runs, runs)), None)
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
    figures = compute_shares(row, list(map(_average_solos, solos)))
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


def name_workload_metric(worst: str, label: str) -> str:
    """Return the name of the worst slowdown among the equal jobs of a mix, by their label in `Case.workloads`."""
    return worst.replace("_worst_", f"_{label}_")


def derive_serial_copies(alone: Mapping[str, float], solo: Row, degree: int) -> dict[str, float]:
    """Derive the figures of `degree` serial copies from those of the solo run."""
    names = [name for name in _list_recorded() if name not in (TOTAL_TIME, WINDOW, "overlap_ratio")]
    names += [LATENCY_DEVIATION, STEP_TIME]
    names += [SPEEDUP, BEST_SOLO, ENERGY_VS_BEST_SOLO, *find_work_metrics(solo), *find_sampled_metrics(solo)]
    figures = {name: alone[name] for name in names if name in alone}
    if not solo.window.is_steady and TOTAL_TIME in alone:
        figures[TOTAL_TIME] = degree * alone[TOTAL_TIME]
    return figures


def _list_recorded() -> list[str]:
    return [metric.name for metric in METRICS.values() if metric.is_recorded]


def _digests(row: Row) -> tuple[str, ...]:
    return tuple(job.digest for job in row.jobs)


def _slowdowns(row: Row, alone: Sequence[JobRow | None]) -> dict[str, float]:
    compared: dict[str, list[ComparedJob]] = defaultdict(list)
    for job, comparison in zip(row.jobs, _pair_with_solo(row, alone), strict=True):
        compared[job.label].append(comparison)
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


def normalise_row(row: Row, alone: Sequence[JobRow | None], serial_s: float | None) -> dict[str, float]:
    """Return speed-up, slowdowns, fairness and forecast of a row, by the runs alone of its jobs (`normalise`)."""
    return normalise(
        row.window,
        _pair_with_solo(row, alone),
        is_sequential=row.is_sequential,
        has_co_runners=bool(row.co_runners),
        adds_memory=row.sharing.adds_memory,
        serial_s=serial_s,
        makespan_s=row.metrics.get(TOTAL_TIME),
    )


def name_share(label: str) -> str:
    """Return the name of the measured share of one job of a workload, in per cent."""
    return f"share_of_{label}_pct"


def name_memory_share(label: str) -> str:
    """Return the name of the measured share of time with memory traffic of one job of a workload, in per cent."""
    return f"memory_share_of_{label}_pct"


def name_modelled_share(label: str) -> str:
    """Return the name of the modelled share of one job of a workload, in per cent."""
    return f"share_of_{label}_model_pct"


def name_energy_alone(label: str) -> str:
    """Return the name of the measured energy for one work unit of a job alone, idle power included."""
    return f"energy_per_unit_of_{label}_alone_j"


def name_modelled_energy(label: str) -> str:
    """Return the name of the modelled energy for one work unit of a job in a group, idle power included."""
    return f"energy_per_unit_of_{label}_model_j"


def compute_shares(row: Row, alone: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the shares and energies of each workload, as means over its jobs, unless a job lacks the figure.

    `alone` has the figures of each job's solo runs, including those of the GPU.
    """
    if row.degree == 1 or row.is_sequential:
        return {}
    measured = [job.metrics.get(_MEASURED_SHARE) for job in row.jobs]
    modelled = [_model_share(job, solo) for job, solo in zip(row.jobs, alone, strict=True)]
    by_job = {
        name_share: measured,
        name_memory_share: [job.metrics.get(_MEMORY_SHARE) for job in row.jobs],
        name_modelled_share: modelled,
        name_energy_alone: [
            solo.get(work_units.energy_of(job.unit)) for job, solo in zip(row.jobs, alone, strict=True)
        ],
        name_modelled_energy: _model_energies(row, modelled if None in measured else measured),
    }
    figures = {}
    for label, positions in group_by(range(row.degree), lambda position: row.jobs[position].label).items():
        for make_name, values in by_job.items():
            present_values = [value for position in positions if (value := values[position]) is not None]
            if len(present_values) == len(positions):
                figures[make_name(label)] = statistics.fmean(present_values)
    return figures


def _model_share(job: JobRow, alone: Mapping[str, float]) -> float | None:
    rate = work_units.rate_of(job.unit)
    busy_pct = next((alone[name] for name in _BUSY if name in alone), None)
    if busy_pct is None or rate not in job.metrics or not alone.get(rate):
        return None
    return job.metrics[rate] * busy_pct / alone[rate]


def _model_energies(row: Row, shares: Sequence[float | None]) -> list[float | None]:
    """Return each job's energy per work unit; `None` if unknown for a job, or if co-runners took energy too."""
    missing: list[float | None] = [None] * row.degree
    energy_j, idle_w, window_s = row.metrics.get("energy_j"), row.metrics.get("power_idle_w"), row.window_s
    present_shares = [share for share in shares if share is not None]
    if energy_j is None or idle_w is None or not window_s or row.co_runners or not row.window.is_steady:
        return missing
    if len(present_shares) < row.degree or not sum(present_shares):
        return missing
    above_w = energy_j / window_s - idle_w
    powers_w = [idle_w / row.degree + above_w * share / sum(present_shares) for share in present_shares]
    rates = [job.metrics.get(work_units.rate_of(job.unit)) for job in row.jobs]
    return [power_w / rate if rate else None for power_w, rate in zip(powers_w, rates, strict=True)]
