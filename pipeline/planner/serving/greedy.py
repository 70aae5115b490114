"""The greedy algorithm of MIG-serving: GPU after GPU, the configuration of the highest score."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.planner.serving.candidates import Candidates, Configuration
from pipeline.planner.serving.solution import suffices

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def lacking(candidates: Candidates, there: Sequence[Configuration]) -> NDArray[np.float64]:
    """Return `[service]`: the share of its rate that each lacks beside these GPUs; 0 if they suffice."""
    import numpy as np

    lack = np.ones(len(candidates.problem.services))
    for configuration in there:
        take(candidates, configuration, lack)
    return lack


def take(candidates: Candidates, configuration: Configuration, lack: NDArray[np.float64]) -> None:
    """Subtract what a configuration gives from what services lack, in place."""
    for service, share in candidates.given(configuration).items():
        lack[service] -= share
        if suffices(1 - lack[service]):
            lack[service] = 0


def gpus_left(candidates: Candidates, there: Sequence[Configuration]) -> list[float]:
    """Return `[model]`: how many GPUs there are beside those in use; infinite without a limit."""
    models, partitions = candidates.problem.models, candidates.problem.partitions
    used = [0] * len(models)
    for configuration in there:
        used[partitions[configuration.partition].model] += 1
    return [
        float("inf") if model.limit is None else model.limit - count for model, count in zip(models, used, strict=True)
    ]


def complete(
    candidates: Candidates, there: Sequence[Configuration], chance: random.Random | None = None, among: int = 1
) -> list[Configuration] | None:
    """Add GPUs until nobody lacks anything.

    Args:
        candidates: of the problem.
        there: GPUs to begin with.
        chance: chooses one of the best at each step; always the best one if not given.
        among: how many of the best.

    Returns:
        All GPUs; `None` if the limits on their number do not allow them.
    """
    found = list(there)
    lack, left = lacking(candidates, found), gpus_left(candidates, found)
    while lack.any():
        best = candidates.best(lack, left, among)
        if not best:
            return None
        chosen = best[0] if chance is None else chance.choice(best)
        found.append(chosen)
        take(candidates, chosen, lack)
        left[candidates.problem.partitions[chosen.partition].model] -= 1
    return found
