"""Estimates and tests. A repeat is a complete block with its own baseline, so comparisons are paired within blocks.

Two studies have no common blocks, so their figures are not paired (`compare_studies`).

Intervals are t intervals: with the three to ten blocks of a study, a bootstrap of the mean covers far less than 95 %.
Blocks of one GPU resemble each other, so each GPU counts as one value if there are several
(`normalisation.select_independent`).
"""

from __future__ import annotations

import enum
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from pipeline.base.domain.precision_goal import MIN_BLOCKS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Floats = NDArray[np.float64]

CONFIDENCE = 0.95
MARGIN = 0.02
"""The smallest relative difference that matters in practice."""
MARGIN_IN_WORDS = f"{100 * MARGIN:g} %"

MIN_GPUS = 3
"""The least number of GPUs for a verdict, if blocks ran on several."""

MIN_FOR_INTERVAL = 3
"""The least number of values for an interval; with two, it would extend nine standard deviations to each side."""

DRIFT_BLOCKS = 5
"""The number of blocks that count as one if the baseline drifts with the host (`is_baseline_drifting`).

The speed of a rented host stays similar for minutes, so the blocks of a short study resemble each other.
"""
_LEAST_SCATTER, _LEAST_FACTOR = 0.005, 3.0

MOST_BLOCKS = 1000
_POWER = 0.8


class Scale(enum.Enum):
    """The kind of a quantity, which decides its interval.

    `POSITIVE` scatters by factors, `PLAIN` by differences; an `AMOUNT` is never negative, a `SHARE` is between 0 and
    1, and a `PEAK` has its lowest and highest block instead of an interval.
    """

    POSITIVE = "positive"
    PLAIN = "plain"
    AMOUNT = "amount"
    SHARE = "share"
    PEAK = "peak"


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """The median of `n` independent values, and a 95 % t interval; `low` and `high` are `None` for too few values.

    The interval is the interval of the mean, widened to include the median. For a peak, `low` and `high` are the lowest
    and highest value.
    """

    median: float
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Test:
    """A comparison of two modes, paired in blocks, or of two studies.

    Attributes:
        ratio: the median of the ratios, and their interval; of two studies, the ratio of their medians.
        p_different: p value of the hypothesis "the ratio is 1", two-sided.
        p_equal: p value of the hypothesis "the ratio is outside the margin around 1" (two one-sided tests).
        mean, deviation: mean and standard deviation of the log ratios; the deviation of a single block is `None`. Of
            two studies, the difference of means, and the root of the summed variances.
        is_drifting: whether `DRIFT_BLOCKS` blocks count as one.
    """

    ratio: Estimate
    p_different: float | None
    p_equal: float | None
    mean: float
    deviation: float | None
    is_drifting: bool = False


def keep_stable_digits(value: float) -> float:
    """Round to twelve significant digits: the last of the sixteen depend on the processor and the version of numpy."""
    return float(f"{value:.12g}")


def format_times(ratio: Estimate) -> str:
    """Return `1.84 times (1.79 to 1.90)`, or `1.84 times` without an interval."""
    return f"{ratio.median:.2f} times{format_interval(ratio, '.2f')}"


def format_interval(estimate: Estimate, form: str) -> str:
    """Return ` (1.79 to 1.90)`; empty without an interval, or if low and high are equal."""
    if estimate.low is None or estimate.high is None or estimate.low == estimate.high:
        return ""
    return f" ({estimate.low:{form}} to {estimate.high:{form}})"


def is_baseline_drifting(speeds: Sequence[float], baselines: Sequence[float], *, is_symmetric: bool = False) -> bool:
    """Return whether the baselines of a mode scatter over the blocks while the speeds of the mode hardly do.

    Jobs that wait for the host follow its speed, jobs that fill the GPU do not. If only the baseline follows the host,
    ratios drift with the host, and pairing within blocks removes nothing. With `is_symmetric`, either side may be the
    one that scatters.
    """
    if len(speeds) < MIN_FOR_INTERVAL or min(*speeds, *baselines) <= 0:
        return False
    scatter, baseline_scatter = (_deviation([math.log(speed) for speed in side]) for side in (speeds, baselines))
    if is_symmetric:
        scatter, baseline_scatter = sorted((scatter, baseline_scatter))
    return baseline_scatter > max(_LEAST_SCATTER, _LEAST_FACTOR * scatter)


