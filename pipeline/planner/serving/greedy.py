"""The greedy algorithm of MIG-serving: each further GPU gets the configuration with the highest score."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.planner.serving.candidates import Candidates, Configuration
from pipeline.planner.serving.solution import is_enough

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class Selection:
    """Chosen GPUs, and the remaining demand and GPUs.

    Attributes:
        lack: share of its rate that each service lacks, by `[service]`.
        gpus_left: number of unused GPUs, by `[model]`; infinite without a limit.
    """

    def __init__(self, candidates: Candidates, gpus: Sequence[Configuration] = ()) -> None:
        import numpy as np

        self._candidates = candidates
        self.gpus: list[Configuration] = []
        self.lack: NDArray[np.float64] = np.ones(len(candidates.problem.services))
        self.gpus_left = [math.inf if model.limit is None else model.limit for model in candidates.problem.models]
        for configuration in gpus:
            self.add(configuration)

    def add(self, configuration: Configuration) -> None:
        """Add a GPU."""
        self.gpus.append(configuration)
        self.gpus_left[self._candidates.problem.partitions[configuration.partition].model] -= 1
        for service, share in self._candidates.shares_of(configuration).items():
            self.lack[service] -= share
            if is_enough(1 - self.lack[service]):
                self.lack[service] = 0

    def find_best(self, count: int = 1) -> list[Configuration]:
        """Return the configurations with the highest scores for the next GPU."""
        return self._candidates.find_best(self.lack, self.gpus_left, count)


def complete(
    candidates: Candidates, gpus: Sequence[Configuration], chance: random.Random | None = None, among: int = 1
) -> list[Configuration] | None:
    """Add GPUs to `gpus` until no service lacks throughput; `None` if the limits on GPUs are too low.

    Each step adds the best GPU or, with `chance`, a random GPU among the best `among`.
    """
    selection = Selection(candidates, gpus)
    while selection.lack.any():
        best = selection.find_best(among)
        if not best:
            return None
        selection.add(best[0] if chance is None else chance.choice(best))
    return selection.gpus
