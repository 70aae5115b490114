"""The order of moves from one deployment to another: exchange what can be, and move aside what is in the way.

New instances are made wherever there is room for them; old ones go as soon as their service can do without them; a GPU
that has become empty takes the configuration that lets most of the old ones go. Where nothing of this is possible,
something is moved: an old instance out of the way of a new one, the few that are left on a GPU together onto others,
or new instances of a service to a temporary place, so that the old ones can go. Of these the one is taken that leads
furthest. It is a search without a guarantee: what it finds is right, but it may miss what is possible.
"""

from __future__ import annotations

import random

from pipeline.planner.transition.escape_moves import propose
from pipeline.planner.transition.free_moves import make_free_moves
from pipeline.planner.transition.search_state import SearchState

_MOST_WITHOUT_GAIN = 6


def solve(start: SearchState, seed: int | None) -> SearchState | None:
    """Return a state in which tomorrow is reached; `None` if none is found. A seed shuffles equal moves."""
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
    """Rate a state: memory slices of new instances in their place, less those of old and displaced ones."""
    slices = 0.0
    for gpu, numbers in enumerate(state.placed):
        for number, start in numbers.items():
            occupant = state.occupants[number]
            size = 8 if start is None else state.rooms[state.kinds[gpu]].slices(str(occupant.profile))
            is_last = occupant.target is not None and number not in state.missing[occupant.target]
            slices += size if is_last else -size
    return slices + 4 * sum(not numbers for numbers in state.placed) - 0.01 * len(state.moves)
