"""Which GPU instances of a model fit beside which, asked often and answered from memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pipeline.planner.deployment import Gpu, Instance, mig_gpu
from pipeline.prepare.mig import partitions


class Kind(NamedTuple):
    """What GPUs must have in common for one to stand for another."""

    model: str
    driver_branch: int | None


class Spot(NamedTuple):
    """A GPU instance by its first memory slice and profile."""

    start: int
    profile: str


class Rooms:
    """The layouts of one kind of GPU. Every method takes the instances that are there in any order."""

    def __init__(self, gpu: Gpu) -> None:
        self._model = mig_gpu(gpu)
        self._profiles = {profile.name: profile for profile in self._model.profiles}
        self._options = [
            Spot(start, profile.name)
            for profile in partitions.list_slice_profiles(self._model)
            for start in profile.starts
        ]
        self._legal: dict[frozenset[Spot], bool] = {}
        self._placed: dict[tuple[frozenset[Spot], tuple[str, ...]], tuple[int, ...] | None] = {}
        self._best: dict[tuple[frozenset[Spot], str], int | None] = {}

    def name(self, request: str) -> str:
        """The full name of a profile, which may be given as `2g`."""
        return partitions.resolve(self._model, request).name

    def slices(self, profile: str) -> int:
        """The memory slices of an instance."""
        return self._profiles[profile].memory_slices

    def starts(self, profile: str) -> tuple[int, ...]:
        """Where an instance may begin on an empty GPU."""
        return self._profiles[profile].starts

    def is_legal(self, there: Iterable[Spot]) -> bool:
        """Whether all of them can be there at once."""
        spots = frozenset(there)
        if spots not in self._legal:
            self._legal[spots] = partitions.explain_misplaced(self._model, self._of(spots)) is None
        return self._legal[spots]

    def place(self, there: Iterable[Spot], wanted: Sequence[str]) -> tuple[int, ...] | None:
        """The starts at which instances of these profiles fit beside others; `None` if they do not."""
        asked = frozenset(there), tuple(wanted)
        if asked not in self._placed:
            profiles = [self._profiles[name] for name in wanted]
            layout = partitions.place(self._model, profiles, self._of(asked[0]))
            self._placed[asked] = None if layout is None else tuple(each.start for each in layout.instances)
        return self._placed[asked]

    def best_start(self, there: Iterable[Spot], profile: str) -> int | None:
        """Where one more instance leaves the most room to others; `None` if it does not fit."""
        asked = frozenset(there), profile
        if asked not in self._best:
            starts = self._profiles[profile].starts
            fitting = [start for start in starts if self._fits(asked[0], Spot(start, profile))]
            self._best[asked] = max(
                fitting, key=lambda start: (self.room(asked[0] | {Spot(start, profile)}), -start), default=None
            )
        return self._best[asked]

    def room(self, there: Iterable[Spot]) -> int:
        """How much could still be added: the memory slices of every single instance that fits."""
        spots = frozenset(there)
        return sum(self.slices(option.profile) ** 2 for option in self._options if self._fits(spots, option))

    def _fits(self, there: frozenset[Spot], new: Spot) -> bool:
        return all(new.start != spot.start for spot in there) and self.is_legal(there | {new})

    def _of(self, spots: frozenset[Spot]) -> partitions.Placed:
        return tuple((self._profiles[spot.profile], spot.start) for spot in sorted(spots))


def configuration(instance: Instance) -> tuple[object, ...]:
    """What makes two instances do the same: all but where they are and the figures."""
    return instance.profile, instance.service, instance.processes, instance.batch, instance.share_pct
