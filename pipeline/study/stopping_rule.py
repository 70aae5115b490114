"""The end of a study with `repeats=auto`: after each block, are its speed-ups known within the precision goal?

The rule looks at the widths of intervals only. Its words say which speed-ups are known, and which cannot be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from pipeline.base.domain.precision_goal import MIN_BLOCKS, PrecisionGoal
from pipeline.base.domain.records import Group
from pipeline.base.system import words
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import format_count
from pipeline.observe.group_result import GroupResult
from pipeline.observe.study_progress import PastGroup, forecast

if TYPE_CHECKING:
    from pipeline.report.evaluate.interval_widths import IntervalWidth


class StoppingRule:
    """The rule by which a study with `repeats=auto` ends.

    Attributes:
        num_compared: number of groups that can have a speed-up.
        last_block: estimated number of blocks; before any interval, the least number of blocks.
        is_least: whether `last_block` is this least number.
        stopped_after: number of blocks after which the study stopped; `None` if it did not stop before `repeats_max`.
    """

    def __init__(self, experiment: str, goal: PrecisionGoal, num_compared: int) -> None:
        self.experiment, self.goal, self.num_compared = experiment, goal, num_compared
        self.last_block, self.is_least = MIN_BLOCKS, True
        self.stopped_after: int | None = None
        self._described: set[str] = set()  # lines and speed-ups out of reach that were described

    def measure(self, rows: Sequence[GroupResult]) -> list[IntervalWidth]:
        """Measure the intervals of all speed-ups; empty below `MIN_BLOCKS` blocks."""
        if len({row.group.block for row in rows}) < MIN_BLOCKS:
            return []
        # Imported late, because the modules of the report take long to import.
        from pipeline.report.evaluate.cells import make_cells
        from pipeline.report.evaluate.interval_widths import measure_widths
        from pipeline.report.read.result_rows import make_study_of_results

        return measure_widths(make_cells(make_study_of_results(self.experiment, rows)), self.goal)

    def look(self, rows: Sequence[GroupResult]) -> list[IntervalWidth]:
        """Measure all intervals, and estimate from them after how many blocks the study ends."""
        widths = self.measure(rows)
        if widths:
            self.last_block, self.is_least = int(min(self.goal.max_blocks, _estimate_blocks(widths))), False
        return widths

    def stops_before(self, block: int, rows: Sequence[GroupResult]) -> bool:
        """Return whether the study ends before a block, of which no group has run; print what is known."""
        if block <= MIN_BLOCKS:
            return False
        widths = self.look(rows)
        for line in self.describe(widths):
            words.say(line)
        if all(width.is_reached for width in widths):
            self.stopped_after = block - 1
        return self.stopped_after is not None

    def describe(self, widths: Sequence[IntervalWidth]) -> Iterator[str]:
        """Describe how many speed-ups are known, and once each speed-up that cannot be known within the goal."""
        missing = [width for width in widths if not width.is_reached]
        if not missing:
            return
        widest = max(missing, key=lambda width: math.inf if width.pct is None else width.pct)
        num_known = len(widths) - len(missing)
        lines = {"": f"{num_known} of {self._count(widths)} known within {self.goal.text}; the widest: {widest.text}"}
        out_of_reach = [width for width in missing if width.is_out_of_reach]
        most = self.goal.max_blocks
        lines |= {width.name: f"out of reach within repeats_max={most}: {width.text}" for width in out_of_reach}
        for name, line in lines.items():
            if (key := name or line) not in self._described:
                self._described.add(key)
                yield line

    def describe_end(self, rows: Sequence[GroupResult]) -> str:
        """Describe why the study ended and which speed-ups missed the goal; empty if it ended too early for both."""
        widths = self.measure(rows)
        missed = [width for width in widths if not width.is_reached]
        lacking = self.num_compared - len(widths)
        without = f"; {format_count(lacking, 'group')} without a speed-up" if lacking > 0 else ""
        stopped = "" if self.stopped_after is None else f"stopped after {format_count(self.stopped_after, 'block')}: "
        if missed:
            return (
                f"{len(missed)} of {self._count(widths)} not known within {self.goal.text}: "
                f"{'; '.join(width.text for width in missed)}{without}"
            )
        if widths:
            return f"{stopped}the goal is reached, {self._count(widths)} known within {self.goal.text}{without}"
        return f"{stopped}no group has a speed-up" if stopped else ""

    def refuse_other_gpus(self, stored: Sequence[GroupResult]) -> None:
        """Raise `ConfigError` if stored blocks of another GPU would be compared with new blocks.

        Each GPU counts once in an interval, so more blocks would not make it narrower.
        """
        uuids = [row.gpu_uuid for row in stored if row.gpu_uuid != row.group.device.uuid]
        widths = self.look(stored)
        if uuids and not (widths and all(width.is_reached for width in widths)):
            raise ConfigError(
                f"repeats=auto needs all blocks on one GPU, but the stored blocks are of {uuids[0]}; resume on "
                "this GPU, or set repeats=NUMBER"
            )

    def forecast(
        self, groups: Sequence[Group], stored: Sequence[GroupResult], past: Iterable[PastGroup], *, only_known: bool
    ) -> Iterator[str]:
        """Describe blocks and time for the goal, from the scatter of stored blocks and from similar earlier groups.

        With `only_known`, times that no earlier group tells are left out.
        """
        past, widths = list(past), self.look(stored)
        yield from self.describe(widths)
        num_blocks = _estimate_blocks(widths)
        if num_blocks <= self.goal.max_blocks and not any(group.block <= num_blocks for group in groups):
            yield f"the stored blocks reach the goal of {self.goal.text}"
            return
        for number in sorted({MIN_BLOCKS, self.last_block, self.goal.max_blocks}):
            estimate = forecast([group for group in groups if group.block <= number], past)
            if estimate.num_groups and not (only_known and estimate.num_unknown):
                note = " (at the goal, with the scatter of the stored blocks)" if number == num_blocks else ""
                yield f"{format_count(number, 'block')}{note}: {estimate.words}"

    def _count(self, widths: Sequence[IntervalWidth]) -> str:
        return f"{format_count(len(widths), 'speed-up')} {'is' if len(widths) == 1 else 'are'}"


def _estimate_blocks(widths: Sequence[IntervalWidth]) -> float:
    """Estimate the number of blocks at which all speed-ups reach the goal; infinite if unknown."""
    return max((width.num_needed or math.inf for width in widths), default=math.inf)
