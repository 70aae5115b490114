"""The search for an order of moves from one deployment to another.

Free moves come first: new instances are created if they fit, old instances end if their service does not need them, and
empty GPUs get targets. If no free move remains, the best escape move is made: a GPU gets the target that allows
most old instances to end, an old instance moves away from the start of a new instance, the last instances leave a GPU,
or new instances are created at a temporary start. The search is a heuristic: every returned order is legal, but the
search may miss an existing order.
"""

from __future__ import annotations

import random

from pipeline.planner.transition.escape_moves import propose
from pipeline.planner.transition.free_moves import make_free_moves
from pipeline.planner.transition.search_state import SearchState

_MOST_WITHOUT_GAIN = 6


def solve(start: SearchState, seed: int | None) -> SearchState | None:
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
