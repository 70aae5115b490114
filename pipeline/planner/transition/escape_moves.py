"""Moves where no free one is left: something is moved aside, or made for a time at another place.

Each is a function that tries it on a board and says whether it could; the rules are kept by the board's own moves.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from pipeline.planner.transition.free_moves import fitting, in_the_way, own_spots, waiting
from pipeline.planner.transition.rooms import Spot
from pipeline.planner.transition.search_state import Board

Try = Callable[[Board], bool]

_MOST_OF_A_SORT = 12
_MOST_SHARED = 3


def ways_out(board: Board, chance: random.Random | None) -> Iterator[Try]:
    """Yield moves to try where no free one is left: a few of each sort, the most promising first."""
    for sort in (_giving, _clearing, _gathering, _standing_in):
        found = sort(board)
        if chance is not None:
            found = [(cost + 0.5 * chance.random(), attempt) for cost, attempt in found]
        found.sort(key=lambda each: each[0])
        yield from (attempt for _, attempt in islice(found, _MOST_OF_A_SORT))


def _giving(board: Board) -> list[tuple[float, Try]]:
    """Let an unassigned GPU become one of tomorrow: an empty one, or around those that are still there."""
    found: list[tuple[float, Try]] = []
    free = [g for g, want in enumerate(board.want) if want is None and g not in board.untouchable]
    for kind in sorted({board.kinds[gpu] for gpu in free}, key=str):
        mine = [gpu for gpu in free if board.kinds[gpu] == kind]
        empty = [gpu for gpu in mine if not board.there[gpu]][:1]
        shared = sorted(
            (gpu for gpu in mine if board.there[gpu] and board.is_divided(gpu)), key=lambda g: len(board.there[g])
        )
        for target in waiting(board, kind):
            freed = _freed(board, board.targets[target])
            for gpu in (*empty, *shared[:_MOST_SHARED]):
                if board.there[gpu] and not _begins_beside(board, gpu, target):
                    continue

                def attempt(board: Board, target: int = target, gpu: int = gpu) -> bool:
                    board.give(target, gpu)
                    return True

                found.append((4.0 * bool(board.there[gpu]) - freed, attempt))
    return found


def _begins_beside(board: Board, gpu: int, target: int) -> bool:
    """Return whether some of a target fits beside those on a GPU, and nothing of it is where it cannot stay."""
    if any(board.items[number].profile is None for number in board.targets[target]):
        return False
    here = [number for number in board.targets[target] if number in board.there[gpu]]
    rest = [str(board.items[number].profile) for number in board.targets[target] if number not in here]
    if board.rooms[board.kinds[gpu]].place(own_spots(board, gpu, target), rest) is None:
        return False
    return bool(fitting(board, gpu, target))


def _freed(board: Board, coming: Iterable[int]) -> float:
    """Count the memory slices that old instances would give back if these new ones were there."""
    gains: dict[str, float] = {}
    for number in coming:
        if number not in board.where:
            item = board.items[number]
            gains[item.service] = gains.get(item.service, 0.0) + item.worth
    freed = 0.0
    for service, gain in gains.items():
        surplus = board.surplus(service) + gain
        for number in sorted(board.going.get(service, ()), key=lambda number: (in_the_way(board, number), number)):
            item = board.items[number]
            if item.worth <= surplus:
                surplus -= item.worth
                freed += (8 if item.profile is None else board.rooms[item.kind].slices(item.profile)) / in_the_way(
                    board, number
                )
    return freed


def _clearing(board: Board) -> list[tuple[float, Try]]:
    """Move what is in the way of a new instance to another GPU."""
    found: list[tuple[float, Try]] = []
    for gpu, target in enumerate(board.want):
        if target is None or not board.missing[target] or not board.is_divided(gpu):
            continue
        mine = set(board.targets[target])
        others = [number for number in board.there[gpu] if number not in mine]
        room = board.rooms[board.kinds[gpu]]
        sets = {tuple(others)}
        there = {other: Spot(int(board.there[gpu][other] or 0), str(board.items[other].profile)) for other in others}
        for new in _to_come(board, gpu, target):
            sets.add(tuple(n for n, spot in there.items() if spot.start == new.start or not room.is_legal({spot, new})))
        for blockers in sets:
            if blockers:
                found.append((_size(board, blockers), _moving(blockers, gpu)))
    return found


def _gathering(board: Board) -> list[tuple[float, Try]]:
    """Empty a GPU that is unassigned."""
    return [
        (_size(board, tuple(items)), _moving(tuple(items), gpu))
        for gpu, items in enumerate(board.there)
        if items and board.want[gpu] is None and board.is_divided(gpu) and gpu not in board.untouchable
    ]


def _standing_in(board: Board) -> list[tuple[float, Try]]:
    """Make new instances of a service at a temporary place, so that an old one can go."""
    found: list[tuple[float, Try]] = []
    coming: dict[str, list[int]] = {}
    for numbers in board.missing.values():
        for number in numbers:
            if number not in board.where and board.items[number].profile is not None:
                coming.setdefault(board.items[number].service, []).append(number)
    for service, items in board.going.items():
        for number in items:
            lacking, chosen = board.items[number].worth - board.surplus(service), []
            for new in sorted(coming.get(service, ()), key=lambda new: (-board.items[new].worth, new)):
                if lacking <= 0:
                    break
                chosen.append(new)
                lacking -= board.items[new].worth
            if lacking <= 0 and chosen:
                cost = _size(board, chosen) - _size(board, (number,)) / in_the_way(board, number)
                found.append((cost, _moving(tuple(chosen), None)))
    return found


def _size(board: Board, numbers: Iterable[int]) -> float:
    items = (board.items[number] for number in numbers)
    return sum(8 if item.profile is None else board.rooms[item.kind].slices(item.profile) for item in items)


def _moving(numbers: Sequence[int], gpu: int | None) -> Try:
    """Bring items, the largest first, to whatever GPU but one has room for them."""

    def attempt(board: Board) -> bool:
        order = sorted(numbers, key=lambda number: (-_size(board, (number,)), number))
        return all(_to_some_room(board, number, gpu) for number in order)

    return attempt


def _to_some_room(board: Board, number: int, but: int | None) -> bool:
    """Move where the least room is lost: beside others, and not where something else is to come."""
    item = board.items[number]
    if item.profile is None:
        return False
    room = board.rooms[item.kind]
    best, least = None, (9, 0)
    for gpu, kind in enumerate(board.kinds):
        if kind != item.kind or gpu in (but, board.where.get(number)) or gpu in board.untouchable:
            continue
        if not board.is_divided(gpu) or ((target := board.want[gpu]) is not None and target == item.target):
            continue
        there = board.taken[gpu]
        planned = there | _planned(board, gpu)
        for tier, beside in enumerate((planned, there)):
            if tier == 1 and beside == planned:
                continue
            start = room.best_start(beside, item.profile)
            if start is None:
                continue
            loss = (tier * 2 + (not there), room.room(beside) - room.room(beside | {Spot(start, item.profile)}))
            if best is None or loss < least:
                best, least = (gpu, start), loss
            break
    if best is None:
        return False
    board.put(best[0], [(number, best[1])])
    return True


def _planned(board: Board, gpu: int) -> frozenset[Spot]:
    """Return the GPU instances that are still to come to a GPU and fit beside what is there."""
    target = board.want[gpu]
    if target is None or not board.missing[target]:
        return frozenset()
    there, room = board.taken[gpu], board.rooms[board.kinds[gpu]]
    planned: set[Spot] = set()
    for new in _to_come(board, gpu, target):
        if all(new.start != spot.start for spot in there | planned) and room.is_legal(there | planned | {new}):
            planned.add(new)
    return frozenset(planned)


def _to_come(board: Board, gpu: int, target: int) -> list[Spot]:
    """Place what is missing of a target beside what it has on its GPU."""
    missing = sorted(board.missing[target])
    profiles = [str(board.items[number].profile) for number in missing if board.items[number].profile is not None]
    starts = board.rooms[board.kinds[gpu]].place(own_spots(board, gpu, target), profiles)
    return [] if starts is None else [Spot(start, name) for start, name in zip(starts, profiles, strict=True)]
