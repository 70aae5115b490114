"""Energies in a unit that is easy to read: `4.56 mJ` instead of `0.00456 J`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from pipeline.report.evaluate.statistics import Estimate

JOULE = "J"
_PREFIXES = ((1.0, ""), (1e-3, "m"), (1e-6, "u"))
_LEAST = 0.1
"""The highest figure, in the chosen unit, is at least this number, unless no smaller unit exists."""


def choose_prefix(figures: Iterable[float], unit: str = JOULE) -> tuple[float, str]:
    """Return scale and prefix of the unit for energies; figures in other units have no prefix."""
    if unit != JOULE:
        return 1.0, ""
    highest = max(figures, default=1.0)
    return next(((scale, prefix) for scale, prefix in _PREFIXES if highest >= _LEAST * scale), _PREFIXES[-1])


def scale_estimate(estimate: Estimate, scale: float) -> Estimate:
    """Return an estimate in units of `scale`."""
    low, high = (None if end is None else end / scale for end in (estimate.low, estimate.high))
    return dataclasses.replace(estimate, median=estimate.median / scale, low=low, high=high)
