"""Lifetime of a job as the orchestrator saw it, which bounds every instant that the job reports."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """Instants of CLOCK_MONOTONIC in ns; without a bound where the orchestrator saw nothing.

    Attributes:
        begin_ns: just before its process was started.
        released_ns: before this it was held at the barrier.
        end_ns: when it had said that it is done, or was gone.
    """

    begin_ns: int = 0
    released_ns: int = 0
    end_ns: int = 2**63 - 1


WHOLE_TIME = Lifetime()
"""The life of a job of which nothing was seen."""
