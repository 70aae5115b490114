"""Escape moves, for states without free moves: instances move to another GPU, or are created at a temporary start.

An escape move is a function that changes a state and returns whether the move was possible. The methods of the state
ensure that every move is legal.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from pipeline.planner.transition.free_moves import count_blockers, find_own_spots, find_unassigned, place_missing
from pipeline.planner.transition.rooms import Spot
from pipeline.planner.transition.search_state import SearchState

Attempt = Callable[[SearchState], bool]

_MOST_OF_A_SORT = 12
_MOST_SHARED = 3


def propose(state: SearchState, chance: random.Random | None) -> Iterator[Attempt]:
    """Yield a few escape moves of each sort, the most promising moves first."""
    for sort in (_assign, _clear, _gather, _stand_in):
        attempts = sort(state)
        if chance is not None:
            attempts = [(cost + 0.5 * chance.random(), attempt) for cost, attempt in attempts]
        attempts.sort(key=lambda choice: choice[0])
        yield from (attempt for _, attempt in islice(attempts, _MOST_OF_A_SORT))


def _assign(state: SearchState) -> list[tuple[float, Attempt]]:
    """Assign a target to an empty GPU, or to a GPU on which an instance of the target fits next to other instances."""
    attempts: list[tuple[float, Attempt]] = []
    free = [g for g, want in enumerate(state.want) if want is None and g not in state.untouchable]
    for kind in sorted({state.kinds[gpu] for gpu in free}, key=str):
        alike = [gpu for gpu in free if state.kinds[gpu] == kind]
        empty = [gpu for gpu in alike if not state.placed[gpu]][:1]
        shared = sorted(
            (gpu for gpu in alike if state.placed[gpu] and state.is_divided(gpu)), key=lambda g: len(state.placed[g])
        )
        for target in find_unassigned(state, kind):
            freed = _count_freed(state, state.targets[target])
            for gpu in (*empty, *shared[:_MOST_SHARED]):
                if state.placed[gpu] and not _can_begin_beside(state, gpu, target):
                    continue

                def attempt(state: SearchState, target: int = target, gpu: int = gpu) -> bool:
                    state.give(target, gpu)
                    return True

                attempts.append((4.0 * bool(state.placed[gpu]) - freed, attempt))
    return attempts


def _can_begin_beside(state: SearchState, gpu: int, target: int) -> bool:
    """Return whether an instance of a target fits on a GPU now, and the target's instances on the GPU can stay."""
    if any(state.occupants[number].profile is None for number in state.targets[target]):
        return False
    present = [number for number in state.targets[target] if number in state.placed[gpu]]
    rest = [str(state.occupants[number].profile) for number in state.targets[target] if number not in present]
    if state.rooms[state.kinds[gpu]].place(find_own_spots(state, gpu, target), rest) is None:
        return False
    return bool(place_missing(state, gpu, target))


def _count_freed(state: SearchState, coming: Iterable[int]) -> float:
    gains: dict[str, float] = {}
    for number in coming:
        if number not in state.where:
            occupant = state.occupants[number]
            gains[occupant.service] = gains.get(occupant.service, 0.0) + occupant.worth
    freed = 0.0
    for service, gain in gains.items():
        surplus = state.surplus(service) + gain
        for number in sorted(state.going.get(service, ()), key=lambda number: (count_blockers(state, number), number)):
            occupant = state.occupants[number]
            if occupant.worth <= surplus:
                surplus -= occupant.worth
                freed += _size(state, (number,)) / count_blockers(state, number)
    return freed


def _clear(state: SearchState) -> list[tuple[float, Attempt]]:
    attempts: list[tuple[float, Attempt]] = []
    for gpu, target in enumerate(state.want):
        if target is None or not state.missing[target] or not state.is_divided(gpu):
            continue
        members = set(state.targets[target])
        foreign = [number for number in state.placed[gpu] if number not in members]
        room = state.rooms[state.kinds[gpu]]
        sets = {tuple(foreign)}
        spots = {
            other: Spot(int(state.placed[gpu][other] or 0), str(state.occupants[other].profile)) for other in foreign
        }
        for new in _place_missing(state, gpu, target):
            sets.add(tuple(n for n, spot in spots.items() if spot.start == new.start or not room.is_legal({spot, new})))
        for blockers in sets:
            if blockers:
                attempts.append((_size(state, blockers), _move_away(blockers, gpu)))
    return attempts


