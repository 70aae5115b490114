"""Legal combinations of GPU instances on one GPU, and their places. Pure: touches no hardware.

A layout is legal when the placements of its instances do not overlap on the memory-slice axis, their compute slices
suffice, no profile is used more often than the driver allows, and the units that exist once are given once.
Source of the limits: NVIDIA MIG User Guide (concepts, supported profiles) and nvml.h, API 13 (profiles with engines).
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pipeline.base.domain import mig_names
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import format_count
from pipeline.prepare.mig.profiles import MigGpu, Profile

AUTO = "auto"
SIZE_PROFILE: Mapping[str, str] = MappingProxyType({"S": "1g", "M": "2g", "L": "3g"})

# Instances of a GPU with their first memory slices.
Placed = tuple[tuple[Profile, int], ...]
# Before this branch, a 4-slice and a 3-slice instance of four memory slices each could not coexist.
# Source: NVIDIA MIG User Guide, concepts; seen to work with driver 550.54.14 on an A100-80GB.
_HALVES_COEXIST_BRANCH = 510
_WITH_ENGINES = ("+me", "+me.all")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One GPU instance of a layout.

    Attributes:
        job: its position from 0 among what was asked for; of a divided one, among the GPU instances.
        start: its first memory slice.
        parts: compute slices of each of its compute instances; none for a single one that has all of it.
    """

    job: int
    profile: Profile
    start: int
    parts: tuple[int, ...] = ()

    @property
    def device_names(self) -> tuple[str, ...]:
        """Names of its MIG devices, one a compute instance: `1c.3g.40gb`, or `3g.40gb` if it has all of it."""
        return tuple(mig_names.name_of(self.profile.name, part) for part in self.parts or (None,))

    def __str__(self) -> str:
        return mig_names.format_division(self.profile.name, [f"{part}c" for part in self.parts])


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Instances that fit together, in the order of the jobs."""

    instances: tuple[Instance, ...]

    @property
    def devices(self) -> tuple[tuple[Instance, str], ...]:
        """MIG devices in the order of the jobs: GPU instance and name of each."""
        return tuple((instance, name) for instance in self.instances for name in instance.device_names)

    @property
    def creation_order(self) -> tuple[Instance, ...]:
        """Instances in the order of creation, larger first: in another order some drivers refuse what fits."""
        return tuple(
            sorted(self.instances, key=lambda i: (-i.profile.memory_slices, -i.profile.compute_slices, i.start))
        )


def list_slice_profiles(gpu: MigGpu) -> tuple[Profile, ...]:
    """List the profiles that `1g`, `2g`, ... name: for each number of slices the plain one with the least memory."""
    smallest: dict[int, Profile] = {}
    for profile in list_plain_profiles(gpu):
        smallest.setdefault(profile.compute_slices, profile)
    return tuple(smallest.values())


def list_plain_profiles(gpu: MigGpu) -> tuple[Profile, ...]:
    """List the profiles without a suffix, smaller first: `list_slice_profiles`, and 1g with twice the memory."""
    return tuple(profile for profile in gpu.profiles if not profile.suffix)


def resolve(gpu: MigGpu, request: str) -> Profile:
    """Resolve a number of slices (`2g`) or a full name (`3g.20gb`, `1g.10gb+me`) to a profile."""
    name = request.strip().lower()
    by_name = {profile.name: profile for profile in gpu.profiles}
    by_name |= {f"{profile.compute_slices}g": profile for profile in list_slice_profiles(gpu)}
    if name not in by_name:
        raise ConfigError(f"{gpu.name} has no MIG profile '{request}'; choose from {', '.join(sorted(by_name))}")
    return by_name[name]


def choose_auto_profile(gpu: MigGpu, degree: int) -> Profile:
    """Choose the largest plain profile of which `degree` instances fit; compute slices count before memory."""
    for profile in sorted(list_plain_profiles(gpu), key=lambda profile: profile.size, reverse=True):
        if place(gpu, [profile] * degree) is not None:
            return profile
    most = max(profile.max_instances for profile in list_plain_profiles(gpu))
    raise ConfigError(f"{degree} MIG instances do not fit on {gpu.name}; use at most {most}")


def list_requests(
    sizes: Sequence[str | None],
    *,
    profiles: Sequence[str] = (),
    profile: str = AUTO,
    size_profile: Mapping[str, str] = SIZE_PROFILE,
) -> list[str | None]:
    """List the request of each job; the first argument that says something decides.

    `sizes` has the mix letter of each job, or `None` for each of equal jobs; `profiles` are by position, `profile` is
    for all jobs. A request is `None` for each of equal jobs if nothing is asked for.

    Raises:
        ConfigError: the lists do not match, or a size has no profile.
    """
    if profiles:
        if len(profiles) != len(sizes):
            raise ConfigError(
                f"scenario.profiles names {format_count(len(profiles), 'MIG profile')} ({', '.join(profiles)}) for "
                f"{format_count(len(sizes), 'job')}; name one for each job"
            )
        return list(profiles)
    if profile != AUTO:
        return [profile] * len(sizes)
    if all(size is None for size in sizes):
        return [None] * len(sizes)
    if unknown := sorted({str(size) for size in sizes} - set(size_profile)):
        raise ConfigError(f"size {', '.join(unknown)} has no MIG profile; add it to scenario.size_profile")
    return [size_profile[str(size)] for size in sizes]


def plan_layout(gpu: MigGpu, profiles: Sequence[Profile]) -> Layout:
    """Place the instances, one a job, on an empty GPU; a ConfigError says why they do not fit, and what does."""
    layout = place(gpu, profiles)
    if layout is None:
        near = " or ".join(f"[{','.join(names)}]" for names in find_nearest(gpu, profiles))
        request = ",".join(profile.name for profile in profiles)
        raise ConfigError(f"[{request}] does not fit on {gpu.name}: {explain_illegal(gpu, profiles)}; use {near}")
    return layout


def place(gpu: MigGpu, profiles: Sequence[Profile], around: Placed = ()) -> Layout | None:
    """Place exactly these instances, the same way every time; `None` if they do not fit.

    `around` are instances that stay, each with its start; the layout is of the new ones alone.
    """
    if _find_broken_limit(gpu, [*(profile for profile, _ in around), *profiles]) is not None:
        return None
    placed: Placed | None
    if around:
        placed = _place_beside(gpu, tuple(sorted(profiles, key=_order_largest_first)), tuple(around))
    else:
        placed = _find_first_placements(gpu, tuple(sorted(set(profiles), key=_order_largest_first))).get(
            _sort_names(profiles)
        )
    if placed is None:
        return None
    starts = {profile: deque(start for other, start in placed if other == profile) for profile in profiles}
    return Layout(
        instances=tuple(
            Instance(job=job, profile=profile, start=starts[profile].popleft()) for job, profile in enumerate(profiles)
        )
    )


def explain_illegal(gpu: MigGpu, profiles: Sequence[Profile]) -> str | None:
    """Explain which limit these instances break; `None` if they fit."""
    limit = _find_broken_limit(gpu, profiles)
    if limit is not None or place(gpu, profiles) is not None:
        return limit
    possible = "; ".join(
        f"{profile.name} takes {profile.memory_slices}, from slice {', '.join(map(str, profile.starts))}"
        for profile in sorted(set(profiles), key=_order_largest_first)
    )
    return f"not all of them have room on the {gpu.memory_slices} memory slices ({possible})"


def explain_misplaced(gpu: MigGpu, placed: Placed) -> str | None:
    """Explain which limit instances at these starts break; `None` if the driver would make them there."""
    limit = _find_broken_limit(gpu, [profile for profile, _ in placed])
    if limit is not None:
        return limit
    for profile, start in placed:
        if start not in profile.starts:
            possible = ", ".join(map(str, profile.starts))
            return f"{profile.name} cannot begin at memory slice {start}, only at {possible}"
    for (one, start), (other, next_start) in itertools.pairwise(sorted(placed, key=lambda instance: instance[1])):
        if start + one.memory_slices > next_start:
            return f"{one.name} at memory slice {start} overlaps {other.name} at {next_start}"
    return None


def find_nearest(gpu: MigGpu, profiles: Sequence[Profile], limit: int = 3) -> tuple[tuple[str, ...], ...]:
    """Find the profiles of the legal layouts most like a request, nearest first: as many instances, or all that fit.

    Nearness is the change in the instances' shares of the compute and memory slices. Candidates are the profiles of
    `slice_profiles` and those that were asked for. Each names its profiles in the order of the request.
    """
    return tuple(
        tuple(profile.name for _, profile in sorted(layout.items()))
        for layout in find_nearest_by_job(gpu, profiles, limit)
    )


def find_nearest_by_job(gpu: MigGpu, profiles: Sequence[Profile], limit: int | None) -> tuple[dict[int, Profile], ...]:
    """Find the same layouts by position of the request; all legal ones without a limit."""
    pool = tuple(sorted({*list_slice_profiles(gpu), *profiles}, key=_order_largest_first))
    legal = [tuple(profile for profile, _ in placed) for placed in _find_first_placements(gpu, pool).values()]
    num_instances = min(len(profiles), max(map(len, legal)))
    order = sorted(range(len(profiles)), key=lambda job: _order_largest_first(profiles[job]))[:num_instances]
    request = [profiles[job] for job in order]

    def change(candidate: Sequence[Profile]) -> tuple[float, int, list[tuple[int, int, str]]]:
        slices = sum(
            abs(new.compute_slices - old.compute_slices) / gpu.compute_slices
            + abs(new.memory_slices - old.memory_slices) / gpu.memory_slices
            for new, old in zip(candidate, request, strict=True)
        )
        return (
            round(slices, 6),
            (Counter(request) - Counter(candidate)).total(),
            [_order_largest_first(p) for p in candidate],
        )

    candidates = (
        sorted(combination, key=_order_largest_first) for combination in legal if len(combination) == num_instances
    )
    return tuple(dict(zip(order, candidate, strict=True)) for candidate in sorted(candidates, key=change)[:limit])


def list_maximal_combinations(gpu: MigGpu, profiles: Sequence[Profile] | None = None) -> tuple[tuple[str, ...], ...]:
    """List every legal combination, as sorted names, to which none of the profiles can be added.

    Placements do not tell combinations apart. The profiles are those of `slice_profiles` if none are given.
    """
    pool = tuple(list_slice_profiles(gpu) if profiles is None else profiles)
    legal = set(_find_first_placements(gpu, pool))
    return tuple(
        names for names in sorted(legal) if not any(tuple(sorted((*names, new.name))) in legal for new in pool)
    )


def list_maximal_layouts(gpu: MigGpu, profiles: Sequence[Profile] | None = None) -> tuple[Placed, ...]:
    """List every arrangement of profiles and starts that leaves no place for one more.

    The same combination counts once for each way to place it, and one that a better arrangement could extend counts
    as well: so this is more than `maximal_combinations`, and what is often quoted as the number of MIG layouts.
    """
    pool = tuple(list_slice_profiles(gpu) if profiles is None else profiles)
    legal = {frozenset(placed) for placed in _iterate_arrangements(gpu, pool)}
    options = [(profile, start) for profile in pool for start in profile.starts]
    maximal = [placed for placed in legal if not any(placed | {new} in legal for new in options if new not in placed)]
    rows = (tuple(sorted(placed, key=lambda instance: instance[1])) for placed in maximal)
    return tuple(sorted(rows, key=lambda row: [(start, profile.name) for profile, start in row]))


@functools.lru_cache(maxsize=4096)
def _place_beside(gpu: MigGpu, profiles: tuple[Profile, ...], around: Placed) -> Placed | None:
    """Find the first arrangement, equal instances next to each other, in the room that others leave."""
    occupied = {slice_ for profile, start in around for slice_ in range(start, start + profile.memory_slices)}

    def extend(placed: Placed, taken: frozenset[int]) -> Placed | None:
        if len(placed) == len(profiles):
            return placed
        profile = profiles[len(placed)]
        # Equal instances are put down in rising order: another order would be the same arrangement.
        lowest = placed[-1][1] if placed and placed[-1][0] == profile else -1
        for start in profile.starts:
            slices = frozenset(range(start, start + profile.memory_slices))
            if start > lowest and not slices & taken:
                extended = extend((*placed, (profile, start)), taken | slices)
                if extended is not None:
                    return extended
        return None

    return extend((), frozenset(occupied))


@functools.lru_cache(maxsize=128)
def _find_first_placements(gpu: MigGpu, pool: tuple[Profile, ...]) -> dict[tuple[str, ...], Placed]:
    """Find each legal combination of the pool, by its sorted names, with its first arrangement."""
    first: dict[tuple[str, ...], Placed] = {}
    for placed in _iterate_arrangements(gpu, pool):
        first.setdefault(_sort_names([profile for profile, _ in placed]), placed)
    return first


def _iterate_arrangements(gpu: MigGpu, pool: Sequence[Profile]) -> Iterator[Placed]:
    """Yield every legal arrangement once, also the empty one: instances are placed from the lowest slice upwards."""
    options = sorted(
        ((start, profile) for profile in pool for start in profile.starts),
        key=lambda option: (option[0], _order_largest_first(option[1])),
    )

    def extend(placed: Placed, end: int) -> Iterator[Placed]:
        yield placed
        for start, profile in options:
            if start >= end and _find_broken_limit(gpu, [*(other for other, _ in placed), profile]) is None:
                yield from extend((*placed, (profile, start)), start + profile.memory_slices)

    return extend((), 0)


def _find_broken_limit(gpu: MigGpu, profiles: Sequence[Profile]) -> str | None:
    """Find a limit that is broken wherever the instances lie; one more instance breaks it as well."""
    for profile, count in Counter(profiles).items():
        if count > profile.max_instances:
            return f"{count} instances of {profile.name}, but the driver allows {profile.max_instances}"
    compute, memory = (sum(slices) for slices in zip((0, 0), *(profile.size for profile in profiles), strict=True))
    if compute > gpu.compute_slices:
        return f"{compute} compute slices, but there are {gpu.compute_slices}"
    if memory > gpu.memory_slices:
        return f"{memory} memory slices, but there are {gpu.memory_slices}"
    with_engines = [profile.name for profile in profiles if profile.suffix in _WITH_ENGINES]
    if len(with_engines) > 1:
        return f"only one instance can have the media engines, not {' and '.join(with_engines)}"
    without = [profile.name for profile in profiles if profile.suffix not in ("-me", "+me.all")]
    if without and any(profile.suffix == "+me.all" for profile in profiles):
        return f"{with_engines[0]} has all media engines, so profiles beside it need -me, unlike {without[0]}"
    halves = {profile.size for profile in profiles} >= {(3, 4), (4, 4)}
    if halves and gpu.driver_branch is not None and gpu.driver_branch < _HALVES_COEXIST_BRANCH:
        return f"4g and 3g together need a driver of branch {_HALVES_COEXIST_BRANCH} or later, not {gpu.driver_branch}"
    return None


def _order_largest_first(profile: Profile) -> tuple[int, int, str]:
    return -profile.memory_slices, -profile.compute_slices, profile.name


def _sort_names(profiles: Sequence[Profile]) -> tuple[str, ...]:
    return tuple(sorted(profile.name for profile in profiles))