def estimate(values: Sequence[float], scale: Scale = Scale.POSITIVE, *, is_drifting: bool = False) -> Estimate:
    """Return the median and interval of figures; the interval uses logarithms for `Scale.POSITIVE`.

    The figures are independent, or `DRIFT_BLOCKS` of them count as one.

    Raises:
        ValueError: there are no figures.
    """
    if not values:
        raise ValueError("an estimate needs at least one figure")
    median, n = statistics.median(values), len(values)
    if n < MIN_FOR_INTERVAL:
        return Estimate(median=median, low=None, high=None, n=n)
    if scale is Scale.PEAK or min(values) == max(values):
        return Estimate(median=median, low=min(values), high=max(values), n=n)
    on_log = scale is Scale.POSITIVE and min(values) > 0
    used = [math.log(value) for value in values] if on_log else list(values)
    mean, half = statistics.fmean(used), compute_half(_standard_error(used, is_drifting), n - 1)
    low, high = (math.exp(mean - half), math.exp(mean + half)) if on_log else (mean - half, mean + half)
    if scale is not Scale.PLAIN:
        low = max(0.0, low)
    if scale is Scale.SHARE:
        high = min(1.0, high)
    return Estimate(median=median, low=min(low, median), high=max(high, median), n=n)


def half_width(ratio: Estimate) -> float | None:
    """Return the half-width of a ratio's interval as a share of its geometric middle; `None` without an interval."""
    return None if ratio.low is None or ratio.high is None or ratio.low <= 0 else math.sqrt(ratio.high / ratio.low) - 1


def blocks_for_half_width(deviation: float, share: float, *, is_drifting: bool = False) -> int | None:
    """Estimate the number of blocks for an interval with this half-width; `None` if more than `MOST_BLOCKS`.

    `deviation` is the standard deviation of the log ratios, `share` the half-width as a share of the ratio.
    """
    numbers = range(MIN_FOR_INTERVAL, MOST_BLOCKS + 1)
    halves = ((n, compute_half(deviation / math.sqrt(_count_independent(n, is_drifting)), n - 1)) for n in numbers)
    return next((n for n, half in halves if half <= math.log1p(share)), None)


def lower_bound_of_deviation(deviation: float, n: int) -> float:
    """Return the one-sided 95 % lower bound for the standard deviation of normal values, from that of `n` values."""
    from scipy.special import chdtri

    return deviation * math.sqrt((n - 1) / float(chdtri(n - 1, 1 - CONFIDENCE)))


def compare_pairs(ratios: Sequence[float], margin: float = MARGIN, *, is_drifting: bool = False) -> Test:
    """Test positive ratios of two modes, which are independent, or of which `DRIFT_BLOCKS` count as one."""
    logs = [math.log(ratio) for ratio in ratios]
    mean, n = statistics.fmean(logs), len(logs)
    if n < 2:
        return Test(ratio=estimate(ratios), p_different=None, p_equal=None, mean=mean, deviation=None)
    different, equal = map(float, p_values(mean, _standard_error(logs, is_drifting), n - 1, margin))
    return Test(
        ratio=estimate(ratios, is_drifting=is_drifting),
        p_different=different,
        p_equal=equal,
        mean=mean,
        deviation=_deviation(logs),
        is_drifting=is_drifting,
    )


def follows_host(studies: Iterable[Sequence[float]]) -> bool:
    """Return whether the positive figures of a case scatter so much within studies that it waits for the host.

    If a case fills the GPU, its blocks differ by a few tenths of a per cent.
    """
    logs_of_studies = [[math.log(value) for value in values] for values in studies if len(values) > 1]
    deviation, degrees = pool_deviations((_deviation(logs), len(logs) - 1) for logs in logs_of_studies)
    return degrees > 0 and deviation > _LEAST_SCATTER


def pool_deviations(deviations: Iterable[tuple[float, int]]) -> tuple[float, int]:
    """Pool standard deviations, each with its degrees of freedom; return both of the pool, NaN and 0 without any."""
    deviations = list(deviations)
    degrees = sum(number for _, number in deviations)
    squares = math.fsum(deviation**2 * number for deviation, number in deviations)
    return (math.sqrt(squares / degrees), degrees) if degrees else (math.nan, 0)


def compare_studies(
    before: Sequence[float], after: Sequence[float], margin: float = MARGIN, *, is_drifting: tuple[bool, bool]
) -> Test:
    """Test positive figures of two studies, which are not paired, by Welch's t test on logarithms.

    The figures of each study are independent, or `DRIFT_BLOCKS` of them count as one.
    """
    sides = [[math.log(value) for value in values] for values in (before, after)]
    mean = statistics.fmean(sides[1]) - statistics.fmean(sides[0])
    median = statistics.median(after) / statistics.median(before)
    n = min(len(before), len(after))
    if n < MIN_FOR_INTERVAL:
        ratio = Estimate(median=median, low=None, high=None, n=n)
        return Test(ratio=ratio, p_different=None, p_equal=None, mean=mean, deviation=None)
    variances = [_standard_error(logs, drifts) ** 2 for logs, drifts in zip(sides, is_drifting, strict=True)]
    error = math.sqrt(sum(variances))
    # Welch and Satterthwaite; the pooled degrees of freedom if no figure scatters.
    parts = sum(variance**2 / (len(logs) - 1) for variance, logs in zip(variances, sides, strict=True))
    degrees = error**4 / parts if parts else float(len(before) + len(after) - 2)
    half = _t(1 - (1 - CONFIDENCE) / 2, degrees) * error
    low, high = math.exp(mean - half), math.exp(mean + half)
    different, equal = map(float, p_values(mean, error, degrees, margin))
    return Test(
        ratio=Estimate(median=median, low=min(low, median), high=max(high, median), n=n),
        p_different=different,
        p_equal=equal,
        mean=mean,
        deviation=math.hypot(*map(_deviation, sides)),
        is_drifting=any(is_drifting),
    )


