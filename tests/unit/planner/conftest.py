"""What tests of the planner share."""

from __future__ import annotations

import functools

import pytest

from pipeline.planner.serving import genetic, methods, tree


@pytest.fixture
def searches_by_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let searches end after some rounds, and not by the clock: a busy machine makes fewer in the same time."""
    searches = {methods.TREE: tree.search, methods.GENETIC: genetic.search}
    by_rounds = {name: functools.partial(search, rounds=20) for name, search in searches.items()}
    monkeypatch.setattr(methods, "_SEARCHES", by_rounds)
