"""When each phase of a group began and ended, as the orchestrator saw it: set up, launch, run, clean up."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pipeline import spool_format

FILE = "phases.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One phase. Instants are monotonic ns; phases of a group follow each other without a gap.

    Attributes:
        name: `setup` (lease to slots and listeners), `launch` (start of the processes to the barrier), `run` (release
            of the jobs to their end, a profiler's report among it) or `cleanup`.
    """

    name: str
    begin_ns: int
    end_ns: int


@dataclass(slots=True)
class PhaseLog:
    """The phases of one group, in order. A group whose jobs run one after another launches and runs several times."""

    phases: list[Phase] = field(default_factory=list)
    _name: str | None = None
    _begin_ns: int = 0

    def begin(self, name: str) -> None:
        """A phase begins, and the one before it ends; a phase that lasts already goes on."""
        if name != self._name:
            now_ns = time.monotonic_ns()
            self._close(now_ns)
            self._name, self._begin_ns = name, now_ns

    def end(self) -> None:
        """The present phase ends."""
        self._close(time.monotonic_ns())

    def _close(self, now_ns: int) -> None:
        if self._name is not None:
            self.phases.append(Phase(name=self._name, begin_ns=self._begin_ns, end_ns=now_ns))
            self._name = None

    def write(self, folder: Path) -> None:
        """Keep the phases in `phases.json`."""
        spool_format.write_json(folder / FILE, self.phases)


def seconds_by_name(phases: Iterable[Phase]) -> dict[str, float]:
    """How long each phase took in all. Unit: s."""
    total: dict[str, float] = {}
    for phase in phases:
        total[phase.name] = total.get(phase.name, 0.0) + (phase.end_ns - phase.begin_ns) / 1e9
    return total