def p_values(mean: ArrayLike, error: ArrayLike, degrees: float, margin: float = MARGIN) -> tuple[Floats, Floats]:
    """Return the p values of the hypotheses "the ratio is 1" and "the ratio is outside the margin".

    The first test is two-sided, the second consists of two one-sided tests. The mean log ratios, their standard errors
    and the p values have the same shape.
    """
    import numpy as np

    distance = np.abs(mean)
    equal = _p_above(math.log1p(margin) - distance, error, degrees)  # the larger of the two one-sided p values
    return np.minimum(1.0, 2 * _p_above(distance, error, degrees)), equal


def correct_p_values(different: ArrayLike, equal: ArrayLike) -> tuple[Floats, Floats]:
    """Adjust the p values of a table so that the probability of any wrong claim is below the level.

    The 2m hypotheses of m comparisons are one family. Holm multiplies the i-th smallest p value (from 0) by the number
    of hypotheses that may still be true, 2m - i. The two hypotheses of one comparison, "no difference" and "a
    difference of at least the margin", exclude each other, so at most m hypotheses are true and the factor is at most m
    (Shaffer, 1986, "Modified sequentially rejective multiple test procedures", JASA 81:826, the static form).

    Args:
        different: p values of "no difference". Shape: [..., comparisons]; each row is a table.
        equal: p values of "a difference of at least the margin", in the same shape.
    """
    import numpy as np

    p = np.concatenate([np.asarray(different, float), np.asarray(equal, float)], axis=-1)
    m = p.shape[-1] // 2
    order = np.argsort(p, axis=-1, kind="stable")
    factors = np.minimum(m, 2 * m - np.arange(2 * m))
    ascending = np.minimum(1.0, factors * np.take_along_axis(p, order, axis=-1))
    adjusted = np.empty_like(p)
    np.put_along_axis(adjusted, order, np.maximum.accumulate(ascending, axis=-1), axis=-1)
    return adjusted[..., :m], adjusted[..., m:]


def blocks_needed(test: Test, num_tests: int, margin: float = MARGIN) -> int | None:
    """Estimate the number of blocks for a verdict, if their scatter stays the same; `None` if unknown or too large.

    With this number of blocks, the claim that is now more likely (different or equal) passes the strictest step of the
    correction for `num_tests` claims with a probability of 80 %.
    """
    if test.deviation is None:
        return None
    log_margin, distance = math.log1p(margin), abs(test.mean)
    level = (1 - CONFIDENCE) / num_tests
    if distance > log_margin:
        level /= 2  # the test for a difference is two-sided
    else:
        distance = log_margin - distance
    for n in range(MIN_BLOCKS, MOST_BLOCKS + 1):
        error = test.deviation / math.sqrt(_count_independent(n, test.is_drifting))
        threshold = (_t(1 - level, n - 1) + _t(_POWER, n - 1)) * error
        if distance >= threshold:
            return n
    return None


def compute_half(error: float, degrees: float, *, is_one_sided: bool = False, level: float = 1 - CONFIDENCE) -> float:
    """Return the half-width of the t interval of a mean with a standard error, by the degrees of freedom."""
    return _t(1 - (level if is_one_sided else level / 2), degrees) * error


def _standard_error(values: Sequence[float], is_drifting: bool) -> float:
    return _deviation(values) / math.sqrt(_count_independent(len(values), is_drifting))


def _count_independent(num_blocks: int, is_drifting: bool) -> float:
    return num_blocks / DRIFT_BLOCKS if is_drifting else num_blocks


def _deviation(values: Sequence[float]) -> float:
    """Compute the standard deviation of a sample; this is 20 times as fast as the standard library."""
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _p_above(distance: ArrayLike, error: ArrayLike, degrees: float) -> Floats:
    import numpy as np
    from scipy.special import stdtr  # importing scipy.stats instead takes a second

    is_exact = np.equal(error, 0)
    p: Floats = stdtr(degrees, -np.divide(distance, np.where(is_exact, 1.0, error)))
    return np.where(is_exact, np.where(np.greater(distance, 0), 0.0, 1.0), p)


@lru_cache(maxsize=4096)
def _t(probability: float, degrees: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees, probability))
