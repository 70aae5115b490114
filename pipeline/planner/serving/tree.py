"""Monte-Carlo tree search of MIG-serving: the next configuration is judged by random completions.

A node is a set of GPUs; each child adds one of the ten best configurations. A completion draws good configurations from
a pool until each of them would exceed the lack of a service, and then continues with the greedy algorithm.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pipeline.planner.serving import greedy
from pipeline.planner.serving.candidates import Candidates, Configuration
from pipeline.planner.serving.greedy import Selection

Cost = Callable[[Sequence[Configuration]], float]
"""The quantity to minimise; `len` for the number of GPUs."""

_CHILDREN = 10
_POOL = 1000
_AMONG = 3
# Share of its throughput by which a configuration of the pool may exceed the lack.
_WASTE = 0.02
# Weight of rarely visited nodes; small because costs differ by only a few per cent.
_CURIOSITY = 0.02


@dataclass(slots=True)
class _Node:
    """A set of GPUs: the configurations on the path from the root."""

    children: list[tuple[Configuration, _Node]] = field(default_factory=list)
    untried: list[Configuration] | None = None
    visits: int = 0
    reward: float = 0.0


class Completions:
    """Random completions of sets of GPUs."""

    def __init__(self, candidates: Candidates, chance: random.Random) -> None:
        import numpy as np

        self.candidates, self._chance = candidates, chance
        self._pool = _collect_pool(candidates)
        self._given = np.zeros((len(self._pool), len(candidates.problem.services)))
        for position, configuration in enumerate(self._pool):
            for service, share in candidates.shares_of(configuration).items():
                self._given[position, service] = share
        self._total = self._given.sum(axis=1)

    def complete(self, gpus: Sequence[Configuration]) -> list[Configuration] | None:
        """Return GPUs that include `gpus` and serve all services; `None` if the limits on GPUs are too low."""
        import numpy as np

        selection = Selection(self.candidates, gpus)
        partitions = self.candidates.problem.partitions
        while selection.lack.any() and len(self._pool):
            taken = np.minimum(self._given, selection.lack)
            is_fit = taken.sum(axis=1) >= (1 - _WASTE) * self._total
            score = np.where(is_fit, taken @ selection.lack, 0)
            for position in np.flatnonzero(is_fit):
                if selection.gpus_left[partitions[self._pool[position].partition].model] <= 0:
                    score[position] = 0
            best = [int(position) for position in np.argsort(-score)[:_CHILDREN] if score[position] > 0]
            if not best:
                break
            selection.add(self._pool[self._chance.choice(best)])
        return greedy.complete(self.candidates, selection.gpus, self._chance, _AMONG)


def _collect_pool(candidates: Candidates) -> list[Configuration]:
    """Collect the choices at each step of the greedy algorithm."""
    selection = Selection(candidates)
    pool: dict[Configuration, None] = {}
    while selection.lack.any() and len(pool) < _POOL:
        best = selection.find_best(_CHILDREN)
        if not best:
            break
        pool |= dict.fromkeys(best)
        selection.add(best[0])
    return list(pool)


def search(
    candidates: Candidates,
    first: list[Configuration],
    *,
    seed: int,
    time_limit_s: float,
    bound: float = 0,
    rounds: float = math.inf,
    cost: Cost = len,
) -> list[Configuration]:
    """Return the best GPUs found, at least as good as `first`.

    The search stops at the time limit, after `rounds` rounds, or when the cost reaches `bound`.
    """
    end = time.monotonic() + time_limit_s
    completions = Completions(candidates, random.Random(seed))  # noqa: S311
    root, best, scale = _Node(), first, max(cost(first), 1)
    while time.monotonic() < end and rounds > 0 and cost(best) > bound:
        rounds -= 1
        path, chosen = _descend(root, candidates)
        completed = completions.complete(chosen)
        reward = 0.0 if completed is None else 1 - cost(completed) / (2 * scale)
        if completed is not None and cost(completed) < cost(best):
            best = completed
        for node in path:
            node.visits += 1
            node.reward += reward
    return best


def _descend(root: _Node, candidates: Candidates) -> tuple[list[_Node], list[Configuration]]:
    """Descend to an unvisited child of the most promising node; return path and GPUs."""
    path, chosen = [root], list[Configuration]()
    while True:
        node = path[-1]
        if node.untried is None:
            node.untried = Selection(candidates, chosen).find_best(_CHILDREN)[::-1]
        if node.untried:
            child = (node.untried.pop(), _Node())
            node.children.append(child)
            return [*path, child[1]], [*chosen, child[0]]
        if not node.children:
            return path, chosen
        configuration, best = max(node.children, key=lambda child: _promise(child[1], node.visits))
        path.append(best)
        chosen.append(configuration)


def _promise(node: _Node, visits: int) -> float:
    return node.reward / node.visits + _CURIOSITY * math.sqrt(math.log(visits) / node.visits)