def _gather(state: SearchState) -> list[tuple[float, Attempt]]:
    return [
        (_size(state, tuple(numbers)), _move_away(tuple(numbers), gpu))
        for gpu, numbers in enumerate(state.placed)
        if numbers and state.want[gpu] is None and state.is_divided(gpu) and gpu not in state.untouchable
    ]


def _stand_in(state: SearchState) -> list[tuple[float, Attempt]]:
    """Create new instances of a service at a temporary start to allow an old instance of the service to end."""
    attempts: list[tuple[float, Attempt]] = []
    coming: dict[str, list[int]] = {}
    for numbers in state.missing.values():
        for number in numbers:
            if number not in state.where and state.occupants[number].profile is not None:
                coming.setdefault(state.occupants[number].service, []).append(number)
    for service, numbers in state.going.items():
        for number in numbers:
            lacking, chosen = state.occupants[number].worth - state.surplus(service), []
            for new in sorted(coming.get(service, ()), key=lambda new: (-state.occupants[new].worth, new)):
                if lacking <= 0:
                    break
                chosen.append(new)
                lacking -= state.occupants[new].worth
            if lacking <= 0 and chosen:
                cost = _size(state, chosen) - _size(state, (number,)) / count_blockers(state, number)
                attempts.append((cost, _move_away(tuple(chosen), None)))
    return attempts


def _size(state: SearchState, numbers: Iterable[int]) -> float:
    occupants = (state.occupants[number] for number in numbers)
    return sum(
        8 if occupant.profile is None else state.rooms[occupant.kind].slices(occupant.profile) for occupant in occupants
    )


def _move_away(numbers: Sequence[int], gpu: int | None) -> Attempt:
    def attempt(state: SearchState) -> bool:
        order = sorted(numbers, key=lambda number: (-_size(state, (number,)), number))
        return all(_move(state, number, gpu) for number in order)

    return attempt


def _move(state: SearchState, number: int, but: int | None) -> bool:
    """Move an instance to the start that costs the least room, if possible without blocking missing instances."""
    occupant = state.occupants[number]
    if occupant.profile is None:
        return False
    room = state.rooms[occupant.kind]
    best, least = None, (9, 0)
    for gpu, kind in enumerate(state.kinds):
        if kind != occupant.kind or gpu in (but, state.where.get(number)) or gpu in state.untouchable:
            continue
        if not state.is_divided(gpu) or ((target := state.want[gpu]) is not None and target == occupant.target):
            continue
        spots = state.taken[gpu]
        planned = spots | _expect(state, gpu)
        for tier, beside in enumerate((planned, spots)):
            if tier == 1 and beside == planned:
                continue
            start = room.best_start(beside, occupant.profile)
            if start is None:
                continue
            loss = (tier * 2 + (not spots), room.room(beside) - room.room(beside | {Spot(start, occupant.profile)}))
            if best is None or loss < least:
                best, least = (gpu, start), loss
            break
    if best is None:
        return False
    state.put(best[0], [(number, best[1])])
    return True


def _expect(state: SearchState, gpu: int) -> frozenset[Spot]:
    """Return the missing GPU instances of a GPU that fit next to its present GPU instances."""
    target = state.want[gpu]
    if target is None or not state.missing[target]:
        return frozenset()
    spots, room = state.taken[gpu], state.rooms[state.kinds[gpu]]
    planned: set[Spot] = set()
    for new in _place_missing(state, gpu, target):
        if all(new.start != spot.start for spot in spots | planned) and room.is_legal(spots | planned | {new}):
            planned.add(new)
    return frozenset(planned)


def _place_missing(state: SearchState, gpu: int, target: int) -> list[Spot]:
    missing = sorted(state.missing[target])
    profiles = [
        str(state.occupants[number].profile) for number in missing if state.occupants[number].profile is not None
    ]
    starts = state.rooms[state.kinds[gpu]].place(find_own_spots(state, gpu, target), profiles)
    return [] if starts is None else [Spot(start, name) for start, name in zip(starts, profiles, strict=True)]
