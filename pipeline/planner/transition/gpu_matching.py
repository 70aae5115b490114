"""A matching of the current GPUs with the target GPUs that keeps the most instances at their start."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pipeline.planner.deployment import Gpu, Instance
from pipeline.planner.transition.gpu_identity import get_kind
from pipeline.planner.transition.rooms import Kind, Layouts, Spot, configuration_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A current GPU that becomes a target GPU.

    Attributes:
        gpu: position of the GPU in the current deployment.
        target: position of the target GPU in the new deployment.
        stays: positions of each instance that stays, in the current and the target GPU.
        instances: instances of the target GPU, at their starts on the current GPU.
    """

    gpu: int
    target: int
    stays: tuple[tuple[int, int], ...]
    instances: tuple[Instance, ...]


def match_gpus(
    today: Sequence[Gpu], tomorrow: Sequence[Gpu], rooms: Mapping[Kind, Layouts], untouchable: frozenset[int]
) -> list[Match]:
    """Return pairs of GPUs with instances that stay, maximising the total number of memory slices that stay."""
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    pairs = {}
    targets_of = defaultdict(set)  # by configuration
    for number, target in enumerate(tomorrow):
        for instance in target.instances:
            targets_of[configuration_of(instance)].add(number)
    weights = np.zeros((len(today), len(tomorrow)))
    for number, gpu in enumerate(today):
        for other in sorted(set().union(*(targets_of[configuration_of(instance)] for instance in gpu.instances))):
            pair = _match_pair(number, gpu, other, tomorrow[other], rooms)
            if pair is None or (number in untouchable and len(pair.stays) < len(pair.instances)):
                continue
            pairs[number, other] = pair
            weights[number, other] = _weight(gpu, pair, rooms)
    rows, columns = linear_sum_assignment(weights, maximize=True)
    return [pairs[pair] for pair in zip(rows.tolist(), columns.tolist(), strict=True) if pair in pairs]


def _match_pair(number: int, gpu: Gpu, other: int, target: Gpu, rooms: Mapping[Kind, Layouts]) -> Match | None:
    if (get_kind(gpu), gpu.mode) != (get_kind(target), target.mode):
        return None
    if gpu.mode != "mig":
        # Figures hold for all instances together, because instances on an undivided GPU slow each other down.
        present, coming = (
            sorted((str(configuration_of(instance)), number) for number, instance in enumerate(side.instances))
            for side in (gpu, target)
        )
        if [name for name, _ in present] != [name for name, _ in coming]:
            return None
        stays = tuple((old, new) for (_, old), (_, new) in zip(present, coming, strict=True))
        return Match(gpu=number, target=other, stays=stays, instances=_keep_instances(gpu, target.instances, stays))
    room = rooms[get_kind(gpu)]
    for stays in _enumerate_kept(gpu.instances, target.instances):
        starts = _choose_starts(gpu, target, stays, room)
        if starts is not None:
            instances = tuple(replace(i, start=start) for i, start in zip(target.instances, starts, strict=True))
            return Match(gpu=number, target=other, stays=stays, instances=_keep_instances(gpu, instances, stays))
    return None


def _keep_instances(gpu: Gpu, instances: Sequence[Instance], stays: Sequence[tuple[int, int]]) -> tuple[Instance, ...]:
    staying = {new: gpu.instances[old] for old, new in stays}
    return tuple(staying.get(number, instance) for number, instance in enumerate(instances))


def _enumerate_kept(present: Sequence[Instance], planned: Sequence[Instance]) -> Iterator[tuple[tuple[int, int], ...]]:
    """Yield sets of instances to keep, as pairs of positions, the most pairs first."""
    by_configuration: dict[object, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for side, instances in enumerate((present, planned)):
        for position, instance in enumerate(instances):
            by_configuration[configuration_of(instance)][side].append(position)
    common = [sides for sides in by_configuration.values() if sides[0] and sides[1]]
    counts = itertools.product(*(range(min(map(len, sides)), -1, -1) for sides in common))
    for count in sorted(counts, key=sum, reverse=True):
        if sum(count) == 0:
            return
        chosen = [list(itertools.combinations(old, number)) for (old, _), number in zip(common, count, strict=True)]
        for olds in itertools.product(*chosen):
            yield tuple(
                pair
                for old, (_, new) in zip(olds, common, strict=True)
                for pair in zip(old, new[: len(old)], strict=True)
            )


def _choose_starts(gpu: Gpu, target: Gpu, stays: Sequence[tuple[int, int]], room: Layouts) -> tuple[int, ...] | None:
    """Return the start of each new instance: the current start if it stays, else the planned or a free start."""
    fixed_starts = {new: gpu.instances[old].start or 0 for old, new in stays}
    as_planned = [fixed_starts.get(number, instance.start or 0) for number, instance in enumerate(target.instances)]
    spots = [Spot(start, str(i.profile)) for start, i in zip(as_planned, target.instances, strict=True)]
    if len({spot.start for spot in spots}) == len(spots) and room.is_legal(spots):
        return tuple(as_planned)
    free = [number for number in range(len(target.instances)) if number not in fixed_starts]
    fixed = [spots[number] for number in fixed_starts]
    placed = room.place(fixed, [str(target.instances[number].profile) for number in free])
    if placed is None:
        return None
    new = dict(zip(free, placed, strict=True))
    return tuple(fixed_starts.get(number, new.get(number, -1)) for number in range(len(target.instances)))


def _weight(gpu: Gpu, pair: Match, rooms: Mapping[Kind, Layouts]) -> float:
    """Return the memory slices that stay; among equal pairs, prefer the pair with fewer other instances."""
    if gpu.mode != "mig":
        return 100.0
    room = rooms[get_kind(gpu)]
    stays = sum(room.slices(str(gpu.instances[old].profile)) for old, _ in pair.stays)
    return stays + 0.01 * len(pair.stays) / max(len(gpu.instances), len(pair.instances))
