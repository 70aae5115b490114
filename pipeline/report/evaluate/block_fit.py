"""A fit to the figures of all candidates of a study: each is the product of a factor of its block and one of its own.

The factor of a block is what its figures have in common: the speed of the host in these minutes, and the error of the
run that they are relative to. So candidates that were measured in different blocks are compared, too, and the scatter
of all figures about the fit bounds each of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.report.evaluate.statistics import Estimate, compute_half

_MIN_DEGREES = 4
"""Degrees of freedom from which on the scatter is known well enough for an interval."""


class BlockFit:
    """The fit by least squares to the logarithms.

    Args:
        figures: the positive figures of each candidate by block; every candidate shares a block with another one.
    """

    def __init__(self, figures: Sequence[Mapping[int, float]]) -> None:
        self._num_blocks = [len(by_block) for by_block in figures]
        blocks = sorted(set().union(*figures))
        entries = [(place, by_block) for place, by_block in enumerate(figures)]
        rows = [(place, len(figures) + blocks.index(block)) for place, by_block in entries for block in by_block]
        logs = np.log([value for by_block in figures for value in by_block.values()])
        design = np.zeros((len(rows), len(figures) + len(blocks)))
        for number, columns in enumerate(rows):
            design[number, columns] = 1.0
        self._inverse = np.linalg.pinv(design.T @ design)
        self._logs = self._inverse @ design.T @ logs
        self._degrees = len(rows) - (len(figures) + len(blocks) - 1)
        squares = float(np.sum((logs - design @ self._logs) ** 2))
        self._deviation = math.sqrt(squares / self._degrees) if self._degrees > 0 else math.nan

    @property
    def has_intervals(self) -> bool:
        return self._degrees >= _MIN_DEGREES

    def compare(self, place: int, other: int, *, is_one_sided: bool = False, level: float = 0.05) -> Estimate:
        """Return the factor of one candidate over that of another, with its interval, if the scatter is known.

        With `is_one_sided`, the ratio is below the upper limit, and above the lower one, each with a probability of
        `1 - level`.
        """
        middle = float(self._logs[place] - self._logs[other])
        n = min(self._num_blocks[place], self._num_blocks[other])
        if not self.has_intervals:
            return Estimate(median=math.exp(middle), low=None, high=None, n=n)
        inverse = self._inverse
        variance = inverse[place, place] + inverse[other, other] - 2 * inverse[place, other]
        error = self._deviation * math.sqrt(max(0.0, float(variance)))
        half = compute_half(error, self._degrees, is_one_sided=is_one_sided, level=level)
        return Estimate(median=math.exp(middle), low=math.exp(middle - half), high=math.exp(middle + half), n=n)
