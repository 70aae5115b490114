"""The precision goal of a study with `repeats=auto`, which stops as soon as its speed-ups are known well enough."""

from __future__ import annotations

from dataclasses import dataclass

MIN_BLOCKS = 5
"""The least number of blocks for a verdict, and for a study that stops at its precision goal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionGoal:
    """The goal of a study with `repeats=auto`.

    Attributes:
        pct: largest half-width of the 95 % interval of a speed-up, in per cent of the speed-up.
        max_blocks: number of blocks after which the study ends even if a speed-up misses the goal.
    """

    pct: float
    max_blocks: int

    @property
    def text(self) -> str:
        """The half-width as text: `5 %`."""
        return f"{self.pct:g} %"
