"""The algorithms of MIG-serving (Tan et al., arXiv 2109.11067): greedy, tree search and genetic.

The score of a configuration is `sum of lack * min(utility, lack)` over its services; the lack is the share of a
service's rate that is not served yet. Throughput beyond the lack does not count, because a small service would get a
whole GPU otherwise. Candidates mix at most two services, and more services only if two would exceed their lack.

- Greedy: each further GPU gets the configuration with the highest score.
- Tree search: a node is a set of GPUs, each child adds one of the ten best configurations, and random completions
  judge the next configuration. A completion draws good configurations from a pool until each of them would exceed the
  lack of a service, and then continues with the greedy algorithm.
- Genetic: a chromosome is a set of GPUs, a gene is the configuration of one GPU. Crossover erases some GPUs and
  completes the deployment again. Mutation swaps services between slots of one kind on two GPUs: throughput stays the
  same, but the GPUs have new combinations of services, which the next crossover can erase. The best are kept.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pipeline.planner.serving.problem import KindIndex, Problem, ServiceIndex
from pipeline.planner.serving.solution import FilledGpu, is_enough

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# Only the services that gain most are paired: all pairs of a thousand services would take too long.
_PAIRED = 40
_PROPOSED = 30
FREE = ServiceIndex(-1)
"""The mark of a free slot, in place of a service."""
_CHILDREN = 10
_POOL = 1000
_AMONG = 3
# Share of its throughput by which a configuration of the pool may exceed the lack.
_WASTE = 0.02
# Weight of rarely visited nodes; small because costs differ by only a few per cent.
_CURIOSITY = 0.02
_POPULATION = 8
_SWAPS = 4
_ERASED = (0.05, 0.4)


@dataclass(frozen=True, slots=True)
class Configuration:
    """The position of a partition, and the service in each of its slots (`FREE` without a service)."""

    partition: int
    services: tuple[ServiceIndex, ...]


class Candidates:
    """Promising configurations for a problem.

    Attributes:
        utility: throughput divided by rate, by `[service, kind]`; 0 without a configuration.
    """

    def __init__(self, problem: Problem) -> None:
        import numpy as np

        self.problem = problem
        self.utility: NDArray[np.float64] = np.zeros((len(problem.services), len(problem.kinds)))
        for number, options in enumerate(problem.options):
            for kind, option in options.items():
                self.utility[number, kind] = problem.share(option)
        self.slots = [partition.slots for partition in problem.partitions]
        self._counts = np.array(
            [
                [partition.counts.get(KindIndex(k), 0) for k in range(len(problem.kinds))]
                for partition in problem.partitions
            ]
        )
        self._most = problem.limits.services_per_gpu or max(map(len, self.slots), default=1)
        self._may_share = _allowed_pairs(problem) if self._most > 1 else np.eye(len(problem.services), dtype=bool)

    def find_best(self, lack: NDArray[np.float64], gpus_left: Sequence[float], count: int = 1) -> list[Configuration]:
        """Return the configurations with the highest scores for `lack` `[service]` on the `gpus_left` `[model]`."""
        gain = lack[:, None] * self.utility.clip(max=lack[:, None])
        scored = {
            configuration: self.score(configuration, lack) for configuration in self._propose(gain, lack, gpus_left)
        }
        ranked = sorted(scored.items(), key=lambda ranking: (-ranking[1], ranking[0].partition, ranking[0].services))
        return [configuration for configuration, score in ranked[:count] if score > 0]

    def propose_by_price(self, price: NDArray[np.float64], gpus_left: Sequence[float]) -> list[Configuration]:
        """Return the configurations that are worth most if each service's rate has the price `[service]`."""
        return list(self._propose(price[:, None] * self.utility, None, gpus_left))

    def shares_of(self, configuration: Configuration) -> dict[ServiceIndex, float]:
        """Return the share of its rate that each service gets from a configuration."""
        shares: dict[ServiceIndex, float] = {}
        for kind, service in zip(self.slots[configuration.partition], configuration.services, strict=True):
            if service >= 0:
                shares[service] = shares.get(service, 0.0) + float(self.utility[service, kind])
        return shares

    def score(self, configuration: Configuration, lack: NDArray[np.float64]) -> float:
        """Return the score of a configuration."""
        return sum(
            float(lack[service]) * min(share, float(lack[service]))
            for service, share in self.shares_of(configuration).items()
        )

    def fill(self, configuration: Configuration) -> FilledGpu:
        """Return the GPU of a configuration."""
        options = self.problem.options
        return FilledGpu(
            self.problem.partitions[configuration.partition],
            tuple(
                options[service][kind] if service >= 0 else None
                for kind, service in zip(self.slots[configuration.partition], configuration.services, strict=True)
            ),
        )

    def is_allowed(self, services: frozenset[ServiceIndex]) -> bool:
        """Return whether the services may share a GPU."""
        return len(services) <= self._most and all(self._may_share[a, b] for a in services for b in services)

    def _propose(
        self, gain: NDArray[np.float64], lack: NDArray[np.float64] | None, gpus_left: Sequence[float]
    ) -> Iterator[Configuration]:
        usable = [number for number, partition in enumerate(self.problem.partitions) if gpus_left[partition.model] > 0]
        if usable:
            yield from self._pairs(gain, usable)
            for partition in usable:
                yield self._mix(gain, lack, partition)

    def _pairs(self, gain: NDArray[np.float64], usable: Sequence[int]) -> Iterator[Configuration]:
        import numpy as np

        counts = self._counts[usable]
        alone = (gain @ counts.T).max(axis=1)
        ranked = np.argsort(-alone, kind="stable")[:_PAIRED]
        ranked = ranked[alone[ranked] > 0]
        if not len(ranked):
            return
        gains = gain[ranked]
        worth = np.maximum(gains[:, None, :], gains[None, :, :]) @ counts.T
        worth[~self._may_share[np.ix_(ranked, ranked)]] = -1
        worth[np.tril_indices(len(ranked), -1)] = -1
        for position in np.argsort(-worth, axis=None, kind="stable")[:_PROPOSED]:
            first, second, number = np.unravel_index(position, worth.shape)
            if worth[first, second, number] > 0:
                pair = ServiceIndex(int(ranked[first])), ServiceIndex(int(ranked[second]))
                partition = usable[int(number)]
                yield Configuration(
                    partition,
                    tuple(self._choose(gain, pair, kind) for kind in self.slots[partition]),
                )

    @staticmethod
    def _choose(gain: NDArray[np.float64], pair: tuple[ServiceIndex, ServiceIndex], kind: KindIndex) -> ServiceIndex:
        service = max(pair, key=lambda service: gain[service, kind])
        return service if gain[service, kind] > 0 else FREE

    def _mix(self, gain: NDArray[np.float64], lack: NDArray[np.float64] | None, partition: int) -> Configuration:
        """Assign each slot to the service that gains most from it, larger slots first."""
        import numpy as np

        gains, allowed = gain.copy(), np.ones(len(gain), dtype=bool)
        still = None if lack is None else lack.copy()
        kinds = self.slots[partition]
        services = [FREE] * len(kinds)
        inside: set[ServiceIndex] = set()
        for slot in sorted(range(len(kinds)), key=lambda slot: -kinds[slot]):
            kind = kinds[slot]
            service = ServiceIndex(int(np.argmax(np.where(allowed, gains[:, kind], 0))))
            if not allowed[service] or gains[service, kind] <= 0:
                continue
            services[slot] = service
            if service not in inside:
                inside.add(service)
                allowed &= self._may_share[service]
                if len(inside) >= self._most:
                    only = np.zeros(len(gain), dtype=bool)
                    only[list(inside)] = True
                    allowed &= only
            if still is not None and lack is not None:
                still[service] = max(0.0, still[service] - self.utility[service, kind])
                gains[service] = lack[service] * self.utility[service].clip(max=still[service])
        return Configuration(partition, tuple(services))


