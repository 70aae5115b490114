"""Remedies in errors that a study and the commands of `pipeline.gpu` can raise: keys for one, options for the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_has_options: ContextVar[bool] = ContextVar("has_options", default=False)


@contextmanager
def name_options() -> Iterator[None]:
    """Make remedies name the options of the commands of `pipeline.gpu` during the body."""
    token = _has_options.set(True)
    try:
        yield
    finally:
        _has_options.reset(token)


def choose_remedy(keys: str, options: str) -> str:
    """Choose the remedy of a study, which names configuration keys, or that of a command, which names its options."""
    return options if _has_options.get() else keys
