"""The search for an order of moves from one deployment to another.

Free moves, which displace no instance, come first: new instances are created if they fit, old instances end if their
service does not need them, and empty GPUs get targets. If no free move remains, the best escape move is made: a GPU
gets the target that allows most old instances to end, an old instance moves away from the start of a new instance, the
last instances leave a GPU, or new instances are created at a temporary start. An escape move is a function that changes
a state and returns whether the move was possible; the methods of the state ensure that every move is legal. The search
is a heuristic: every returned order is legal, but the search may miss an existing order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from pipeline.planner.transition.search_state import Kind, SearchState, Spot

Attempt = Callable[[SearchState], bool]
_MOST_OF_A_SORT = 12
_MOST_SHARED = 3
_MOST_WITHOUT_GAIN = 6


def make_free_moves(state: SearchState) -> None:
    """Make all free moves."""
    while _release(state) | _fill(state) | _assign_targets(state):
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
    gpu = state.gpu_of[number]
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
    spots, own_places = state.used_spots[gpu], find_own_spots(state, gpu, target)
    for number in missing:
        remaining = [other for other in missing if other != number and all(other != done for done, _ in placed)]
        start = _find_start(state, number, spots, own_places, remaining)
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
    state: SearchState, number: int, spots: frozenset[Spot], own_places: frozenset[Spot], remaining: Sequence[int]
) -> int | None:
    """Find a start that fits now and leaves room for the rest of the target after all other instances have ended."""
    occupant = state.occupants[number]
    room, names = state.rooms[occupant.kind], [str(state.occupants[other].profile) for other in remaining]
    planned = occupant.instance.start
    for start in sorted(room.starts(str(occupant.profile)), key=lambda start: start != planned):
        new = Spot(start, str(occupant.profile))
        fits = all(start != spot.start for spot in spots) and room.is_legal(spots | {new})
        if fits and room.place(own_places | {new}, names) is not None:
            return start
    return None


def _assign_targets(state: SearchState) -> bool:
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


def propose(state: SearchState, chance: random.Random | None) -> Iterator[Attempt]:
    """Yield a few escape moves of each sort, the most promising moves first."""
    for sort in (_propose_targets, _propose_clearing, _propose_gathering, _propose_stand_ins):
        attempts = sort(state)
        if chance is not None:
            attempts = [(cost + 0.5 * chance.random(), attempt) for cost, attempt in attempts]
        attempts.sort(key=lambda choice: choice[0])
        yield from (attempt for _, attempt in islice(attempts, _MOST_OF_A_SORT))


def _propose_targets(state: SearchState) -> list[tuple[float, Attempt]]:
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
    absent = [str(state.occupants[number].profile) for number in state.targets[target] if number not in present]
    if state.rooms[state.kinds[gpu]].place(find_own_spots(state, gpu, target), absent) is None:
        return False
    return bool(place_missing(state, gpu, target))


def _count_freed(state: SearchState, coming: Iterable[int]) -> float:
    gains: dict[str, float] = {}
    for number in coming:
        if number not in state.gpu_of:
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


def _propose_clearing(state: SearchState) -> list[tuple[float, Attempt]]:
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
        for new in _list_missing_spots(state, gpu, target):
            sets.add(tuple(n for n, spot in spots.items() if spot.start == new.start or not room.is_legal({spot, new})))
        for blockers in sets:
            if blockers:
                attempts.append((_size(state, blockers), _move_away(blockers, gpu)))
    return attempts


def _propose_gathering(state: SearchState) -> list[tuple[float, Attempt]]:
    return [
        (_size(state, tuple(numbers)), _move_away(tuple(numbers), gpu))
        for gpu, numbers in enumerate(state.placed)
        if numbers and state.want[gpu] is None and state.is_divided(gpu) and gpu not in state.untouchable
    ]


def _propose_stand_ins(state: SearchState) -> list[tuple[float, Attempt]]:
    """Create new instances of a service at a temporary start to allow an old instance of the service to end."""
    attempts: list[tuple[float, Attempt]] = []
    coming: dict[str, list[int]] = {}
    for numbers in state.missing.values():
        for number in numbers:
            if number not in state.gpu_of and state.occupants[number].profile is not None:
                coming.setdefault(state.occupants[number].service, []).append(number)
    for service, numbers in state.going.items():
        for number in numbers:
            lacking, stand_ins = state.occupants[number].worth - state.surplus(service), []
            for new in sorted(coming.get(service, ()), key=lambda new: (-state.occupants[new].worth, new)):
                if lacking <= 0:
                    break
                stand_ins.append(new)
                lacking -= state.occupants[new].worth
            if lacking <= 0 and stand_ins:
                cost = _size(state, stand_ins) - _size(state, (number,)) / count_blockers(state, number)
                attempts.append((cost, _move_away(tuple(stand_ins), None)))
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
        if kind != occupant.kind or gpu in (but, state.gpu_of.get(number)) or gpu in state.untouchable:
            continue
        if not state.is_divided(gpu) or ((target := state.want[gpu]) is not None and target == occupant.target):
            continue
        spots = state.used_spots[gpu]
        planned = spots | _expect(state, gpu)
        for tier, occupied in enumerate((planned, spots)):
            if tier == 1 and occupied == planned:
                continue
            start = room.best_start(occupied, occupant.profile)
            if start is None:
                continue
            loss = (tier * 2 + (not spots), room.room(occupied) - room.room(occupied | {Spot(start, occupant.profile)}))
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
    spots, room = state.used_spots[gpu], state.rooms[state.kinds[gpu]]
    planned: set[Spot] = set()
    for new in _list_missing_spots(state, gpu, target):
        if all(new.start != spot.start for spot in spots | planned) and room.is_legal(spots | planned | {new}):
            planned.add(new)
    return frozenset(planned)


def _list_missing_spots(state: SearchState, gpu: int, target: int) -> list[Spot]:
    missing = sorted(state.missing[target])
    profiles = [
        str(state.occupants[number].profile) for number in missing if state.occupants[number].profile is not None
    ]
    starts = state.rooms[state.kinds[gpu]].place(find_own_spots(state, gpu, target), profiles)
    return [] if starts is None else [Spot(start, name) for start, name in zip(starts, profiles, strict=True)]


def find_order(start: SearchState, seed: int | None) -> SearchState | None:
    """Return a state that equals the new deployment, or `None`; a seed varies the order of moves."""
    chance = None if seed is None else random.Random(seed)  # noqa: S311 - used for the order of moves only
    state, without_gain = start.copy(), 0
    make_free_moves(state)
    while not state.is_done:
        best = _find_best(state, chance)
        if best is None:
            return None
        without_gain = 0 if _rate(best) > _rate(state) else without_gain + 1
        if without_gain > _MOST_WITHOUT_GAIN:
            return None
        state = best
    return state


def _find_best(state: SearchState, chance: random.Random | None) -> SearchState | None:
    best, furthest = None, -1.0
    for attempt in propose(state, chance):
        tried = state.copy()
        if not attempt(tried):
            continue
        make_free_moves(tried)
        progress = _rate(tried) + (0.0 if chance is None else 4 * chance.random())
        if tried.is_done:
            return tried
        if best is None or progress > furthest:
            best, furthest = tried, progress
    return best


def _rate(state: SearchState) -> float:
    """Rate a state: memory slices of instances at their final start minus memory slices of the other instances."""
    slices = 0.0
    for gpu, numbers in enumerate(state.placed):
        for number, start in numbers.items():
            occupant = state.occupants[number]
            size = 8 if start is None else state.rooms[state.kinds[gpu]].slices(str(occupant.profile))
            is_last = occupant.target is not None and number not in state.missing[occupant.target]
            slices += size if is_last else -size
    return slices + 4 * sum(not numbers for numbers in state.placed) - 0.01 * len(state.moves)
