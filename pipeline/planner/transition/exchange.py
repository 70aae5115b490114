"""The order of moves from one deployment to another: exchange what is possible, and move aside what is in the way.

New instances are created wherever they fit; old ones end as soon as their service can do without them; an empty GPU
takes the target that lets most old instances end. If none of this is possible, something is moved: an old instance out
of the way of a new one, the last few of a GPU onto other GPUs, or new instances of a service to a temporary place so
that old ones can end. The move that leads furthest is taken. The search has no guarantee: its result is correct, but it
may miss a solution.
"""

from __future__ import annotations

import random

from pipeline.planner.transition.escape_moves import propose
from pipeline.planner.transition.free_moves import make_free_moves
from pipeline.planner.transition.search_state import SearchState

_MOST_WITHOUT_GAIN = 6


def solve(start: SearchState, seed: int | None) -> SearchState | None:
    """Return a state in which the target deployment is reached; `None` if not found. A seed shuffles equal moves."""
    chance = None if seed is None else random.Random(seed)  # noqa: S311 - decides nothing but an order
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
    """Rate a state: memory slices of new instances in place, minus those of old and displaced ones."""
    slices = 0.0
    for gpu, numbers in enumerate(state.placed):
        for number, start in numbers.items():
            occupant = state.occupants[number]
            size = 8 if start is None else state.rooms[state.kinds[gpu]].slices(str(occupant.profile))
            is_last = occupant.target is not None and number not in state.missing[occupant.target]
            slices += size if is_last else -size
    return slices + 4 * sum(not numbers for numbers in state.placed) - 0.01 * len(state.moves)
