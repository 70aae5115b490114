"""Power of the GPUs of a study while they do no work: without jobs, and with jobs that wait at the barrier."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from pipeline.base.domain import idle_measurements
from pipeline.base.domain.idle_measurements import Key
from pipeline.base.domain.records import Group
from pipeline.base.domain.samples import Sample
from pipeline.base.system import words
from pipeline.observe import phases, sample_figures
from pipeline.observe.fields import POWER, Fields
from pipeline.observe.phases import Phases


class IdlePower:
    """The measured powers in W. A measurement is not repeated, even if its readings had gaps."""

    def __init__(self) -> None:
        self._power_w: dict[Key, float | None] = {}

    def measure(
        self,
        group: Group,
        num_jobs: int,
        wait: Callable[[float], object],
        samples: Sequence[Sample],
        fields: Fields,
        spent: Phases,
    ) -> None:
        """Measure the power with a number of waiting jobs, unless it is known or not needed.

        `wait` waits some seconds, in which `samples` grow, and returns `False` if a job has left. Only the second half
        of this time counts: in the first half, clocks may still fall, and the power of NVML is a mean that includes the
        previous second.
        """
        key, seconds = idle_measurements.make_key(group, num_jobs), idle_measurements.get_seconds(group, num_jobs)
        if not seconds or key in self._power_w:
            return
        if not num_jobs:
            words.say(f"    measuring the power of the idle GPU for {seconds:g} s")
        spent.begin(phases.IDLE)
        begin_ns = time.monotonic_ns()
        if wait(seconds) is not False:
            end_ns = time.monotonic_ns()
            read = sample_figures.group_by_subject(list(samples)).get(sample_figures.WHOLE, {})
            figures = sample_figures.compute_figures(read, fields, [((begin_ns + end_ns) // 2, end_ns)])
            self._power_w[key] = figures.get(POWER)

    def get_w(self, group: Group, num_jobs: int) -> float | None:
        """Return the power with a number of waiting jobs; `None` if it was not measured."""
        return self._power_w.get(idle_measurements.make_key(group, num_jobs))
