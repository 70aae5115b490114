"""Caches that last as long as a study: a worker runs one after another, and each looks at the machine anew."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])

_clear: list[Callable[[], None]] = []


def cache_for_study(function: F) -> F:
    """Keep what a function returns until the next study begins in this process."""
    wrapped = functools.cache(function)
    _clear.append(wrapped.cache_clear)
    return wrapped  # type: ignore[return-value]


def clear() -> None:
    """Forget all that is kept."""
    for clear_one in _clear:
        clear_one()
