"""The running group, for listeners, the terminal view and exporters."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.domain.records import Device, Slot
from pipeline.base.domain.samples import FieldTable, Sample


@dataclass(slots=True, kw_only=True)
class RunningGroup:
    """The device, slots, processes and samples of a group while it runs.

    Attributes:
        device: device that the group uses.
        slots: one slot per job.
        folder: folder of the group, which contains the folders of the jobs.
        samples: all samples so far, in order of arrival; the sequence may grow while it is read.
        tables: quantities of each listener, once all listeners have started.
        pids: function that returns the PID of each running job by its index; jobs may share a process.
    """

    device: Device
    slots: Sequence[Slot]
    folder: Path
    samples: Sequence[Sample]
    tables: Sequence[FieldTable] = ()
    pids: Callable[[], Mapping[int, int]] = dict
