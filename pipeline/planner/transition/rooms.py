"""The room on GPUs: which GPU instances fit next to each other, with cached results."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pipeline.planner.deployment import Gpu, Instance, mig_gpu
from pipeline.prepare.mig import layouts


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
