"""Independent excursions of latencies above a percentile: the number on which the percentile rests.

Queues remember: requests of one busy period are slow together, so requests above a percentile do not count, but
excursions above it do. An excursion begins above a level and ends when a latency is at or below the median. Excursions
above the 90th percentile are as long as those above higher percentiles and ten times as many as those above the 99th,
so their number says how many a higher percentile has, and depends little on its value. Where other causes make the
slowest requests than the slow ones, such as stalls, the excursions above the percentile itself count. Simulations
(`python -m benchmarks.percentiles`) show how well the intervals of percentiles then cover.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pipeline.base.domain.service_figures import MEDIAN, MIN_EXCURSIONS, min_requests

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_LEVEL = 90.0
_SCATTER = 3.5
"""The number of excursions above the percentile itself scatters, so it only counts if smaller by this factor."""
_RESERVE = 1.5
"""Factor of the suggested length of a window, so that a repeated run rarely falls short again."""


def estimate_number(latencies: NDArray[np.float64], percentile: float) -> float:
    """Estimate the number of independent excursions above a percentile.

    Args:
        latencies: in the order of arrivals; infinite without an answer.
        percentile: between 0 and 100.
    """
    import numpy as np

    ordered = np.sort(latencies)
    calm = np.flatnonzero(latencies <= select_rank(ordered, MEDIAN))

    def count_above(level: float) -> int:
        high = np.flatnonzero(latencies >= select_rank(ordered, level))
        return len(np.unique(np.searchsorted(calm, high)))

    return min(count_above(_LEVEL) * (100 - percentile) / (100 - _LEVEL), _SCATTER * count_above(percentile))


def has_enough(latencies: NDArray[np.float64], percentile: float) -> bool:
    """Return whether a percentile can be stated; the median always can."""
    return percentile <= MEDIAN or (
        len(latencies) >= min_requests(percentile) and estimate_number(latencies, percentile) >= MIN_EXCURSIONS
    )


def suggest_length(latencies: NDArray[np.float64], percentile: float, length: float) -> float:
    """Return how long a window must be for a percentile: 1, 2 or 5 times a power of ten; `length` is its length now."""
    needed = _RESERVE * length * MIN_EXCURSIONS / estimate_number(latencies, percentile)
    power = 10.0 ** math.floor(math.log10(needed))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= needed)


def select_rank(ordered: NDArray[np.float64], percent: float) -> float:
    """Select a percentile of ascending values: the smallest that so many per cent of the values do not exceed."""
    return float(ordered[math.ceil(percent / 100 * len(ordered)) - 1])
