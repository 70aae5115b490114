"""Lifetime of a job as measured by the orchestrator; every instant that the job reports must lie within it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifetime:
    """Instants of CLOCK_MONOTONIC in ns; the defaults impose no bound.

    Attributes:
        begin_ns: instant just before the start of the job's process.
        released_ns: instant at which the job was released from the barrier.
        end_ns: instant by which the job had sent its `bye` or had exited.
    """

    begin_ns: int = 0
    released_ns: int = 0
    end_ns: int = 2**63 - 1


WHOLE_TIME = Lifetime()
"""Lifetime without bounds, for a job that was not observed."""
