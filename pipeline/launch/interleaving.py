"""Slices of a launch: some of its jobs work, the others are held at a step boundary.

Groups that differ only in their number of jobs share a launch in this way. Rates are then compared within seconds, and
a launch is paid for once. A launch, not a slice, is what the statistics count (docs/statistics.md).
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pipeline.base.domain import layout
from pipeline.base.domain.window import Window
from pipeline.launch import events, window_length
from pipeline.launch.job_group import JobGroup
from pipeline.launch.job_state import JobState

FIRST_STEPS = 10
"""Steps of a job that are checked against the same job alone, and made at the number of jobs that it begins with."""
_LONGEST_FIRST_S = 20.0
_LOOK_S = 0.02
_HOLD_TRIAL_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A time in which the first `num_jobs` jobs of a launch worked and the others were held."""

    num_jobs: int
    begin_ns: int
    end_ns: int


class Interleaving:
    """The slices of one launch.

    Args:
        running: the jobs, all ready and none released.
        window: of each group of the launch; if it lacks the length of slices, the speed of the jobs decides.
        turns: number of slices a round, by number of jobs.
        seed: of the order of slices within a round.

    Attributes:
        window: the window with the length of slices, once it is chosen.
        slices: the slices measured so far.
        jobs_at_first_steps: number of jobs that ran when a job made its first steps, by its index; without slow jobs.
    """

    def __init__(self, running: JobGroup, window: Window, turns: Mapping[int, int], seed: str) -> None:
        self._running, self.window = running, window
        self._turns = dict(sorted(turns.items()))
        self._random = random.Random(seed)  # noqa: S311  an order, not a secret
        self._working: list[JobState] = []
        self.slices: list[Slice] = []
        self.jobs_at_first_steps: dict[int, int] = {}

    def measure(self) -> None:
        """Let the jobs begin, measure all slices, and end the jobs; returns early if a job goes wrong."""
        # A slice without jobs shows a job that works on while it is held, also in a launch that never holds it later.
        is_ready = self._begin() and self._choose_length() and self._measure_slice(0, _HOLD_TRIAL_S)
        if is_ready and all(self._measure_slice(number, self.window.slice_s) for number in self._choose_order()):
            self._running.stop(self._running.states)

    def _begin(self) -> bool:
        """Release the jobs, fewest first, so that each number of jobs sees first steps of some job."""
        for number in self._turns:
            new = self._running.states[len(self._working) : number]
            self._running.release(new)
            self._working += new
            if not self._running.wait(partial(_have_made_first_steps, new), _LONGEST_FIRST_S, _LOOK_S):
                return False
            self.jobs_at_first_steps |= {state.job.index: number for state in new if _have_made_first_steps([state])}
        return True

    def _choose_length(self) -> bool:
        """Choose the length of slices while all jobs work, unless it is known; return whether all went well."""
        if self.window.slice_s:
            return True
        logs = [state.folder / layout.EVENTS for state in self._working]
        begin = [events.read_progress(log) for log in logs]
        if not self._running.wait_until(time.monotonic_ns() + int(window_length.SLICE_TRIAL_S * 1e9)):
            return False
        slice_s = window_length.choose_slice_s(self.window, [begin, [events.read_progress(log) for log in logs]])
        self.window = dataclasses.replace(self.window, slice_s=slice_s)
        return True

    def _choose_order(self) -> Sequence[int]:
        """Return the number of jobs of each slice: rounds, each in an order of its own."""
        in_round = [number for number, turns in self._turns.items() for _ in range(turns)]
        rounds = range(self.window.num_slices)
        return [number for _ in rounds for number in self._random.sample(in_round, len(in_round))]

    def _measure_slice(self, num_jobs: int, length_s: float) -> bool:
        """Hold and continue jobs so that `num_jobs` work, and measure; return whether all went well."""
        to_hold, self._working = self._working[num_jobs:], self._running.states[:num_jobs]
        if not self._running.hold(to_hold):
            return False
        self._running.resume(self._working)
        begin_ns = time.monotonic_ns() + int(self.window.settle_s * 1e9)
        end_ns = begin_ns + int(length_s * 1e9)
        if not self._running.wait_until(end_ns):
            return False
        self.slices.append(Slice(num_jobs=num_jobs, begin_ns=begin_ns, end_ns=end_ns))
        return True


def _have_made_first_steps(states: Sequence[JobState]) -> bool:
    return all(events.count_steps(state.folder / layout.EVENTS) >= FIRST_STEPS for state in states)
