"""The greedy algorithm of MIG-serving: add the configuration with the highest score, one GPU at a time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.planner.serving.candidates import Candidates, Configuration
from pipeline.planner.serving.solution import is_enough

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def lack_of(candidates: Candidates, gpus: Sequence[Configuration]) -> NDArray[np.float64]:
    """Return the lack `[service]`: the share of its rate that each is missing on these GPUs; 0 if they suffice."""
    import numpy as np

    lack = np.ones(len(candidates.problem.services))
    for configuration in gpus:
        take(candidates, configuration, lack)
    return lack


def take(candidates: Candidates, configuration: Configuration, lack: NDArray[np.float64]) -> None:
    """Subtract what a configuration serves from the lack, in place."""
    for service, share in candidates.shares_of(configuration).items():
        lack[service] -= share
        if is_enough(1 - lack[service]):
            lack[service] = 0


def count_gpus_left(candidates: Candidates, gpus: Sequence[Configuration]) -> list[float]:
    """Return the number of unused GPUs `[model]`; infinite without a limit."""
    models, partitions = candidates.problem.models, candidates.problem.partitions
    used = [0] * len(models)
    for configuration in gpus:
        used[partitions[configuration.partition].model] += 1
    return [
        float("inf") if model.limit is None else model.limit - count for model, count in zip(models, used, strict=True)
    ]


def complete(
    candidates: Candidates, gpus: Sequence[Configuration], chance: random.Random | None = None, among: int = 1
) -> list[Configuration] | None:
    """Add GPUs until no service lacks anything: the best at each step, or a random one of the best.

    Returns:
        All GPUs; `None` if the limits on their number prevent it.
    """
    chosen_gpus = list(gpus)
    lack, num_left = lack_of(candidates, chosen_gpus), count_gpus_left(candidates, chosen_gpus)
    while lack.any():
        best = candidates.find_best(lack, num_left, among)
        if not best:
            return None
        chosen = best[0] if chance is None else chance.choice(best)
        chosen_gpus.append(chosen)
        take(candidates, chosen, lack)
        num_left[candidates.problem.partitions[chosen.partition].model] -= 1
    return chosen_gpus
