"""Power of the GPUs of a study while they do no work: without jobs, and with jobs that wait at the barrier."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from pipeline.base.domain import idle_measurements
from pipeline.base.domain.idle_measurements import Key
from pipeline.base.domain.protocols import RunningGroup
from pipeline.base.domain.records import Group
from pipeline.base.system import words
from pipeline.base.system.errors import ListenerError
from pipeline.base.system.interrupts import UndoStack
from pipeline.observe import phases, sample_figures
from pipeline.observe.phases import Phases
from pipeline.observe.sample_figures import POWER, Fields, SampleLog


class IdlePower:
    """The measured powers in W. A measurement is not repeated, even if its readings had gaps."""

    def __init__(self) -> None:
        self._power_w: dict[Key, float | None] = {}

    def measure_idle(self, group: Group, folder: Path, sink: SampleLog, spent: Phases) -> None:
        """Measure the power of a GPU without jobs, unless it is known or not needed.

        This precedes the preparation of the sharing mode, because the MPS server has a context.
        """
        seconds = self._find_seconds(group, 0)
        if not seconds:
            return
        words.say(f"    measuring the power of the idle GPU for {seconds:g} s")
        listeners = idle_measurements.build_power_listeners(group)
        fields = Fields(listener.table for listener in listeners)
        idle_group = RunningGroup(
            device=group.device, slots=(), folder=folder, samples=sink.samples, tables=fields.tables
        )
        try:
            with UndoStack() as stack:
                for listener in listeners:
                    stack.enter_context(listener.observe(idle_group, sink))
                self._measure(group, 0, time.sleep, sink, fields, spent)
        except ListenerError:
            return  # the group has the same listener, and reports the error

    def measure_waiting(
        self,
        group: Group,
        wait: Callable[[float], bool],
        sink: SampleLog,
        fields: Fields,
        spent: Phases,
    ) -> None:
        """Measure the power while the jobs of a group wait, unless it is known or not needed.

        `wait` waits some seconds, and returns `False` if a job has left.
        """
        num_jobs = idle_measurements.count_contexts(group)
        if self._find_seconds(group, num_jobs):
            self._measure(group, num_jobs, wait, sink, fields, spent)

    def get_w(self, group: Group, num_jobs: int) -> float | None:
        """Return the power with a number of waiting jobs; `None` if it was not measured."""
        return self._power_w.get(idle_measurements.make_key(group, num_jobs))

    def _find_seconds(self, group: Group, num_jobs: int) -> float:
        is_known = idle_measurements.make_key(group, num_jobs) in self._power_w
        return 0.0 if is_known else idle_measurements.get_seconds(group, num_jobs)

    def _measure(
        self,
        group: Group,
        num_jobs: int,
        wait: Callable[[float], object],
        sink: SampleLog,
        fields: Fields,
        spent: Phases,
    ) -> None:
        """Compute the mean power in the second half of the time.

        In the first half, clocks may still fall, and the power of NVML is a mean that includes the previous second.
        """
        spent.begin(phases.IDLE)
        begin_ns = time.monotonic_ns()
        if wait(idle_measurements.get_seconds(group, num_jobs)) is False:
            return
        end_ns = time.monotonic_ns()
        read = sample_figures.group_by_subject(list(sink.samples)).get(sample_figures.WHOLE, {})
        figures = sample_figures.compute_figures(read, fields, [((begin_ns + end_ns) // 2, end_ns)])
        self._power_w[idle_measurements.make_key(group, num_jobs)] = figures.get(POWER)
