"""The state of the search for a transition: the room on GPUs, the starts of instances, and the legal moves.

Every move obeys the rules of a transition: an instance is placed only at a start that fits, and a service keeps its
required throughput. Therefore every order of moves that is found can be carried out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from pipeline.planner.deployment import Gpu, Instance, mig_gpu
from pipeline.prepare.mig import layouts

# Tolerance of sums, relative to the requirement.
_ROUNDING = 1e-9


class Kind(NamedTuple):
    """The properties that make GPUs interchangeable."""

    model: str
    driver_branch: int | None


class Spot(NamedTuple):
    """A GPU instance by start and profile."""

    start: int
    profile: str


class Layouts:
    """The layouts of one kind of GPU."""

    def __init__(self, gpu: Gpu) -> None:
        self._model = mig_gpu(gpu)
        self._profiles = {profile.name: profile for profile in self._model.profiles}
        self._options = [
            Spot(start, profile.name)
            for profile in layouts.list_slice_profiles(self._model)
            for start in profile.starts
        ]
        self._legal: dict[frozenset[Spot], bool] = {}
        self._placed: dict[tuple[frozenset[Spot], tuple[str, ...]], tuple[int, ...] | None] = {}
        self._best: dict[tuple[frozenset[Spot], str], int | None] = {}

    def slices(self, profile: str) -> int:
        """Return the memory slices of an instance."""
        return self._profiles[profile].memory_slices

    def starts(self, profile: str) -> tuple[int, ...]:
        """Return the possible starts of an instance on an empty GPU."""
        return self._profiles[profile].starts

    def is_legal(self, instances: Iterable[Spot]) -> bool:
        """Return whether the instances fit together."""
        spots = frozenset(instances)
        if spots not in self._legal:
            self._legal[spots] = layouts.explain_misplaced(self._model, self._list_placed(spots)) is None
        return self._legal[spots]

    def place(self, spots: Iterable[Spot], names: Sequence[str]) -> tuple[int, ...] | None:
        """Return starts at which instances of the named profiles fit next to `spots`; `None` if no starts fit."""
        key = frozenset(spots), tuple(names)
        if key not in self._placed:
            profiles = [self._profiles[name] for name in names]
            layout = layouts.place(self._model, profiles, self._list_placed(key[0]))
            self._placed[key] = None if layout is None else tuple(instance.start for instance in layout.instances)
        return self._placed[key]

    def best_start(self, spots: Iterable[Spot], profile: str) -> int | None:
        """Return the start of one more instance that leaves the most room; `None` if the instance does not fit."""
        key = frozenset(spots), profile
        if key not in self._best:
            starts = self._profiles[profile].starts
            fitting = [start for start in starts if self._fits(key[0], Spot(start, profile))]
            self._best[key] = max(
                fitting, key=lambda start: (self.room(key[0] | {Spot(start, profile)}), -start), default=None
            )
        return self._best[key]

    def room(self, instances: Iterable[Spot]) -> int:
        """Return the room: the sum of squared memory slices over all instances that would each still fit."""
        spots = frozenset(instances)
        return sum(self.slices(option.profile) ** 2 for option in self._options if self._fits(spots, option))

    def _fits(self, spots: frozenset[Spot], new: Spot) -> bool:
        return all(new.start != spot.start for spot in spots) and self.is_legal(spots | {new})

    def _list_placed(self, spots: frozenset[Spot]) -> layouts.Placed:
        return tuple((self._profiles[spot.profile], spot.start) for spot in sorted(spots))


def configuration_of(instance: Instance) -> tuple[object, ...]:
    """Return the properties of an instance except its start and figures."""
    return instance.profile, instance.service, instance.processes, instance.batch, instance.share_pct


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
        gpu_of: GPU of each placed occupant.
        total: throughput of each service.
        going: occupants that must end, by service.
        missing: occupants of each target that are not on the target's GPU.
        used_spots: used GPU instances of each GPU.
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
    gpu_of: dict[int, int] = field(default_factory=dict)
    total: dict[str, float] = field(default_factory=dict)
    going: dict[str, set[int]] = field(default_factory=dict)
    missing: dict[int, set[int]] = field(default_factory=dict)
    used_spots: list[frozenset[Spot]] = field(default_factory=list)
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
            gpu_of=dict(self.gpu_of),
            total=dict(self.total),
            going={service: set(numbers) for service, numbers in self.going.items()},
            missing={target: set(numbers) for target, numbers in self.missing.items()},
            used_spots=list(self.used_spots),
            stirred_gpus=set(self.stirred_gpus),
            stirred_services=set(self.stirred_services),
            moves=list(self.moves),
        )

    def begin(self) -> None:
        """Derive the other fields from `placed` and `want`."""
        self.used_spots = [frozenset()] * len(self.placed)
        for gpu, numbers in enumerate(self.placed):
            for number in numbers:
                occupant = self.occupants[number]
                self.gpu_of[number] = gpu
                self.total[occupant.service] = self.total.get(occupant.service, 0.0) + occupant.worth
                if occupant.target is None and gpu not in self.untouchable:
                    self.going.setdefault(occupant.service, set()).add(number)
        for target, members in self.targets.items():
            self.missing[target] = {number for number in members if number not in self.gpu_of}
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
        return len(self.used_spots[gpu]) == len(self.placed[gpu])

    def take(self, number: int) -> None:
        """Remove an occupant."""
        gpu = self.gpu_of.pop(number)
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
            if number in self.gpu_of:
                del self.placed[self.gpu_of[number]][number]
                self._stir(self.gpu_of[number])
            else:
                self.stirred_services.add(occupant.service)
                self.total[occupant.service] = self.total.get(occupant.service, 0.0) + occupant.worth
            self.gpu_of[number] = gpu
            self.placed[gpu][number] = start
            if occupant.target is not None:
                is_last = self.want[gpu] == occupant.target
                (self.missing[occupant.target].discard if is_last else self.missing[occupant.target].add)(number)
        self._stir(gpu)
        self.moves.append(Move(gpu=gpu, placed=tuple(placed)))

    def _stir(self, gpu: int) -> None:
        self.stirred_gpus.add(gpu)
        self.used_spots[gpu] = frozenset(
            Spot(start, str(self.occupants[number].profile))
            for number, start in self.placed[gpu].items()
            if start is not None
        )
