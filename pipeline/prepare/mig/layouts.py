"""Legal combinations of GPU instances on one GPU, and their placements. Touches no hardware.

A layout is legal if the placements of its instances do not overlap, the GPU has enough compute slices and engines, and
no profile is used more often than the driver allows. A GPU has as many engines as its largest instance.
Source of the limits: NVIDIA MIG User Guide (concepts, supported profiles) and nvml.h, API 13 (profiles with engines).
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from pipeline.base.domain import mig_table
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import format_count
from pipeline.prepare.mig.profiles import MigGpu, Profile

AUTO = "auto"
SIZE_PROFILE: Mapping[str, str] = MappingProxyType({"S": "1g", "M": "2g", "L": "3g"})

# Instances of a GPU with their first memory slices.
Placed = tuple[tuple[Profile, int], ...]
# Before this branch, a 4-slice and a 3-slice instance of four memory slices each could not coexist.
# Source: NVIDIA MIG User Guide, concepts; tested with driver 550.54.14 on an A100-80GB.
_HALVES_COEXIST_BRANCH = 510
# For `mig_table.ENGINES`.
_ENGINE_NAMES = ("copy engine", "video decoder", "video encoder", "JPEG decoder", "optical flow accelerator")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One GPU instance of a layout.

    Attributes:
        job: position of the instance in the request, from 0; with `parts`, its position among the GPU instances.
        profile: MIG profile of the instance.
        start: first memory slice of the instance.
        parts: compute slices of each compute instance; empty for a single compute instance of full size.
    """

    job: int
    profile: Profile
    start: int
    parts: tuple[int, ...] = ()

    @property
    def device_names(self) -> tuple[str, ...]:
        """Names of the MIG devices, one per compute instance: `1c.3g.40gb`, or `3g.40gb` for one of full size."""
        return tuple(mig_table.name_device(self.profile.name, part) for part in self.parts or (None,))

    def __str__(self) -> str:
        return mig_table.format_division(self.profile.name, [f"{part}c" for part in self.parts])


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Instances that fit together, in the order of the jobs."""

    instances: tuple[Instance, ...]

    @property
    def devices(self) -> tuple[tuple[Instance, str], ...]:
        """GPU instance and name of each MIG device, in the order of the jobs."""
        return tuple((instance, name) for instance in self.instances for name in instance.device_names)

    @property
    def creation_order(self) -> tuple[Instance, ...]:
        """Instances in the order of creation, larger first: in other orders, some drivers refuse legal layouts."""
        return tuple(
            sorted(self.instances, key=lambda i: (-i.profile.memory_slices, -i.profile.compute_slices, i.start))
        )


def list_slice_profiles(gpu: MigGpu) -> tuple[Profile, ...]:
    """List the profiles for `1g`, `2g`, ...: for each number of slices, the plain profile with the least memory."""
    smallest: dict[int, Profile] = {}
    for profile in list_plain_profiles(gpu):
        smallest.setdefault(profile.compute_slices, profile)
    return tuple(smallest.values())


def list_plain_profiles(gpu: MigGpu) -> tuple[Profile, ...]:
    """List the profiles without a suffix, smaller first: `list_slice_profiles` and the 1g with twice the memory."""
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
    """Choose the largest plain profile of which `degree` instances fit; compare compute slices, then memory slices."""
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
    """List the requested profile of each job: from `profiles`, else from `profile`, else from the job's size.

    Args:
        sizes: mix letter of each job; `None` for each job if all jobs are equal.
        profiles: requested profiles by position.
        profile: requested profile of all jobs.
        size_profile: profile by mix letter.

    Returns:
        The requests; `None` for each job if all jobs are equal and no profile is requested.

    Raises:
        ConfigError: the numbers of profiles and jobs differ, or a size has no profile.
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
        raise ConfigError(f"size {', '.join(unknown)} has no MIG profile; add a profile to scenario.size_profile")
    return [size_profile[str(size)] for size in sizes]


def plan_layout(gpu: MigGpu, profiles: Sequence[Profile]) -> Layout:
    """Place one instance per job on an empty GPU; if they do not fit, a ConfigError names the nearest layouts."""
    layout = place(gpu, profiles)
    if layout is None:
        near = " or ".join(f"[{','.join(names)}]" for names in find_nearest(gpu, profiles))
        request = ",".join(profile.name for profile in profiles)
        raise ConfigError(f"[{request}] does not fit on {gpu.name}: {explain_illegal(gpu, profiles)}; use {near}")
    return layout


