"""Skipped groups: a group that began later replaces its skipped run."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from pipeline.base.domain.records import Result

_Run = TypeVar("_Run")


def drop_superseded(newest_first: Iterable[_Run], read: Callable[[_Run], tuple[Hashable, str | None]]) -> list[_Run]:
    """Drop skipped runs whose group began later; `read` returns group and outcome of a run."""
    runs: list[_Run] = []
    begun = set[Hashable]()
    for run in newest_first:
        group, result = read(run)
        if result != Result.SKIPPED:
            begun.add(group)
        elif group in begun:
            continue
        runs.append(run)
    return runs