def _allowed_pairs(problem: Problem) -> NDArray[np.bool_]:
    """Return which services may share a GPU, by `[service, service]`."""
    import numpy as np

    number = {service.name: position for position, service in enumerate(problem.services)}
    allowed = np.ones((len(number), len(number)), dtype=bool)
    for group in problem.limits.apart:
        members = [number[name] for name in group]
        allowed[np.ix_(members, members)] = False
    np.fill_diagonal(allowed, True)
    return allowed


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


def complete_greedily(
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


Cost = Callable[[Sequence[Configuration]], float]
"""The quantity to minimise; `len` for the number of GPUs."""
Exploration = Callable[[Candidates, list[Configuration], random.Random, Cost], Iterator[list[Configuration]]]
"""A search without end, which yields its best GPUs after each round."""


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
            useful = np.minimum(self._given, selection.lack)
            is_fit = useful.sum(axis=1) >= (1 - _WASTE) * self._total
            score = np.where(is_fit, useful @ selection.lack, 0)
            for position in np.flatnonzero(is_fit):
                if selection.gpus_left[partitions[self._pool[position].partition].model] <= 0:
                    score[position] = 0
            best = [int(position) for position in np.argsort(-score)[:_CHILDREN] if score[position] > 0]
            if not best:
                break
            selection.add(self._pool[self._chance.choice(best)])
        return complete_greedily(self.candidates, selection.gpus, self._chance, _AMONG)


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
    explore: Exploration,
    *,
    seed: int,
    time_limit_s: float,
    bound: float = 0,
    rounds: float = math.inf,
    cost: Cost = len,
) -> list[Configuration]:
    """Return the best GPUs that `grow_tree` or `evolve` finds, at least as good as `first`.

    The search stops at the time limit, after `rounds` rounds, or when the cost reaches `bound`.
    """
    end, best = time.monotonic() + time_limit_s, first
    improvements = explore(candidates, first, random.Random(seed), cost)  # noqa: S311
    while time.monotonic() < end and rounds > 0 and cost(best) > bound:
        rounds -= 1
        best = next(improvements)
    return best