def place(gpu: MigGpu, profiles: Sequence[Profile], around: Placed = ()) -> Layout | None:
    """Place instances of these profiles deterministically; return `None` if they do not fit.

    `around` lists existing instances, each with its first memory slice; the layout contains the new instances only.
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
    """Name the limit that these instances exceed; `None` if they fit."""
    limit = _find_broken_limit(gpu, profiles)
    if limit is not None or place(gpu, profiles) is not None:
        return limit
    possible = "; ".join(
        f"{profile.name} needs {profile.memory_slices}, beginning at slice {', '.join(map(str, profile.starts))}"
        for profile in sorted(set(profiles), key=_order_largest_first)
    )
    return f"the {gpu.memory_slices} memory slices have no room for all of them ({possible})"


def explain_misplaced(gpu: MigGpu, placed: Placed) -> str | None:
    """Name the limit that instances at these first memory slices exceed; `None` if the driver would create them."""
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
    """Find the legal layouts most similar to a request, nearest first, as profile names in the order of the request.

    The layouts have the requested number of instances, or the largest number that fits. The distance is the change in
    the instances' shares of compute and memory slices. Candidates use the profiles of `list_slice_profiles` and the
    requested profiles.
    """
    return tuple(
        tuple(profile.name for _, profile in sorted(layout.items()))
        for layout in find_nearest_by_job(gpu, profiles, limit)
    )


def find_nearest_by_job(gpu: MigGpu, profiles: Sequence[Profile], limit: int | None) -> tuple[dict[int, Profile], ...]:
    """Find the layouts of `find_nearest` as profiles by position in the request; without a limit, all of them."""
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

    Combinations that differ only in placements count once. The default profiles are those of `list_slice_profiles`.
    """
    pool = tuple(list_slice_profiles(gpu) if profiles is None else profiles)
    legal = set(_find_first_placements(gpu, pool))
    return tuple(
        names for names in sorted(legal) if not any(tuple(sorted((*names, new.name))) in legal for new in pool)
    )


def list_maximal_layouts(gpu: MigGpu, profiles: Sequence[Profile] | None = None) -> tuple[Placed, ...]:
    """List every arrangement of profiles and starts that has no room for another instance.

    The list is longer than `list_maximal_combinations`, because each placement of a combination counts, even if another
    placement would have room for another instance. Its length is often quoted as the number of MIG layouts.
    """
    pool = tuple(list_slice_profiles(gpu) if profiles is None else profiles)
    legal = {frozenset(placed) for placed in _iterate_arrangements(gpu, pool)}
    options = [(profile, start) for profile in pool for start in profile.starts]
    maximal = [placed for placed in legal if not any(placed | {new} in legal for new in options if new not in placed)]
    rows = (tuple(sorted(placed, key=lambda instance: instance[1])) for placed in maximal)
    return tuple(sorted(rows, key=lambda row: [(start, profile.name) for profile, start in row]))


@functools.lru_cache(maxsize=4096)
def _place_beside(gpu: MigGpu, profiles: tuple[Profile, ...], around: Placed) -> Placed | None:
    """Find the first arrangement of profiles between existing instances; equal profiles are consecutive."""
    occupied = {slice_ for profile, start in around for slice_ in range(start, start + profile.memory_slices)}

    def extend(placed: Placed, used_slices: frozenset[int]) -> Placed | None:
        if len(placed) == len(profiles):
            return placed
        profile = profiles[len(placed)]
        # Equal instances are placed in rising order, because another order is the same arrangement.
        lowest = placed[-1][1] if placed and placed[-1][0] == profile else -1
        for start in profile.starts:
            slices = frozenset(range(start, start + profile.memory_slices))
            if start > lowest and not slices & used_slices:
                extended = extend((*placed, (profile, start)), used_slices | slices)
                if extended is not None:
                    return extended
        return None

    return extend((), frozenset(occupied))


@functools.lru_cache(maxsize=128)
def _find_first_placements(gpu: MigGpu, pool: tuple[Profile, ...]) -> dict[tuple[str, ...], Placed]:
    """Map the sorted names of each legal combination of the pool to the first arrangement of this combination."""
    first: dict[tuple[str, ...], Placed] = {}
    for placed in _iterate_arrangements(gpu, pool):
        first.setdefault(_sort_names([profile for profile, _ in placed]), placed)
    return first


def _iterate_arrangements(gpu: MigGpu, pool: Sequence[Profile]) -> Iterator[Placed]:
    """Yield every legal arrangement once, including the empty one; instances are placed from the lowest slice up."""
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
    """Find a limit that these instances exceed independently of their placement; any superset exceeds it too."""
    for profile, count in Counter(profiles).items():
        if count > profile.max_instances:
            return f"{count} instances of {profile.name}, but the driver allows {profile.max_instances}"
    compute, memory = (sum(slices) for slices in zip((0, 0), *(profile.size for profile in profiles), strict=True))
    if compute > gpu.compute_slices:
        return f"{compute} compute slices, but there are {gpu.compute_slices}"
    if memory > gpu.memory_slices:
        return f"{memory} memory slices, but there are {gpu.memory_slices}"
    available = max(gpu.profiles, key=lambda profile: profile.size).engines
    for kind, (name, most) in enumerate(zip(_ENGINE_NAMES, available, strict=False)):
        num_required = sum(profile.engines[kind] or 0 for profile in profiles)
        if most is not None and num_required > most:
            users = " and ".join(dict.fromkeys(profile.name for profile in profiles if profile.engines[kind]))
            return f"{format_count(num_required, name)} of {users}, but the GPU has {most}"
    halves = {profile.size for profile in profiles} >= {(3, 4), (4, 4)}
    if halves and gpu.driver_branch is not None and gpu.driver_branch < _HALVES_COEXIST_BRANCH:
        return f"4g and 3g together need a driver of branch {_HALVES_COEXIST_BRANCH} or later, not {gpu.driver_branch}"
    return None


def _order_largest_first(profile: Profile) -> tuple[int, int, str]:
    return -profile.memory_slices, -profile.compute_slices, profile.name


def _sort_names(profiles: Sequence[Profile]) -> tuple[str, ...]:
    return tuple(sorted(profile.name for profile in profiles))
