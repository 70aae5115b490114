"""The words of trials: their arguments, without those that all trials share."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence

from pipeline.base.domain.group_names import ARGUMENTS
from pipeline.base.domain.records import Job


def find_shared_words(trials: Sequence[Job]) -> frozenset[int]:
    """Find the places of the arguments that are equal in all trials, without a flag before one that differs."""
    return find_shared_places([_list_arguments(trial) for trial in trials])


def find_shared_places(rows: Sequence[Sequence[str]]) -> frozenset[int]:
    """Find the places of the words that are equal in all rows, without a flag before one that differs."""
    if len(rows) < 2 or len({len(words) for words in rows}) > 1:
        return frozenset()
    shared = {place for place, words in enumerate(zip(*rows, strict=True)) if len(set(words)) == 1}
    differing = set(range(len(rows[0]))) - shared
    return frozenset(place for place in shared if not (place + 1 in differing and rows[0][place].startswith("-")))


def spell_arguments(trial: Job, shared: Collection[int]) -> str:
    """Return the arguments of a trial, without secrets and those that all trials share."""
    return shlex.join(word for place, word in enumerate(_list_arguments(trial)) if place not in shared)


def spell_trial(trial: Job, shared: Collection[int]) -> str:
    """Return the number of a trial, its program and its arguments, as `spell_arguments`."""
    return f"{trial.name} {spell_arguments(trial, shared)}".rstrip()


def _list_arguments(trial: Job) -> list[str]:
    return shlex.split(dict(trial.workload.params).get(ARGUMENTS, ""))
