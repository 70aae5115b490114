"""The positions of all instances while a transition is planned, and the allowed moves.

Every move keeps the two rules of a transition: an instance is placed only where it fits, and a service keeps at least
its requirement. So every order of moves that is found may be carried out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipeline.planner.deployment import Instance
from pipeline.planner.transition.rooms import Kind, Layouts, Spot

# Figures are sums of decimal fractions: a deficit below this share of the requirement is ignored.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupant:
    """An instance of the current deployment that goes, or one of the target deployment.

    Attributes:
        target: the position of its GPU in the target deployment; `None` if it goes.
        instance: with its current start, or the planned one.
        worth: throughput per second.
    """

    number: int
    kind: Kind
    target: int | None
    instance: Instance
    worth: float

    @property
    def service(self) -> str:
        """The service that its instance serves."""
        return self.instance.service

    @property
    def profile(self) -> str | None:
        """The full name; `None` on an undivided GPU."""
        return self.instance.profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A move: instances come to a GPU, each with a start (`None` if undivided), or end where they are."""

    gpu: int | None
    placed: tuple[tuple[int, int | None], ...]


@dataclass(slots=True, kw_only=True)
class SearchState:
    """The state between two moves. GPUs and occupants are identified by number.

    Attributes:
        occupants: all of them.
        kinds: of each GPU.
        requirements: of each service.
        rooms: of each kind of GPU with MIG.
        placed: the occupants of each GPU, with their starts.
        where: the GPU of each placed occupant.
        total: throughput of each service.
        want: the target assigned to each GPU; `None` for none.
        unassigned: the targets without a GPU.
        untouchable: GPUs that must not change.
        taken: the occupied GPU instances of each GPU.
        stirred_gpus, stirred_services: changed since their free moves were last searched.
        moves: made so far.
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
        """Copy the state, to try moves."""
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
        """Compute the fields that depend on `placed` and `want`."""
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
        """True if the target is reached, apart from unused GPU instances."""
        return not any(self.going.values()) and not any(self.missing.values())

    def surplus(self, service: str) -> float:
        """Return the throughput of a service beyond its requirement."""
        required = self.requirements.get(service, 0.0)
        return self.total.get(service, 0.0) - required + _ROUNDING * max(required, 1.0)

    def give(self, target: int, gpu: int) -> None:
        """Assign a target to a GPU; its instances already on the GPU are then in place."""
        self.want[gpu] = target
        self.unassigned.discard(target)
        self.missing[target] -= self.placed[gpu].keys()
        self.stirred_gpus.add(gpu)

    def is_divided(self, gpu: int) -> bool:
        """Return whether MIG instances can be created on a GPU: all of its occupants, if any, are in one."""
        return len(self.taken[gpu]) == len(self.placed[gpu])

    def take(self, number: int) -> None:
        """Remove an old occupant, or a new one from a temporary place."""
        gpu = self.where.pop(number)
        del self.placed[gpu][number]
        occupant = self.occupants[number]
        self.total[occupant.service] -= occupant.worth
        self.going.get(occupant.service, set()).discard(number)
        self.stirred_services.add(occupant.service)
        self._stir(gpu)
        self.moves.append(Move(gpu=None, placed=((number, None),)))

    def put(self, gpu: int, placed: Sequence[tuple[int, int | None]]) -> None:
        """Bring occupants to a GPU: new ones, or ones from other GPUs."""
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
