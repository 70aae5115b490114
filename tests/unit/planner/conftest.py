"""What tests of the planner share."""

from __future__ import annotations

import functools

import pytest

from pipeline.planner.serving import mig_serving, solvers


@pytest.fixture
def searches_by_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let searches end after some rounds, and not by the clock: a busy machine makes fewer in the same time."""
    searches = {solvers.TREE: mig_serving.search_tree, solvers.GENETIC: mig_serving.search_genes}
    by_rounds = {name: functools.partial(search, rounds=20) for name, search in searches.items()}
    monkeypatch.setattr(solvers, "_SEARCHES", by_rounds)
