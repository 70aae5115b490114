"""Caches that are cleared between studies: a worker runs several studies, and each must read the machine again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

F = TypeVar("F", bound=Callable[..., object])

_clear: list[Callable[[], None]] = []


def cache_for_study(function: F) -> F:
    """Cache the results of a function until the next study begins in this process."""
    wrapped = functools.cache(function)
    _clear.append(wrapped.cache_clear)
    return wrapped  # type: ignore[return-value]


def clear() -> None:
    """Clear all caches."""
    for clear_one in _clear:
        clear_one()
