"""What tests of the planner share."""

from __future__ import annotations

import functools

import pytest

from pipeline.planner.serving import mig_serving


@pytest.fixture
def searches_by_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let searches end after some rounds, and not by the clock: a busy machine makes fewer in the same time."""
    monkeypatch.setattr(mig_serving, "search", functools.partial(mig_serving.search, rounds=20))
