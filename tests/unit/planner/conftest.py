"""What tests of the planner share."""

from __future__ import annotations

import functools

import pytest

from pipeline.planner.serving import genetic, solvers, tree


@pytest.fixture
def searches_by_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let searches end after some rounds, and not by the clock: a busy machine makes fewer in the same time."""
    searches = {solvers.TREE: tree.search, solvers.GENETIC: genetic.search}
    by_rounds = {name: functools.partial(search, rounds=20) for name, search in searches.items()}
    monkeypatch.setattr(solvers, "_SEARCHES", by_rounds)
