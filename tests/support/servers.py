"""Tests of servers that not every machine has: skipped where one is missing, an error where it was to be installed."""

from __future__ import annotations

import os

import pytest

REQUIRED = "COLLOCATION_TESTS_NEED_SERVERS"
"""Set by `.ci/run` where it has installed them."""


def refuse_or_skip(missing: str) -> pytest.MarkDecorator:
    """The mark of a module whose tests need what may be missing, in words."""
    if missing and os.environ.get(REQUIRED):
        raise RuntimeError(f"{REQUIRED} is set, but {missing}")
    return pytest.mark.skipif(bool(missing), reason=missing)
