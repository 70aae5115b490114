"""The genetic algorithm of MIG-serving: a chromosome is a set of GPUs, a gene is the configuration of one GPU.

Crossover erases some GPUs and completes the deployment again. Mutation swaps services between slots of one kind on two
GPUs: throughput stays the same, but the GPUs have new combinations of services, which the next crossover can erase. The
best deployments are kept.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence

from pipeline.planner.serving import greedy
from pipeline.planner.serving.candidates import FREE, Candidates, Configuration
from pipeline.planner.serving.tree import Completions, Cost

_POPULATION = 8
_SWAPS = 4
_ERASED = (0.05, 0.4)


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
    chance = random.Random(seed)  # noqa: S311
    completions = Completions(candidates, chance)
    population = [first]
    while time.monotonic() < end and rounds > 0 and cost(population[0]) > bound:
        rounds -= 1
        parent = chance.choice(population)
        mutated = _mutate(candidates, parent, chance)
        if cost(mutated) < cost(parent):
            population = _keep_best([mutated, *population], cost)
        child = _erase(mutated, chance)
        # Half of the children are completed greedily: better than random choices for the last few services.
        completed = (
            completions.complete(child) if chance.random() < 0.5 else greedy.complete(candidates, child, chance, 2)
        )
        if completed is not None and completed not in population:
            population = _keep_best([completed, *population], cost)
    return population[0]


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
    order = sorted(gpus, key=lambda gpu: chance.random() * (1 + _free_share(gpu)), reverse=True)
    return order[count:]


def _free_share(gpu: Configuration) -> float:
    return gpu.services.count(FREE) / len(gpu.services)
