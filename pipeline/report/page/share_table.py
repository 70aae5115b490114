"""The table of what each job of a group takes of the GPU: its share and its energy."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.base.domain import work_units
from pipeline.report.evaluate import job_shares
from pipeline.report.evaluate.cells import Cell
from pipeline.report.evaluate.joules import JOULE, choose_prefix, scale_estimate
from pipeline.report.evaluate.metrics import Scale
from pipeline.report.page.table_format import Table, Values, format_estimate

_NOTE = (
    "Median over the blocks of the mean over the jobs of a workload. Measured: share of the time with kernels of the "
    "job on multiprocessors, which NVML averages over up to 1 s. Model: time that the job's steps take the GPU when "
    "it runs alone, as a share of the time; the shares of jobs whose kernels overlap may exceed 100 % together. "
    "Energy is that of the whole GPU, idle power included. Energy in the group is a model: idle power is divided "
    "equally among the jobs, the energy above it by share."
)


def share_table(cells: Sequence[Cell]) -> Table:
    """Return a table of the share and energy of one job of each workload of a group."""
    rows: list[Values] = []
    for cell in (cell for cell in cells if cell.degree > 1 and cell.is_ranked):
        for label, params in dict(zip(cell.case.workloads, cell.case.params, strict=True)).items():
            share, basis = _format_percent(cell, job_shares.name_share(label)), "measured"
            if share is None:
                share, basis = _format_percent(cell, job_shares.name_modelled_share(label)), "model"
            if share is None:
                continue
            memory = _format_percent(cell, job_shares.name_memory_share(label))
            one = work_units.format_singular(params.get(work_units.PARAM, ""))
            ran = (cell.case.label, cell.degree, cell.mode, label)
            rows.append((*ran, share, basis, memory, one, *_format_energies(cell, label)))
    heads = ("case", "jobs", "mode", "one job of", "share of time (%)", "share from", "memory traffic (%)")
    energy_heads = ("energy per", "alone", "in the group (model)")
    return Table("shares", "What each job takes", (*heads, *energy_heads), tuple(rows), _NOTE)


def _format_percent(cell: Cell, name: str) -> str | None:
    values = cell.values.get(name)
    return format_estimate(cell.estimate(values, Scale.AMOUNT)) if values else None


def _format_energies(cell: Cell, label: str) -> list[str | None]:
    """Return energies in J as estimates with a common unit."""
    names = (job_shares.name_energy_alone(label), job_shares.name_modelled_energy(label))
    estimates = [cell.estimate(values) if (values := cell.values.get(name)) else None for name in names]
    scale, prefix = choose_prefix(estimate.median for estimate in estimates if estimate is not None)
    return [
        None if estimate is None else f"{format_estimate(scale_estimate(estimate, scale))} {prefix}{JOULE}"
        for estimate in estimates
    ]
