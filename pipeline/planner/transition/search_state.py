"""The state of the search for a transition: the GPUs and starts of instances, and the legal moves.

Every move obeys the rules of a transition: an instance is placed only at a start that fits, and a service keeps its
required throughput. Therefore every order of moves that is found can be carried out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipeline.planner.deployment import Instance
from pipeline.planner.transition.rooms import Kind, Layouts, Spot

# Tolerance of sums, relative to the requirement.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupant:
    """A current instance that ends, or an instance of the new deployment.

    Attributes:
        target: position of the instance's GPU in the new deployment; `None` for an instance that ends.
        instance: instance with its current start, or with its start in the new plan.
        worth: throughput of the instance per second.
    """

    number: int
    kind: Kind
    target: int | None
    instance: Instance
    worth: float

    @property
    def service(self) -> str:
        return self.instance.service

    @property
    def profile(self) -> str | None:
        return self.instance.profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Instances that are placed on `gpu`, each at a start (`None` if undivided), or end if `gpu` is `None`."""

    gpu: int | None
    placed: tuple[tuple[int, int | None], ...]


@dataclass(slots=True, kw_only=True)
class SearchState:
    """The state between two moves, with GPUs and occupants by number.

    Attributes:
        requirements: throughput that each service must keep.
        untouchable: GPUs that must not change.
        targets: occupants of each GPU of the new deployment.
        placed: occupants of each GPU, with their starts.
        want: target of each GPU; `None` without a target.
        unassigned: targets without a GPU.
        where: GPU of each placed occupant.
        total: throughput of each service.
        going: occupants that must end, by service.
        missing: occupants of each target that are not on the target's GPU.
        taken: used GPU instances of each GPU.
        stirred_gpus: GPUs that changed since the last search for free moves.
        stirred_services: services that changed since the last search for free moves.
    """

    occupants: Sequence[Occupant]
    kinds: Sequence[Kind]
    requirements: Mapping[str, float]
    rooms: Mapping[Kind, Layouts]
    untouchable: frozenset[int]
    targets: Mapping[int, tuple[int, ...]]
    placed: list[dict[int, int | None]]
    want: list[int | None]
    unassigned: set[int]
    where: dict[int, int] = field(default_factory=dict)
    total: dict[str, float] = field(default_factory=dict)
    going: dict[str, set[int]] = field(default_factory=dict)
    missing: dict[int, set[int]] = field(default_factory=dict)
    taken: list[frozenset[Spot]] = field(default_factory=list)
    stirred_gpus: set[int] = field(default_factory=set)
    stirred_services: set[str] = field(default_factory=set)
    moves: list[Move] = field(default_factory=list)

    def copy(self) -> SearchState:
        """Copy the state, to test moves on the copy."""
        return replace(
            self,
            placed=[dict(numbers) for numbers in self.placed],
            want=list(self.want),
            unassigned=set(self.unassigned),
            where=dict(self.where),
            total=dict(self.total),
            going={service: set(numbers) for service, numbers in self.going.items()},
            missing={target: set(numbers) for target, numbers in self.missing.items()},
            taken=list(self.taken),
            stirred_gpus=set(self.stirred_gpus),
            stirred_services=set(self.stirred_services),
            moves=list(self.moves),
        )

    def begin(self) -> None:
        """Derive the other fields from `placed` and `want`."""
        self.taken = [frozenset()] * len(self.placed)
        for gpu, numbers in enumerate(self.placed):
            for number in numbers:
                occupant = self.occupants[number]
                self.where[number] = gpu
                self.total[occupant.service] = self.total.get(occupant.service, 0.0) + occupant.worth
                if occupant.target is None and gpu not in self.untouchable:
                    self.going.setdefault(occupant.service, set()).add(number)
        for target, members in self.targets.items():
            self.missing[target] = {number for number in members if number not in self.where}
        for gpu in range(len(self.placed)):
            self._stir(gpu)
        self.stirred_services.update(self.going)

    @property
    def is_done(self) -> bool:
        """True if the new deployment is reached, except for unused GPU instances."""
        return not any(self.going.values()) and not any(self.missing.values())

    def surplus(self, service: str) -> float:
        """Return the throughput of a service beyond its requirement."""
        required = self.requirements.get(service, 0.0)
        return self.total.get(service, 0.0) - required + _ROUNDING * max(required, 1.0)

    def give(self, target: int, gpu: int) -> None:
        """Assign a target to a GPU; the target's occupants on the GPU are no longer missing."""
        self.want[gpu] = target
        self.unassigned.discard(target)
        self.missing[target] -= self.placed[gpu].keys()
        self.stirred_gpus.add(gpu)

    def is_divided(self, gpu: int) -> bool:
        """Return whether all occupants of a GPU, if any, are on GPU instances."""
        return len(self.taken[gpu]) == len(self.placed[gpu])

    def take(self, number: int) -> None:
        """Remove an occupant."""
        gpu = self.where.pop(number)
        del self.placed[gpu][number]
        occupant = self.occupants[number]
        self.total[occupant.service] -= occupant.worth
        self.going.get(occupant.service, set()).discard(number)
        self.stirred_services.add(occupant.service)
        self._stir(gpu)
        self.moves.append(Move(gpu=None, placed=((number, None),)))

    def put(self, gpu: int, placed: Sequence[tuple[int, int | None]]) -> None:
        """Place occupants, which are new or from other GPUs, on a GPU."""
        for number, start in placed:
            occupant = self.occupants[number]
            if number in self.where:
                del self.placed[self.where[number]][number]
                self._stir(self.where[number])
            else:
                self.stirred_services.add(occupant.service)
                self.total[occupant.service] = self.total.get(occupant.service, 0.0) + occupant.worth
            self.where[number] = gpu
            self.placed[gpu][number] = start
            if occupant.target is not None:
                is_last = self.want[gpu] == occupant.target
                (self.missing[occupant.target].discard if is_last else self.missing[occupant.target].add)(number)
        self._stir(gpu)
        self.moves.append(Move(gpu=gpu, placed=tuple(placed)))

    def _stir(self, gpu: int) -> None:
        self.stirred_gpus.add(gpu)
        self.taken[gpu] = frozenset(
            Spot(start, str(self.occupants[number].profile))
            for number, start in self.placed[gpu].items()
            if start is not None
        )
