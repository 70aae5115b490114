"""Baselines: the runs with which a job or a group is compared, in the live table and in the report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

R = TypeVar("R")
J = TypeVar("J")
Jobs = tuple[str, ...]
"""The workload digests of a group's jobs, in order."""


@dataclass(slots=True)
class Baselines(Generic[R, J]):
    """Serial groups of one block, one GPU and one combination of settings, by their jobs."""

    _own: dict[str, list[J]] = field(default_factory=lambda: defaultdict(list))
    _mixes: dict[Jobs, tuple[R, Sequence[J]]] = field(default_factory=dict)

    def add(self, group: R, digests: Jobs, jobs: Sequence[J]) -> None:
        """Add a group with its jobs."""
        if len(digests) == 1:
            self._own[digests[0]] += jobs
        else:
            self._mixes[digests] = (group, jobs)

    def find_runs_alone(self, digest: str, together: Jobs) -> list[J]:
        """Find a job's runs alone; without any, its runs in the serial group of the same mix, else of any mix."""
        if digest in self._own:
            return self._own[digest]
        same = self._same(together)
        mixes = self._mixes if same is None else {same: self._mixes[same]}
        turns = (
            (digest_of_job, job)
            for digests, (_, jobs) in mixes.items()
            for digest_of_job, job in zip(digests, jobs, strict=True)
        )
        return [job for digest_of_job, job in turns if digest_of_job == digest]

    def find_serial_group(self, together: Jobs) -> R | None:
        """Find the serial group of the same jobs, preferably in this order; `None` if there is none."""
        same = self._same(together)
        return None if same is None else self._mixes[same][0]

    def _same(self, together: Jobs) -> Jobs | None:
        of_any = (digests for digests in self._mixes if sorted(digests) == sorted(together))
        return together if together in self._mixes else next(of_any, None)
