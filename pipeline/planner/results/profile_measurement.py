"""A profile from the runs of a study: its ranked groups of copies of one workload.

A share of a GPU is the whole GPU under naive sharing and MPS, and an instance under MIG. Equal instances in one group
are separate measurements, whose mean is the figure of a block.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pipeline.base.domain import mig_table, service_figures, work_units
from pipeline.base.domain.group_names import list_program_params
from pipeline.base.domain.mig_table import find_model_name
from pipeline.base.domain.normalisation import MEMORY_PEAK, select_independent
from pipeline.base.domain.sharing_modes import MPS, PARTITION, PERCENTAGE, PROFILE
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.host_info import CPU_PREFIX
from pipeline.planner import profile_table
from pipeline.planner.profile_table import Profile
from pipeline.report.evaluate.cells import Cell, label_cases, make_cells
from pipeline.report.evaluate.metrics import INSTANCE_MEMORY
from pipeline.report.evaluate.predictions import Load, collect_inputs, measure_loads
from pipeline.report.evaluate.statistics import estimate
from pipeline.report.evaluate.stressors import name_workload
from pipeline.report.read import labels
from pipeline.report.read.study_records import JobRow, Row, Study

# Params with the batch size: requests of a service, samples of a training job. A request may be several images.
_BATCHES = ("max_batch", "batch_size")
# Params that do not distinguish programs: columns of the profile, and the load and objective of a service.
_NOT_ITS_NAME = {
    service_figures.RATE,
    service_figures.OBJECTIVE,
    service_figures.OBJECTIVE_PERCENTILE,
    "environment_digest",
}


class _Key(NamedTuple):
    """A cell of the profile, with the fields of `profile_table.Row` but the device instead of the GPU model."""

    workload: str
    sharing_mode: str
    instance_profile: str | None
    share_percent: float | None
    processes: int
    batch: int | None
    device: str


@dataclass(slots=True)
class _CellRuns:
    """The runs of one group in all blocks that measure a key.

    Attributes:
        label: description of the group, for errors.
        num_instances: number of equal shares that were busy at the same time.
        is_met: whether rate and objective were met; true if unknown.
        load: sensitivity and pressure of a job that ran alone; `None` if not measured beside stressors.
        values: figures by quantity and block, one figure per instance.
    """

    label: str
    num_instances: int
    rate_per_s: float | None
    is_met: bool = True
    load: Load | None = None
    values: dict[str, dict[int, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    gpus: dict[int, str] = field(default_factory=dict)
    runs: list[str] = field(default_factory=list)


def measure_profile(study: Study, source: str) -> Profile:
    """Return the profile of a study.

    Raises:
        ConfigError: no group makes a row, two groups make the same row, or simulated and real GPUs are mixed.
    """
    if len({row.is_simulated for row in study.rows}) > 1:
        raise ConfigError(f"{source}: has runs of simulated and of real GPUs; record them in separate experiments")
    cases = label_cases(study)
    cells = make_cells(study)
    ranked = {(cell.case, cell.degree, cell.mode): cell for cell in cells if _is_profiled(cell)}
    loads = measure_loads(collect_inputs(study, cells), MPS.label)
    names = _names(job for row in study.rows for job in row.jobs)
    runs: dict[_Key, dict[str, _CellRuns]] = defaultdict(dict)
    for row in study.rows:
        cell = ranked.get((cases[row.run_id], row.degree, row.mode))
        if cell is not None and row.is_valid and not row.gpu_uuid.startswith(CPU_PREFIX):
            for key, jobs, num_instances in _shares(row, names):
                of_group = _add(runs[key], cell, row, jobs, num_instances)
                if row.is_sequential and len(jobs) == 1:
                    of_group.load = loads.get(name_workload(cell.case.workloads[0], cell.case.setting))
    measured = [_row(key, _choose(key, list(by_case.values()), source)) for key, by_case in runs.items()]
    rows = [row for row in measured if row is not None]
    if not rows:
        raise ConfigError(
            f"{source}: has no valid group of copies of one workload on a GPU; measure groups, such as degree=1,2 "
            "scenario=mps"
        )
    rows.sort(key=lambda row: tuple(map(str, row.cell)))
    return Profile(rows=tuple(rows), source=source, is_simulated=study.is_simulated)


def _is_profiled(cell: Cell) -> bool:
    has_all = not (cell.case.is_mix or cell.is_derived or cell.co_runners)  # no other job on the GPU
    return cell.is_ranked and has_all and bool(cell.unit)


def _names(jobs: Iterable[JobRow]) -> dict[tuple[str, frozenset[tuple[str, str]]], str]:
    """Name each program by its workload and the options in which its variants differ."""
    variants: dict[str, list[frozenset[tuple[str, str]]]] = defaultdict(list)
    for job in jobs:
        workload, options = _program(job)
        if options not in variants[workload]:
            variants[workload].append(options)
    return {
        (workload, options): f"{workload} {words}".strip()
        for workload, options_list in variants.items()
        for options, words in zip(
            options_list, labels.distinguish_params([dict(options) for options in options_list]), strict=True
        )
    }


def _program(job: JobRow) -> tuple[str, frozenset[tuple[str, str]]]:
    left_out = {*_NOT_ITS_NAME, batch_key(job)}
    options = {key: value for key, value in list_program_params(job.params).items() if key not in left_out}
    return job.params.get("workload", ""), frozenset(options.items())


def batch_key(job: JobRow) -> str:
    """Return the name of the param with the batch size; empty if the job has no batch size."""
    return next((key for key in _BATCHES if key in job.params), "")


def _shares(
    row: Row, names: Mapping[tuple[str, frozenset[tuple[str, str]]], str]
) -> Iterator[tuple[_Key, list[JobRow], int]]:
    """Yield key, jobs and number of equal shares for each share of the GPU; nothing for compute instances."""
    limits = {_limit_pct(row, job) for job in row.jobs}
    if len(limits) > 1 or any(mig_table.split_name(job.place.get(PROFILE, ""))[1] is not None for job in row.jobs):
        return
    limit = limits.pop()
    by_instance: dict[str | None, list[JobRow]] = defaultdict(list)
    for job in row.jobs:
        by_instance[job.place.get("gi_id")].append(job)
    shares = []
    for jobs in by_instance.values():
        first = jobs[0]
        batch = first.params.get(batch_key(first), "")
        key = _Key(
            workload=names[_program(first)],
            sharing_mode=row.scenario,
            instance_profile=first.place.get(PROFILE),
            share_percent=limit,
            processes=len(jobs),
            batch=int(batch) if batch.isdigit() else None,
            device=row.device,
        )
        shares.append((key, jobs))
    for key, jobs in shares:
        if (key.instance_profile is not None) == (key.sharing_mode in profile_table.ON_INSTANCES):
            yield key, jobs, sum(other == key for other, _ in shares)


def _limit_pct(row: Row, job: JobRow) -> float | None:
    if PERCENTAGE in job.place:
        return float(job.place[PERCENTAGE])
    total = row.facts.get("multiprocessors", "")
    return 100 * float(job.place[PARTITION]) / int(total) if PARTITION in job.place and total.isdigit() else None


def _add(by_case: dict[str, _CellRuns], cell: Cell, row: Row, jobs: Sequence[JobRow], num_instances: int) -> _CellRuns:
    rate = jobs[0].params.get(service_figures.RATE) if jobs[0].is_rate_given else None
    label = f"{cell.case.label}, {cell.degree} jobs, {cell.mode}"
    case = by_case.setdefault(label, _CellRuns(label, num_instances, None if rate is None else float(rate)))
    if row.run_id not in case.runs:
        case.runs.append(row.run_id)
    case.gpus[row.block] = row.gpu_uuid
    for name in (service_figures.SUSTAINED_WORST, service_figures.OBJECTIVE_MET_WORST):
        case.is_met = case.is_met and row.metrics.get(name, 1.0) >= 1
    for name, figure in _figures(row, jobs).items():
        case.values[name][row.block].append(figure)
    return case


def _figures(row: Row, jobs: Sequence[JobRow]) -> dict[str, float]:
    rates = _collect(jobs, work_units.rate_of(jobs[0].unit))
    means, tails = _collect(jobs, service_figures.MEAN), _collect(jobs, service_figures.P99)
    figures = {"throughput_per_s": sum(rates)} if rates else {}
    if means:
        figures["latency_mean_ms"] = statistics.fmean(means)
    if tails:
        figures["latency_p99_ms"] = max(tails)
    memory = jobs[0].metrics.get(INSTANCE_MEMORY) if "gi_id" in jobs[0].place else row.metrics.get(MEMORY_PEAK)
    if memory is not None:
        figures["memory_mib"] = memory
    if (energy := row.metrics.get(work_units.energy_of(jobs[0].unit))) is not None:
        figures["energy_per_item_j"] = energy
    return figures


def _collect(jobs: Sequence[JobRow], name: str) -> list[float]:
    figures = [job.metrics[name] for job in jobs if name in job.metrics]
    return figures if len(figures) == len(jobs) else []


def _choose(key: _Key, cases: Sequence[_CellRuns], source: str) -> _CellRuns:
    """Choose the group with the most equal instances, then the group with the highest sustained rate."""
    met = [case for case in cases if case.is_met]
    candidates = met or [case for case in cases if case.rate_per_s == min(other.rate_per_s or 0.0 for other in cases)]
    fullest = [case for case in candidates if case.num_instances == max(other.num_instances for other in candidates)]
    rates = [case.rate_per_s or 0.0 for case in fullest]
    best = [case for case in fullest if (case.rate_per_s or 0.0) == max(rates)]
    if len(best) > 1:
        raise ConfigError(
            f"{source}: two groups of {key.workload} belong to the same row of the profile: {best[0].label}, and "
            f"{best[1].label}; record them in separate experiments (tracking.experiment=NAME)"
        )
    return best[0]


def _row(key: _Key, runs: _CellRuns) -> profile_table.Row | None:
    by_quantity = {
        name: {
            block: statistics.fmean(values) for block, values in by_block.items() if len(values) == runs.num_instances
        }
        for name, by_block in runs.values.items()
    }
    estimates = {
        name: estimate(select_independent(values, runs.gpus)) for name, values in by_quantity.items() if values
    }
    if "throughput_per_s" not in estimates:
        return None
    throughput = estimates.pop("throughput_per_s")
    figures: dict[str, Any] = {name: estimated.median for name, estimated in estimates.items()}
    if memory := runs.values.get("memory_mib"):  # the highest figure is used, because it must fit
        figures["memory_mib"] = max(max(values) for values in memory.values())
    if runs.load is not None:
        figures |= {"sensitivity_ratio": runs.load.sensitivity, "pressure_ratio": runs.load.pressure}
    cell: dict[str, Any] = key._asdict()
    return profile_table.Row(
        gpu_model=find_model_name(cell.pop("device")),
        **cell,
        throughput_per_s=throughput.median,
        throughput_low_per_s=throughput.low,
        throughput_high_per_s=throughput.high,
        num_blocks=len(by_quantity["throughput_per_s"]),
        runs=tuple(runs.runs),
        **figures,
    )
