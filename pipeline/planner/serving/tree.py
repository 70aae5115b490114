"""Monte-Carlo tree search of MIG-serving: the next configuration is chosen by random completions.

A node is a set of GPUs; its children add one of the ten configurations with the highest scores. A completion takes
random good configurations from a pool while these give no service too much, then ends greedily.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pipeline.planner.serving import greedy
from pipeline.planner.serving.candidates import Candidates, Configuration

Cost = Callable[[Sequence[Configuration]], float]
"""The cost to minimise; `len` for the number of GPUs."""

_CHILDREN = 10
_POOL = 1000
_AMONG = 3
# While the pool is used, this share of what a configuration gives may exceed the lack.
_WASTE = 0.02
# Weight of rarely visited nodes; costs differ by a few per cent.
_CURIOSITY = 0.02


@dataclass(slots=True)
class _Node:
    """A node of the tree; its GPUs are those on the path to it."""

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
        """Return GPUs that serve all services and include the given ones; `None` if there are not enough."""
        import numpy as np

        chosen_gpus = list(gpus)
        lack = greedy.lack_of(self.candidates, chosen_gpus)
        num_left = greedy.count_gpus_left(self.candidates, chosen_gpus)
        partitions = self.candidates.problem.partitions
        while lack.any() and len(self._pool):
            taken = np.minimum(self._given, lack)
            is_fit = taken.sum(axis=1) >= (1 - _WASTE) * self._total
            score = np.where(is_fit, taken @ lack, 0)
            for position in np.flatnonzero(is_fit):
                if num_left[partitions[self._pool[position].partition].model] <= 0:
                    score[position] = 0
            best = [int(position) for position in np.argsort(-score)[:_CHILDREN] if score[position] > 0]
            if not best:
                break
            chosen = self._pool[self._chance.choice(best)]
            chosen_gpus.append(chosen)
            greedy.take(self.candidates, chosen, lack)
            num_left[partitions[chosen.partition].model] -= 1
        return greedy.complete(self.candidates, chosen_gpus, self._chance, _AMONG)


def _collect_pool(candidates: Candidates) -> list[Configuration]:
    """Collect the greedy algorithm's candidates at each of its steps."""
    lack, num_left = greedy.lack_of(candidates, []), greedy.count_gpus_left(candidates, [])
    pool: dict[Configuration, None] = {}
    while lack.any() and len(pool) < _POOL:
        best = candidates.find_best(lack, num_left, _CHILDREN)
        if not best:
            break
        pool |= dict.fromkeys(best)
        greedy.take(candidates, best[0], lack)
        num_left[candidates.problem.partitions[best[0].partition].model] -= 1
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
    """Return the best GPUs found until the time limit, the number of rounds or the cost bound is reached."""
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
    """Descend to the most promising node with an untried child, then to that child; return path and GPUs."""
    path, chosen = [root], list[Configuration]()
    while True:
        node = path[-1]
        if node.untried is None:
            lack = greedy.lack_of(candidates, chosen)
            node.untried = candidates.find_best(lack, greedy.count_gpus_left(candidates, chosen), _CHILDREN)[::-1]
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
