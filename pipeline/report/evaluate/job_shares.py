"""The share of the GPU that each job of a group takes: measured, or a model, and a model of its energy.

A measured share is the time with kernels of the job on multiprocessors (NVML). The modelled share is the time that the
job's steps take the GPU when it runs alone: its speed, times its busy time per step alone. The modelled energy divides
the idle power equally among the jobs, and the energy above it by their shares.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from pipeline.base.domain import work_units
from pipeline.base.system.grouping import group_by
from pipeline.report.read.study_records import JobRow, Row

_MEASURED, _MEMORY = "process_sm_utilization_mean_pct", "process_memory_utilization_mean_pct"
_BUSY = (_MEASURED, "utilization_gpu_mean_pct")
"""Figures of a job alone that are its busy share of the time; the first one known is used."""


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
    measured = [job.metrics.get(_MEASURED) for job in row.jobs]
    modelled = [_model_share(job, solo) for job, solo in zip(row.jobs, alone, strict=True)]
    by_job = {
        name_share: measured,
        name_memory_share: [job.metrics.get(_MEMORY) for job in row.jobs],
        name_modelled_share: modelled,
        name_energy_alone: [
            solo.get(work_units.energy_of(job.unit)) for job, solo in zip(row.jobs, alone, strict=True)
        ],
        name_modelled_energy: _model_energies(row, modelled if None in measured else measured),
    }
    figures = {}
    for label, positions in group_by(range(row.degree), lambda position: row.jobs[position].label).items():
        for make_name, values in by_job.items():
            known = [value for position in positions if (value := values[position]) is not None]
            if len(known) == len(positions):
                figures[make_name(label)] = statistics.fmean(known)
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
    known = [share for share in shares if share is not None]
    if energy_j is None or idle_w is None or not window_s or row.co_runners or not row.window.is_steady:
        return missing
    if len(known) < row.degree or not sum(known):
        return missing
    above_w = energy_j / window_s - idle_w
    powers_w = [idle_w / row.degree + above_w * share / sum(known) for share in known]
    rates = [job.metrics.get(work_units.rate_of(job.unit)) for job in row.jobs]
    return [power_w / rate if rate else None for power_w, rate in zip(powers_w, rates, strict=True)]
