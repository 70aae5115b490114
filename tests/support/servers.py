"""Tests that need server programs: skipped if a program is missing, or an error if it should have been installed."""

from __future__ import annotations

import os

import pytest

REQUIRED = "COLLOCATION_TESTS_NEED_SERVERS"
"""The variable that `.ci/run` sets if it has installed the programs."""


def refuse_or_skip(missing: str) -> pytest.MarkDecorator:
    """Return the mark of a module whose tests need a program; `missing` is the reason why it is missing, or empty."""
    if missing and os.environ.get(REQUIRED):
        raise RuntimeError(f"{REQUIRED} is set, but {missing}")
    return pytest.mark.skipif(bool(missing), reason=missing)
