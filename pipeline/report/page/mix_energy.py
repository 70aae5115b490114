"""The table of the energy that mixes took: all of it, which is measured, and each workload's part, which is a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pipeline.base.domain import units
from pipeline.report.evaluate.cells import Cell
from pipeline.report.evaluate.joules import JOULE, prefix_of, scaled
from pipeline.report.evaluate.metrics import ENERGY_VS_ALONE
from pipeline.report.evaluate.quantities import energy_alone, modelled_energy
from pipeline.report.page.table_format import Table, Values, with_interval

_NOTE = (
    "A GPU counts the energy of all that runs on it. Measured: that of the mix over that of the same work, each job "
    "alone on the GPU, idle power included. A model: what of it each workload took. Above idle, each job is given as "
    "much more or less than alone as the jobs of the mix took together."
)


def mix_energy_table(cells: Sequence[Cell]) -> Table:
    """Each workload of each mix whose energy, and that of each of its jobs alone, was measured."""
    rows: list[Values] = []
    for cell in (cell for cell in cells if cell.case.is_mix and cell.is_ranked):
        if ENERGY_VS_ALONE not in cell.estimates:
            continue
        ratio = with_interval(cell.estimates[ENERGY_VS_ALONE])
        for label, params in dict(zip(cell.case.workloads, cell.case.params, strict=True)).items():
            by_block = [cell.values.get(name(label)) for name in (energy_alone, modelled_energy)]
            one = units.one_in_words(params.get(units.PARAM, units.SAMPLES))
            rows.append((cell.case.label, cell.mode, ratio, label, one, *_energies(cell, by_block)))
    of_each = ("above idle for one, alone", "above idle for one, in the mix (a model)")
    columns = ("mix", "mode", "energy, over that of the same work alone", "workload", "one", *of_each)
    return Table("mix-energy", "Energy of mixes", columns, tuple(rows), _NOTE)


def _energies(cell: Cell, by_block: Sequence[Mapping[int, float] | None]) -> list[str | None]:
    """Return energies in J by block as figures with one unit; it may be another one in each row."""
    estimates = [cell.estimate(values) if values else None for values in by_block]
    scale, prefix = prefix_of(estimate.median for estimate in estimates if estimate is not None)
    return [
        None if estimate is None else f"{with_interval(scaled(estimate, scale))} {prefix}{JOULE}"
        for estimate in estimates
    ]
