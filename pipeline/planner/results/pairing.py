"""The pairs to put together: every workload once, in a pair or alone, with the least GPU time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.report.evaluate.predictions import PairPrediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairing:
    """The best pairing.

    Attributes:
        pairs: pairs to put together, each in its best mode.
        alone: workloads that run alone.
        gpu_time_ratio: GPU time relative to all workloads one after another.
    """

    pairs: tuple[PairPrediction, ...]
    alone: tuple[str, ...]
    gpu_time_ratio: float


def choose_pairs(predictions: Sequence[PairPrediction]) -> Pairing:
    """Choose the pairs with the least GPU time, if each workload has one hour of work alone.

    A pair with throughput S relative to serial takes 2 / S hours for two hours of work. This is a minimum-weight
    matching, solved as an integer programme.
    """
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp

    names = list(dict.fromkeys(name for prediction in predictions for name in prediction.workloads))
    best: dict[tuple[str, str], tuple[float, PairPrediction]] = {}
    for prediction in predictions:
        if prediction.throughput is not None:
            hours = 2 / prediction.throughput.middle
            pair = prediction.workloads
            if hours < best.get(pair, (2.0,))[0]:  # a pair that gains nothing is better apart
                best[pair] = hours, prediction
    groups: list[tuple[str, ...]] = [*best, *((name,) for name in names)]
    costs = [*(hours for hours, _ in best.values()), *(1.0 for _ in names)]
    contains = [[float(name in group) for group in groups] for name in names]
    optimum = milp(
        costs,
        constraints=LinearConstraint(np.array(contains), 1, 1),
        integrality=np.ones(len(costs)),
        bounds=Bounds(0, 1),
    )
    chosen = [group for group, count in zip(groups, np.rint(optimum.x), strict=True) if count]
    return Pairing(
        pairs=tuple(best[first, second][1] for first, second in (group for group in chosen if len(group) == 2)),
        alone=tuple(group[0] for group in chosen if len(group) == 1),
        gpu_time_ratio=float(optimum.fun) / len(names),
    )
