"""Activity of the GPU's units, from the source that the GPU has: GPM on Hopper and later, DCGM elsewhere."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import ClassVar

from listeners.base import ThreadedListener
from listeners.gpm import GpmListener, NoCountersError
from pipeline.base.domain.protocols import RunningGroup, Sink
from pipeline.base.domain.records import Device
from pipeline.base.domain.samples import FieldTable
from pipeline.base.system.errors import ListenerError, NoSensorError

_CONSUMER = ("GeForce", "TITAN")
_NOT_PROFILED = "has no GPM counters, and DCGM profiles data center GPUs only; use listener nvml instead"


class ActivityListener:
    """Samples of listener gpm or, if the GPU gives none, of listener dcgm; they keep the name of their source.

    A simulated GPU is not sampled, because its counters have no values.
    """

    name: ClassVar[str] = "activity"

    def __init__(self, interval_ms: int, program: str | None = None) -> None:
        self._source: ThreadedListener = GpmListener(interval_ms)
        self._interval_ms, self._program = interval_ms, program

    @property
    def table(self) -> FieldTable:
        """The quantities of the source; before a group is observed, those of GPM, which have the same names."""
        return self._source.table

    def pids(self) -> Sequence[int]:
        return self._source.pids()

    def describe_missing_source(self, device: Device) -> str | None:
        """Return why neither source can read a GPU, as far as this is known before the study; else `None`."""
        if device.has_gpm is False and any(name in device.name for name in _CONSUMER):
            return f"{device.name} {_NOT_PROFILED}"
        program = self._program or "dcgmi"
        if device.is_simulated or device.has_gpm is not False or shutil.which(program) is not None:
            return None
        return f"{device.name} has no GPM counters, and {program} is not on PATH; install NVIDIA DCGM"

    @contextmanager
    def observe(self, group: RunningGroup, sink: Sink) -> Iterator[None]:
        device = group.device
        if not device.is_gpu or device.is_simulated:
            name = f"the simulated {device.name}" if device.is_simulated else f"{device.name}, which is not a GPU,"
            raise NoSensorError(f"listener activity: {name} has no counters; leave activity out")
        self._source = GpmListener(self._interval_ms)
        with ExitStack() as stack:
            try:
                stack.enter_context(self._source.observe(group, sink))
            except ListenerError as without_gpm:
                if isinstance(without_gpm, NoCountersError) and any(name in device.name for name in _CONSUMER):
                    text = f"listener activity: {device.name} {_NOT_PROFILED}, or leave activity out"
                    raise NoSensorError(text) from without_gpm
                # Imported late, because most machines with this listener have GPM, or no GPU.
                from listeners.dcgm import DcgmListener

                self._source = DcgmListener(self._interval_ms, self._program)
                try:
                    stack.enter_context(self._source.observe(group, sink))
                except ListenerError as without_dcgm:
                    raise _combine(without_gpm, without_dcgm) from without_dcgm
            yield


def _combine(gpm: ListenerError, dcgm: ListenerError) -> ListenerError:
    """Return one error for both sources, with the remedy for DCGM if the GPU has no GPM, else with that for GPM."""
    text = f"{str(gpm).partition('; ')[0]}, and {dcgm}" if isinstance(gpm, NoCountersError) else str(gpm)
    text = text.removeprefix("listener gpm: ")
    for name in ("gpm", "dcgm"):
        text = text.replace(f"leave {name} out", "leave activity out")
    return ListenerError(f"listener activity: {text}")
