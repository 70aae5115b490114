"""Observations of a group: while it runs (`Watched`), and when it is over (`Observation`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.base.domain.records import Device, Slot
from pipeline.base.domain.samples import FieldTable, Sample
from pipeline.launch.interleaving import Slice
from pipeline.launch.job_group import JobGroup
from pipeline.launch.job_state import JobState
from pipeline.observe.changed_files import Changes
from pipeline.observe.clock import ClockRecord
from pipeline.observe.fields import Fields
from pipeline.observe.group_result import Span


@dataclass(slots=True)
class Watched:
    """The running group, for listeners, the live view and exporters (`pipeline.base.domain.protocols.Live`)."""

    device: Device
    slots: Sequence[Slot]
    folder: Path
    samples: Sequence[Sample]
    fields: Fields
    running: JobGroup | None = None

    @property
    def tables(self) -> Sequence[FieldTable]:
        return self.fields.tables

    def pids(self) -> Mapping[int, int]:
        return self.running.pids() if self.running is not None else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """Everything that one execution of a group left behind.

    Attributes:
        batches: jobs that ran at the same time: all of a collocated group, one at a time of a sequential one.
        places: where each job ran, if it got that far.
        reason: why the group ended early, if no job was the reason.
        slices: of an interleaved launch, also those with other numbers of jobs.
        first_with: number of jobs at which each job of an interleaved launch made its first steps, by its index.
        idle_w: power of the idle device, if it was read.
        changed: files below the working directory that changed meanwhile, if searched.
        tool_cpu_s, tool_wall_s: CPU time of the orchestrator and its samplers in the window, and the window's length.
    """

    batches: Sequence[Sequence[JobState]]
    samples: Sequence[Sample]
    fields: Fields = field(default_factory=Fields)
    places: Sequence[dict[str, str]] = ()
    reason: str | None = None
    interrupted: bool = False
    tool_cpu_s: float | None = None
    tool_wall_s: float | None = None
    idle_w: float | None = None
    spans: Sequence[Span] = ()
    tags: tuple[tuple[str, str], ...] = ()
    changed: Changes | None = None
    clock: ClockRecord = field(default_factory=ClockRecord)
    slices: Sequence[Slice] = ()
    first_with: Mapping[int, int] = field(default_factory=dict)
