"""The pairs that are compared: each mode with serial, the best step mode alone, naive and MPS, by speed and energy."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from pipeline.base.domain.normalisation import MEAN_SLOWDOWN, P99_SLOWDOWN, SPEEDUP, select_independent
from pipeline.base.domain.precision_goal import MIN_BLOCKS
from pipeline.base.domain.sharing_modes import MPS, NAIVE, SERIAL
from pipeline.base.domain.window import WindowKind
from pipeline.report.evaluate.cells import Cell, ratios, speed_ratios
from pipeline.report.evaluate.metrics import BEST_SOLO, ENERGY_VS_ALONE, ENERGY_VS_BEST_SOLO, MEAN_LATENCY
from pipeline.report.evaluate.statistics import MIN_GPUS, Test, compare_pairs
from pipeline.report.evaluate.stressor_effects import runs_stressor

REFERENCES = (SERIAL, NAIVE, MPS)
"""Modes with which every later mode is compared."""
BASELINES_NOTE = (
    "A speed-up over the best step mode alone (usually a CUDA graph) is a property of the GPU and the programs, if the "
    "jobs fill the GPU; a speed-up over serial eager jobs also depends on the host, which launches their kernels."
)
HOST_NOTE = "Figures over a serial job that waits for the host hold for this host."


class Quantity(enum.StrEnum):
    """The quantity of a comparison: a ratio above 1 is better for speed, a ratio below 1 for energy."""

    SPEED = "speed"
    ENERGY = "energy"


class Pair(NamedTuple):
    """A cell, what it is compared with, and the ratios by block.

    Attributes:
        other: the other cell; `None` if the baseline is not a cell.
        test: `None` if the cell is not ranked.
    """

    cell: Cell
    against: str
    other: Cell | None = None
    metric: str = ""
    ratios: Mapping[int, float] = MappingProxyType({})
    test: Test | None = None
    quantity: Quantity = Quantity.SPEED

    @property
    def num_gpus(self) -> int:
        return len({self.cell.gpus.get(block) for block in self.ratios})

    @property
    def holds_for(self) -> str:
        """The hosts for which a speed or energy over serial holds, in words; empty for any other pair."""
        if self.against != SERIAL.label or not self.cell.depends_on_host:
            return ""
        return "on these hosts" if self.cell.has_several_hosts else "on this host"

    @property
    def is_enough(self) -> bool:
        """True if the pair has enough blocks or GPUs for a verdict, and does not depend on several hosts."""
        least = MIN_BLOCKS if self.num_gpus == 1 else MIN_GPUS
        depends_on_hosts = bool(self.holds_for) and self.cell.has_several_hosts
        return self.test is not None and self.test.ratio.n >= least and not depends_on_hosts

    @property
    def gain(self) -> float:
        """The median ratio, or its inverse for energy: above 1 is better."""
        assert self.test is not None
        median = self.test.ratio.median
        return median if self.quantity is Quantity.SPEED else 1 / median


def pair_cell(cell: Cell, members: Sequence[Cell]) -> list[Pair]:
    """Return the pairs of a cell, by speed and then by energy; `members` are the cells of its case and degree.

    Cells with a stressor have no pairs, because a stressor has no work that could gain.
    """
    if cell.mode == SERIAL.label or runs_stressor(cell):
        return []
    if not cell.is_compared:
        return [Pair(cell, SERIAL.label)]
    by_mode = {other.mode: other for other in members}
    pairs: list[Pair] = []
    for quantity in Quantity:
        for reference in REFERENCES:
            other = by_mode.get(reference.label)
            comes_after = cell.mode != reference.label and cell.sharing.order >= reference.order
            if comes_after and (other is None or other.is_compared):
                by_block, metric = _compare(cell, other, quantity, is_serial=reference == SERIAL)
                pairs.append(Pair(cell, reference.label, other, metric, by_block, quantity=quantity))
            if reference == SERIAL:
                pairs += _pair_with_best_solo(cell, quantity)
    speeds = {pair.against: pair.ratios for pair in pairs if pair.quantity is Quantity.SPEED}
    return [pair._replace(test=_test(pair, speeds.get(pair.against, {}))) for pair in pairs if pair.ratios]


def _test(pair: Pair, speeds: Mapping[int, float]) -> Test:
    """Test a pair; the ratios of its speed show whether a side drifts, for energy too, which scatters by itself."""
    cell = pair.cell
    if cell.num_given:  # the mean latency scatters less than a percentile
        other = None if pair.against == SERIAL.label else pair.other
        speeds = cell.compare_speeds(MEAN_SLOWDOWN) if other is None else ratios(other, cell, MEAN_LATENCY)
    is_drifting = cell.is_drifting(speeds, is_symmetric=pair.against != SERIAL.label)
    return compare_pairs(select_independent(pair.ratios, cell.gpus), is_drifting=is_drifting)


def _compare(cell: Cell, other: Cell | None, quantity: Quantity, *, is_serial: bool) -> tuple[Mapping[int, float], str]:
    against_serial = SPEEDUP if quantity is Quantity.SPEED else ENERGY_VS_ALONE
    if is_serial and against_serial in cell.values:  # the baseline of a steady mix is not a cell
        return cell.values[against_serial], against_serial
    if is_serial and cell.num_given and quantity is Quantity.SPEED:
        return _invert_slowdown(cell)
    if other is None:
        return {}, ""
    if quantity is Quantity.SPEED:
        return speed_ratios(cell, other, cell.speed)
    # In a steady window, the jobs of a mix do different shares of its work in each mode.
    has_same_work = not cell.case.is_mix or cell.window is WindowKind.WORK
    names = [ENERGY_VS_ALONE, *([cell.energy] if has_same_work else [])]
    candidates = [(ratios(cell, other, name), name) for name in names]
    return max(candidates, key=lambda candidate: len(candidate[0]))


def _invert_slowdown(cell: Cell) -> tuple[Mapping[int, float], str]:
    """Return the latency alone over the latency together, under the same arrivals; empty for a mix."""
    metric = P99_SLOWDOWN if P99_SLOWDOWN in cell.values else MEAN_SLOWDOWN
    slowdowns = {} if cell.case.is_mix else cell.values.get(metric, {})
    return {block: 1 / slowdown for block, slowdown in slowdowns.items()}, metric


def _pair_with_best_solo(cell: Cell, quantity: Quantity) -> Iterator[Pair]:
    metric = BEST_SOLO if quantity is Quantity.SPEED else ENERGY_VS_BEST_SOLO
    if cell.degree > 1 and metric in cell.values and not is_best_solo_serial(cell):
        yield Pair(cell, name_best_solo(cell), None, metric, cell.values[metric], quantity=quantity)


def is_best_solo_serial(cell: Cell) -> bool:
    """Check that the best step mode alone is the serial baseline itself."""
    over_serial = cell.values.get(SPEEDUP, {})
    return all(over_serial.get(block) == ratio for block, ratio in cell.values.get(BEST_SOLO, {}).items())


def name_best_solo(cell: Cell) -> str:
    """Return the name of the best solo baseline of a cell: `CUDA graph alone`."""
    return f"{cell.best_solo} alone"
