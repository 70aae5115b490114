"""The widths of the intervals of speed-ups, and the number of blocks at which they reach a precision goal.

They depend on the scatter of speed-ups over blocks, never on their values or verdicts: a study that stops when a
verdict appears claims too much (docs/statistics.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.base.domain.normalisation import SPEEDUP, select_independent
from pipeline.base.domain.precision_goal import MIN_BLOCKS, PrecisionGoal
from pipeline.base.domain.sharing_modes import SERIAL
from pipeline.base.system.words import format_count
from pipeline.report.evaluate import statistics
from pipeline.report.evaluate.cells import Cell
from pipeline.report.evaluate.wording import describe_jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalWidth:
    """The width of the interval of one speed-up.

    Attributes:
        name: jobs and sharing mode.
        pct: half-width of the interval in per cent of the speed-up; `None` with too few blocks.
        num_blocks: number of blocks with a speed-up.
        num_needed: estimated number of blocks at the goal; `None` if unknown or more than `statistics.MOST_BLOCKS`.
        is_reached: whether the interval is as narrow as the goal.
        is_out_of_reach: whether the scatter is too large for the largest number of blocks, even at its lower bound.
    """

    name: str
    pct: float | None
    num_blocks: int
    num_needed: int | None
    is_reached: bool
    is_out_of_reach: bool

    @property
    def text(self) -> str:
        """Name, half-width and number of blocks: `7 resnet26, MPS: 8.1 % after 5 blocks, about 13 are needed`."""
        if self.pct is None:
            return f"{self.name}: no interval after {format_count(self.num_blocks, 'block')}"
        width = f"{self.name}: {self.pct:.2g} % after {format_count(self.num_blocks, 'block')}"
        if self.is_reached:
            return width
        most = f"more than {statistics.MOST_BLOCKS}" if self.num_needed is None else f"about {self.num_needed}"
        return f"{width}, {most} are needed"


def measure_widths(cells: Sequence[Cell], goal: PrecisionGoal) -> list[IntervalWidth]:
    """Measure the speed-up of each group over its serial baseline; groups that are not ranked have none."""
    compared = (cell for cell in cells if cell.sharing != SERIAL and cell.is_ranked)
    return [_measure(cell, goal) for cell in compared if SPEEDUP in cell.values]


def _measure(cell: Cell, goal: PrecisionGoal) -> IntervalWidth:
    values, share = select_independent(cell.values[SPEEDUP], cell.gpus), goal.pct / 100
    is_drifting, interval = cell.has_drifting_baseline(SPEEDUP), cell.estimate_quantity(SPEEDUP)
    num_blocks, deviation = len(values), statistics.compare_pairs(values).deviation
    half = statistics.half_width(interval) if interval is not None and num_blocks >= MIN_BLOCKS else None
    is_reached = half is not None and half <= share

    def estimate_blocks(deviation: float) -> int | None:
        number = statistics.blocks_for_half_width(deviation, share, is_drifting=is_drifting)
        return None if number is None else max(number, MIN_BLOCKS if is_reached else num_blocks + 1)

    num_needed, least = None, None
    if half is not None and deviation is not None:
        num_needed = estimate_blocks(deviation)
        least = estimate_blocks(statistics.lower_bound_of_deviation(deviation, num_blocks))
    return IntervalWidth(
        name=f"{describe_jobs(cell.case, cell.degree)}, {cell.mode}",
        pct=None if half is None else 100 * half,
        num_blocks=num_blocks,
        num_needed=num_needed,
        is_reached=is_reached,
        is_out_of_reach=half is not None and not is_reached and (least is None or least > goal.max_blocks),
    )
