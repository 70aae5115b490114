"""Errors of Hydra, which Hydra raises instead of printing if HYDRA_FULL_ERROR is set in the environment.

`run.py` prints each error in one line and exits with status 2. Processes of a study get the user's own environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_VARIABLE = "HYDRA_FULL_ERROR"
_environments: list[str | None] = []
"""Earlier values of the variable, one for each active `raise_errors`, newest last."""


def is_traceback_wanted() -> bool:
    """Return whether the user has set the variable to request tracebacks."""
    return (_environments[0] if _environments else os.environ.get(_VARIABLE)) == "1"


@contextmanager
def raise_errors() -> Iterator[None]:
    """Make Hydra raise its errors in this process."""
    _environments.append(os.environ.get(_VARIABLE))
    try:
        with _variable("1"):
            yield
    finally:
        _environments.pop()


@contextmanager
def restore_environment() -> Iterator[None]:
    """Restore the user's environment for processes that start within the context."""
    with _variable(_environments[0] if _environments else os.environ.get(_VARIABLE)):
        yield


@contextmanager
def _variable(value: str | None) -> Iterator[None]:
    before = os.environ.pop(_VARIABLE, None)
    os.environ.update({} if value is None else {_VARIABLE: value})
    try:
        yield
    finally:
        os.environ.pop(_VARIABLE, None)
        os.environ.update({} if before is None else {_VARIABLE: before})
