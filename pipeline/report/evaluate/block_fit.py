"""A fit to the figures of all candidates of a study: each is the product of a factor of its block and one of its own.

The factor of a block is what its figures have in common: the speed of the host in these minutes, and the error of the
run that they are relative to. So candidates that were measured in different blocks are compared, too, and the scatter
of all figures about the fit bounds each of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pipeline.report.evaluate.statistics import CONFIDENCE, Estimate, compute_half

if TYPE_CHECKING:
    from pipeline.report.evaluate.statistics import Floats

_MIN_DEGREES = 3
"""Degrees of freedom from which on the scatter is known well enough for an interval."""
_BEND = 0.5
"""Standard deviation of the change of a curve's slope: of the logarithm of the figure by position."""
_ROUNDS, _FIRST_VARIANCE = 8, 0.05**2
"""Rounds in which the scatter and the weight of the curves are found; the scatter while the figures do not tell it."""


class BlockFit:
    """The fit by least squares to the logarithms.

    Candidates may lie on curves, which bend little between near positions: each inner candidate of a curve lies on the
    line between its neighbours, apart from a deviation with a known scatter (`_BEND`).

    Args:
        figures: the positive figures of each candidate by block; every candidate shares a block with another one.
        curves: the places of the candidates of each curve, with their positions, in ascending order.
    """

    def __init__(
        self, figures: Sequence[Mapping[int, float]], curves: Sequence[Sequence[tuple[int, float]]] = ()
    ) -> None:
        self._num_blocks = [len(by_block) for by_block in figures]
        blocks = sorted(set().union(*figures))
        rows = [
            (place, len(figures) + blocks.index(block)) for place, by_block in enumerate(figures) for block in by_block
        ]
        logs = np.log([value for by_block in figures for value in by_block.values()])
        design = np.zeros((len(rows), len(figures) + len(blocks)))
        for number, columns in enumerate(rows):
            design[number, columns] = 1.0
        bends = [bend for curve in curves for bend in _list_bends(curve, design.shape[1])]
        normal, of_bends = design.T @ design, sum((np.outer(bend, bend) for bend in bends), np.zeros(1))
        self._variance = 0.0
        for _ in range(_ROUNDS):
            self._inverse = np.linalg.pinv(normal + self._variance * of_bends, hermitian=True)
            self._logs = self._inverse @ design.T @ logs
            self._degrees = len(rows) - float(np.trace(self._inverse @ normal))
            squares = float(np.sum((logs - design @ self._logs) ** 2))
            self._variance = squares / self._degrees if self._degrees > 0.5 else _FIRST_VARIANCE

    @property
    def has_intervals(self) -> bool:
        return self._degrees >= _MIN_DEGREES

    def compare(self, place: int, other: int, *, is_one_sided: bool = False, level: float = 1 - CONFIDENCE) -> Estimate:
        """Return the factor of one candidate over that of another, with its interval, if the scatter is known.

        With `is_one_sided`, the ratio is below the upper limit, and above the lower one, each with a probability of
        `1 - level`.
        """
        middle = float(self._logs[place] - self._logs[other])
        n = min(self._num_blocks[place], self._num_blocks[other])
        if not self.has_intervals:
            return Estimate(median=math.exp(middle), low=None, high=None, n=n)
        inverse = self._inverse
        factor = inverse[place, place] + inverse[other, other] - 2 * inverse[place, other]
        error = math.sqrt(max(0.0, self._variance * float(factor)))
        half = compute_half(error, self._degrees, is_one_sided=is_one_sided, level=level)
        return Estimate(median=math.exp(middle), low=math.exp(middle - half), high=math.exp(middle + half), n=n)


def _list_bends(curve: Sequence[tuple[int, float]], num_columns: int) -> Iterator[Floats]:
    """Yield, for each inner candidate of a curve, its expected deviation from the line between its neighbours, as 1."""
    for (before, x), (place, y), (after, z) in zip(curve, curve[1:], curve[2:], strict=False):
        row = np.zeros(num_columns)
        row[[before, place, after]] = -(z - y) / (z - x), 1.0, -(y - x) / (z - x)
        yield row / (_BEND * (y - x) * (z - y) / (z - x))
