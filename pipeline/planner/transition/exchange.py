"""The order of moves from one deployment to another: exchange what can be, and move aside what is in the way.

New instances are made wherever there is room for them; old ones go as soon as their service can do without them; a GPU
that has become empty takes the configuration that lets most of the old ones go. Where nothing of this is possible,
something is moved: an old instance out of the way of a new one, the few that are left on a GPU together onto others,
or new instances of a service to a temporary place, so that the old ones can go. Of these the one is taken that leads
furthest. It is a search without a guarantee: what it finds is right, but it may miss what is possible.
"""

from __future__ import annotations

import random

from pipeline.planner.transition.escape_moves import ways_out
from pipeline.planner.transition.free_moves import settle
from pipeline.planner.transition.search_state import Board

_MOST_WITHOUT_GAIN = 6


def solve(start: Board, seed: int | None) -> Board | None:
    """Return a state in which tomorrow is reached, with the moves that lead there; `None` if none is found.

    Args:
        start: after `Board.begin`; it is left as it is.
        seed: shuffles what counts the same; `None` for the plain order.
    """
    chance = None if seed is None else random.Random(seed)  # noqa: S311 - decides nothing but an order
    board, without_gain = start.copy(), 0
    settle(board)
    while not board.is_done:
        best = _best(board, chance)
        if best is None:
            return None
        without_gain = 0 if _progress(best) > _progress(board) else without_gain + 1
        if without_gain > _MOST_WITHOUT_GAIN:
            return None
        board = best
    return board


def _best(board: Board, chance: random.Random | None) -> Board | None:
    """Return the state after the escape move that leads furthest; `None` if there is none."""
    best, furthest = None, -1.0
    for attempt in ways_out(board, chance):
        tried = board.copy()
        if not attempt(tried):
            continue
        settle(tried)
        progress = _progress(tried) + (0.0 if chance is None else 4 * chance.random())
        if tried.is_done:
            return tried
        if best is None or progress > furthest:
            best, furthest = tried, progress
    return best


def _progress(board: Board) -> float:
    """Rate a state: memory slices of new instances in their place, less those of old and displaced ones."""
    slices = 0.0
    for gpu, items in enumerate(board.there):
        for number, start in items.items():
            item = board.items[number]
            size = 8 if start is None else board.rooms[board.kinds[gpu]].slices(str(item.profile))
            is_last = item.target is not None and number not in board.missing[item.target]
            slices += size if is_last else -size
    return slices + 4 * sum(not items for items in board.there) - 0.01 * len(board.moves)
