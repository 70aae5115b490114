"""Moves that displace nobody: old instances that nobody needs end, new ones are made where there is room for them."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.planner.transition.rooms import Kind, Spot
from pipeline.planner.transition.search_state import Board


def settle(board: Board) -> None:
    """Make all moves that displace nobody."""
    while _let_go(board) | _fill(board) | _assign(board):
        pass


def _let_go(board: Board) -> bool:
    """Take away old instances that their services can do without, first those that are in the way."""
    has_changed = False
    stirred, board.stirred_services = sorted(board.stirred_services), set()
    for service in stirred:
        items = board.going.get(service, set())
        for number in sorted(items, key=lambda number: (in_the_way(board, number), -board.items[number].worth, number)):
            if board.items[number].worth <= board.surplus(service):
                board.take(number)
                has_changed = True
    board.stirred_services.clear()  # what has gone leaves less for others to go
    return has_changed


def in_the_way(board: Board, number: int) -> int:
    """Count what else would still be in the way where an instance is."""
    gpu = board.where[number]
    old = sum(board.items[other].target is None for other in board.there[gpu])
    return old if board.want[gpu] is not None else old + 1


def _fill(board: Board) -> bool:
    """Make new instances in their places wherever there is room."""
    has_changed = False
    stirred, board.stirred_gpus = sorted(board.stirred_gpus), set()
    for gpu in stirred:
        target = board.want[gpu]
        if target is None or not board.missing[target]:
            continue
        if placed := fitting(board, gpu, target):
            board.put(gpu, placed)
            has_changed = True
    return has_changed


def fitting(board: Board, gpu: int, target: int) -> list[tuple[int, int | None]]:
    """Place the missing instances of a target that fit on a GPU now, first those that let others there go."""
    missing = sorted(board.missing[target], key=lambda number: (board.items[number].instance.start or 0, number))
    if any(board.items[number].profile is None for number in missing):
        return [(number, None) for number in missing] if not board.there[gpu] else []
    if not board.is_divided(gpu):
        return []
    there = {board.items[number].service for number in board.there[gpu] if board.items[number].target != target}
    missing.sort(key=lambda number: board.items[number].service not in there)
    placed: list[tuple[int, int | None]] = []
    spots, mine = board.taken[gpu], own_spots(board, gpu, target)
    for number in missing:
        rest = [other for other in missing if other != number and all(other != done for done, _ in placed)]
        start = _start_beside(board, number, spots, mine, rest)
        if start is not None:
            new = Spot(start, str(board.items[number].profile))
            spots, mine = spots | {new}, mine | {new}
            placed.append((number, start))
    return placed


def own_spots(board: Board, gpu: int, target: int) -> frozenset[Spot]:
    """Return the GPU instances of those that have found their place."""
    return frozenset(
        Spot(start, str(board.items[number].profile))
        for number, start in board.there[gpu].items()
        if start is not None and board.items[number].target == target
    )


def _start_beside(
    board: Board, number: int, there: frozenset[Spot], mine: frozenset[Spot], rest: Sequence[int]
) -> int | None:
    """Place an instance beside all that is there, with room for the rest of its target if the others go."""
    item = board.items[number]
    room, names = board.rooms[item.kind], [str(board.items[other].profile) for other in rest]
    planned = item.instance.start
    for start in sorted(room.starts(str(item.profile)), key=lambda start: start != planned):
        new = Spot(start, str(item.profile))
        fits = all(start != spot.start for spot in there) and room.is_legal(there | {new})
        if fits and room.place(mine | {new}, names) is not None:
            return start
    return None


def _assign(board: Board) -> bool:
    """Give every configuration an empty GPU where there are enough for all of their kind."""
    has_changed = False
    for kind in {
        board.items[members[0]].kind for target, members in board.targets.items() if target in board.unassigned
    }:
        targets, empty = waiting(board, kind), _empty(board, kind)
        if 0 < len(targets) <= len(empty):
            for target, gpu in zip(targets, empty, strict=False):
                board.give(target, gpu)
                has_changed = True
    return has_changed


def waiting(board: Board, kind: Kind) -> list[int]:
    """Return the targets of a kind that no GPU is to become yet."""
    return [target for target in sorted(board.unassigned) if board.items[board.targets[target][0]].kind == kind]


def _empty(board: Board, kind: Kind) -> list[int]:
    """Return GPUs that nobody is on and that are unassigned."""
    return [
        gpu
        for gpu, items in enumerate(board.there)
        if not items and board.want[gpu] is None and board.kinds[gpu] == kind and gpu not in board.untouchable
    ]
