"""Free moves, which displace no instance: unneeded old instances end, and new instances are created if they fit."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.planner.transition.rooms import Kind, Spot
from pipeline.planner.transition.search_state import SearchState


def make_free_moves(state: SearchState) -> None:
    """Make all free moves."""
    while _release(state) | _fill(state) | _assign(state):
        pass


def _release(state: SearchState) -> bool:
    """End old instances that their services do not need, first the instances that block most."""
    has_changed = False
    stirred, state.stirred_services = sorted(state.stirred_services), set()
    for service in stirred:
        numbers = state.going.get(service, set())
        for number in sorted(
            numbers, key=lambda number: (count_blockers(state, number), -state.occupants[number].worth, number)
        ):
            if state.occupants[number].worth <= state.surplus(service):
                state.take(number)
                has_changed = True
    state.stirred_services.clear()  # deletions only reduce the surplus
    return has_changed


def count_blockers(state: SearchState, number: int) -> int:
    """Count the old instances on the GPU of an instance, which must end together with the instance."""
    gpu = state.where[number]
    old = sum(state.occupants[other].target is None for other in state.placed[gpu])
    return old if state.want[gpu] is not None else old + 1


def _fill(state: SearchState) -> bool:
    has_changed = False
    stirred, state.stirred_gpus = sorted(state.stirred_gpus), set()
    for gpu in stirred:
        target = state.want[gpu]
        if target is None or not state.missing[target]:
            continue
        if placed := place_missing(state, gpu, target):
            state.put(gpu, placed)
            has_changed = True
    return has_changed


def place_missing(state: SearchState, gpu: int, target: int) -> list[tuple[int, int | None]]:
    """Place the missing instances of a target that fit on a GPU now, first those that replace instances on the GPU."""
    missing = sorted(state.missing[target], key=lambda number: (state.occupants[number].instance.start or 0, number))
    if any(state.occupants[number].profile is None for number in missing):
        return [(number, None) for number in missing] if not state.placed[gpu] else []
    if not state.is_divided(gpu):
        return []
    present = {
        state.occupants[number].service for number in state.placed[gpu] if state.occupants[number].target != target
    }
    missing.sort(key=lambda number: state.occupants[number].service not in present)
    placed: list[tuple[int, int | None]] = []
    spots, own_places = state.taken[gpu], find_own_spots(state, gpu, target)
    for number in missing:
        rest = [other for other in missing if other != number and all(other != done for done, _ in placed)]
        start = _find_start(state, number, spots, own_places, rest)
        if start is not None:
            new = Spot(start, str(state.occupants[number].profile))
            spots, own_places = spots | {new}, own_places | {new}
            placed.append((number, start))
    return placed


def find_own_spots(state: SearchState, gpu: int, target: int) -> frozenset[Spot]:
    """Return the GPU instances of a target that are on the target's GPU."""
    return frozenset(
        Spot(start, str(state.occupants[number].profile))
        for number, start in state.placed[gpu].items()
        if start is not None and state.occupants[number].target == target
    )


def _find_start(
    state: SearchState, number: int, spots: frozenset[Spot], own_places: frozenset[Spot], rest: Sequence[int]
) -> int | None:
    """Find a start that fits now and leaves room for the rest of the target after all other instances have ended."""
    occupant = state.occupants[number]
    room, names = state.rooms[occupant.kind], [str(state.occupants[other].profile) for other in rest]
    planned = occupant.instance.start
    for start in sorted(room.starts(str(occupant.profile)), key=lambda start: start != planned):
        new = Spot(start, str(occupant.profile))
        fits = all(start != spot.start for spot in spots) and room.is_legal(spots | {new})
        if fits and room.place(own_places | {new}, names) is not None:
            return start
    return None


def _assign(state: SearchState) -> bool:
    """Assign all targets of a kind to empty GPUs, if enough GPUs are empty."""
    has_changed = False
    for kind in {
        state.occupants[members[0]].kind for target, members in state.targets.items() if target in state.unassigned
    }:
        targets, empty = find_unassigned(state, kind), _find_empty(state, kind)
        if 0 < len(targets) <= len(empty):
            for target, gpu in zip(targets, empty, strict=False):
                state.give(target, gpu)
                has_changed = True
    return has_changed


def find_unassigned(state: SearchState, kind: Kind) -> list[int]:
    """Return the targets of a kind that have no GPU yet."""
    return [target for target in sorted(state.unassigned) if state.occupants[state.targets[target][0]].kind == kind]


def _find_empty(state: SearchState, kind: Kind) -> list[int]:
    return [
        gpu
        for gpu, numbers in enumerate(state.placed)
        if not numbers and state.want[gpu] is None and state.kinds[gpu] == kind and gpu not in state.untouchable
    ]
