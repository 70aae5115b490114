"""Promising configurations of one GPU, as proposed by MIG-serving (Tan et al., arXiv 2109.11067).

The score of a configuration is `sum of lack * min(utility, lack)` over its services; the lack is the share of a
service's rate that is not served yet. Throughput beyond the lack does not count, because a small service would get a
whole GPU otherwise. Candidates mix at most two services, and more services only if two would exceed their lack.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pipeline.planner.serving.problem import KindIndex, Problem, ServiceIndex
from pipeline.planner.serving.solution import FilledGpu

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Only the services that gain most are paired: all pairs of a thousand services would take too long.
_PAIRED = 40
_PROPOSED = 30
FREE = ServiceIndex(-1)
"""The mark of a free slot, in place of a service."""


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
        worth = price[:, None] * self.utility
        return list(self._propose(worth, None, gpus_left))

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
        chosen = np.argsort(-alone, kind="stable")[:_PAIRED]
        chosen = chosen[alone[chosen] > 0]
        if not len(chosen):
            return
        gains = gain[chosen]
        worth = np.maximum(gains[:, None, :], gains[None, :, :]) @ counts.T
        worth[~self._may_share[np.ix_(chosen, chosen)]] = -1
        worth[np.tril_indices(len(chosen), -1)] = -1
        for position in np.argsort(-worth, axis=None, kind="stable")[:_PROPOSED]:
            first, second, number = np.unravel_index(position, worth.shape)
            if worth[first, second, number] > 0:
                pair = ServiceIndex(int(chosen[first])), ServiceIndex(int(chosen[second]))
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