def grow_tree(
    candidates: Candidates, first: list[Configuration], chance: random.Random, cost: Cost
) -> Iterator[list[Configuration]]:
    """Yield the best GPUs after each completion of a node of the tree."""
    completions = Completions(candidates, chance)
    root, best, scale = _Node(), first, max(cost(first), 1)
    while True:
        path, gpus = _descend(root, candidates)
        completed = completions.complete(gpus)
        reward = 0.0 if completed is None else 1 - cost(completed) / (2 * scale)
        if completed is not None and cost(completed) < cost(best):
            best = completed
        for node in path:
            node.visits += 1
            node.reward += reward
        yield best


def _descend(root: _Node, candidates: Candidates) -> tuple[list[_Node], list[Configuration]]:
    """Descend to an unvisited child of the most promising node; return path and GPUs."""
    path, gpus = [root], list[Configuration]()
    while True:
        node = path[-1]
        if node.untried is None:
            node.untried = Selection(candidates, gpus).find_best(_CHILDREN)[::-1]
        if node.untried:
            child = (node.untried.pop(), _Node())
            node.children.append(child)
            return [*path, child[1]], [*gpus, child[0]]
        if not node.children:
            return path, gpus
        visits = math.log(node.visits)
        configuration, best = max(
            node.children,
            key=lambda child: child[1].reward / child[1].visits + _CURIOSITY * math.sqrt(visits / child[1].visits),
        )
        path.append(best)
        gpus.append(configuration)


def evolve(
    candidates: Candidates, first: list[Configuration], chance: random.Random, cost: Cost
) -> Iterator[list[Configuration]]:
    """Yield the best GPUs of the population after each child."""
    completions = Completions(candidates, chance)
    population = [first]
    while True:
        parent = chance.choice(population)
        mutated = _mutate(candidates, parent, chance)
        if cost(mutated) < cost(parent):
            population = _keep_best([mutated, *population], cost)
        child = _erase(mutated, chance)
        # Half of the children are completed greedily: better than random choices for the last few services.
        completed = (
            completions.complete(child) if chance.random() < 0.5 else complete_greedily(candidates, child, chance, 2)
        )
        if completed is not None and completed not in population:
            population = _keep_best([completed, *population], cost)
        yield population[0]


def _keep_best(deployments: Sequence[list[Configuration]], cost: Cost) -> list[list[Configuration]]:
    """Keep the best deployments; among equal deployments, keep the first, which is the newest."""
    return sorted(deployments, key=cost)[:_POPULATION]


def _mutate(candidates: Candidates, parent: Sequence[Configuration], chance: random.Random) -> list[Configuration]:
    gpus = list(parent)
    for _ in range(chance.randint(1, _SWAPS)):
        first, second = chance.randrange(len(gpus)), chance.randrange(len(gpus))
        swapped = _swap(candidates, gpus[first], gpus[second], chance)
        if first != second and swapped is not None:
            gpus[first], gpus[second] = swapped
    return gpus


def _swap(
    candidates: Candidates, one: Configuration, other: Configuration, chance: random.Random
) -> tuple[Configuration, Configuration] | None:
    """Swap the services of two slots of one kind; `None` if no such slots exist or limits forbid the swap."""
    kinds = [candidates.slots[configuration.partition] for configuration in (one, other)]
    pairs = [(i, j) for i, kind in enumerate(kinds[0]) for j, same in enumerate(kinds[1]) if kind == same]
    if not pairs:
        return None
    i, j = chance.choice(pairs)
    one_services, other_services = list(one.services), list(other.services)
    one_services[i], other_services[j] = other_services[j], one_services[i]
    if not all(candidates.is_allowed(frozenset(services) - {FREE}) for services in (one_services, other_services)):
        return None
    return Configuration(one.partition, tuple(one_services)), Configuration(other.partition, tuple(other_services))


def _erase(gpus: Sequence[Configuration], chance: random.Random) -> list[Configuration]:
    count = max(1, round(chance.uniform(*_ERASED) * len(gpus)))
    order = sorted(
        gpus, key=lambda gpu: chance.random() * (1 + gpu.services.count(FREE) / len(gpu.services)), reverse=True
    )
    return order[count:]
