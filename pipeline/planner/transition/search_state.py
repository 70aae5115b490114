"""Which instance is where while a transition is thought out, and the moves that are allowed.

Every move keeps the two rules of a transition: an instance is put only where it fits beside what is there, and a
service keeps at least what is required of it. So whatever order of moves is found is one that may be carried out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pipeline.planner.deployment import Instance
from pipeline.planner.transition.rooms import Kind, Layouts, Spot

# Figures are sums of decimal fractions: what is short by less than this share of the requirement is not short.
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupant:
    """An instance that is there today and goes, or one of tomorrow.

    Attributes:
        target: the position of its GPU in tomorrow's deployment; `None` for one that goes.
        instance: at the start that it has today, or that tomorrow's plan gives it.
        worth: throughput a second.
    """

    number: int
    kind: Kind
    target: int | None
    instance: Instance
    worth: float

    @property
    def service(self) -> str:
        """The service whose instance it is."""
        return self.instance.service

    @property
    def profile(self) -> str | None:
        """The full name; `None` on an undivided GPU."""
        return self.instance.profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Instances come to a GPU, each at a start, `None` on an undivided one; or leave where they are, for good."""

    gpu: int | None
    placed: tuple[tuple[int, int | None], ...]


@dataclass(slots=True, kw_only=True)
class SearchState:
    """The state between two moves. GPUs and occupants go by their number.

    Attributes:
        occupants: all of them.
        kinds: of each GPU.
        requirements: of each service.
        rooms: of each kind of GPU that can be divided.
        placed: the occupants of each GPU, with their starts.
        where: the GPU of each occupant that is on one.
        total: what each service has.
        want: the target that each GPU is to become; `None` for none.
        unassigned: the targets that no GPU is to become yet.
        untouchable: GPUs that stay as they are.
        taken: the GPU instances with somebody on them, of each GPU.
        stirred_gpus, stirred_services: those that have changed since somebody looked what they allow.
        moves: those made so far.
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
        """Copy the state, to try moves on."""
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
        """Derive what follows from `placed` and `want`."""
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
        """True if tomorrow is reached, but for GPU instances that nobody is on."""
        return not any(self.going.values()) and not any(self.missing.values())

    def surplus(self, service: str) -> float:
        """Return what a service has beyond what it must keep."""
        required = self.requirements.get(service, 0.0)
        return self.total.get(service, 0.0) - required + _ROUNDING * max(required, 1.0)

    def give(self, target: int, gpu: int) -> None:
        """Let a GPU become one of tomorrow; what of it is there already has found its place."""
        self.want[gpu] = target
        self.unassigned.discard(target)
        self.missing[target] -= self.placed[gpu].keys()
        self.stirred_gpus.add(gpu)

    def is_divided(self, gpu: int) -> bool:
        """Return whether MIG instances can be made on it: those on it, if any, have one."""
        return len(self.taken[gpu]) == len(self.placed[gpu])

    def take(self, number: int) -> None:
        """Take away an occupant that can go, or one of tomorrow from a place that is not its last."""
        gpu = self.where.pop(number)
        del self.placed[gpu][number]
        occupant = self.occupants[number]
        self.total[occupant.service] -= occupant.worth
        self.going.get(occupant.service, set()).discard(number)
        self.stirred_services.add(occupant.service)
        self._stir(gpu)
        self.moves.append(Move(gpu=None, placed=((number, None),)))

    def put(self, gpu: int, placed: Sequence[tuple[int, int | None]]) -> None:
        """Bring occupants to a GPU, from nowhere or from other GPUs."""
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
