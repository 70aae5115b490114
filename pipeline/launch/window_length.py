"""The length of a steady window: fixed, or by need, from the scatter of the jobs' speed in a trial before the window.

The length of slices comes from their speed in such a trial.
The trial is no part of the window, so a length that its luck decides does not bias the rate (docs/statistics.md).
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence

from pipeline.base.domain.window import Window
from pipeline.launch.events import JobProgress

STEADY_RATIO, UNSTEADY_RATIO = 0.005, 0.03
"""Scatter of the speed, up to which a window has its shortest length, and from which it has its longest length."""
LEAST_STEPS = 25
"""Number of steps that each job makes in a window by need; below 20, a rate gets a note."""
NUM_PIECES, PIECE_S = 4, 0.24
"""Number and length of the pieces of a trial; the time left in the trial is for the last reading."""

SLICES_S, LEAST_SLICE_STEPS = (0.5, 1.0, 2.0), 50
"""Possible lengths of a slice, and the number of steps that each job should make in one."""
SLICE_TRIAL_S = 0.5


def list_reading_times_ns(window: Window, start_ns: int) -> list[int]:
    """Return the instants at which the progress of the jobs is read in the trial; empty for a fixed length."""
    begin_ns = start_ns + int(window.settle_s * 1e9)
    return [begin_ns + int(number * PIECE_S * 1e9) for number in range(NUM_PIECES + 1)] if window.most_s else []


def choose_seconds(window: Window, readings: Sequence[Sequence[JobProgress]]) -> float:
    """Choose the length of the window from the progress of each job at the instants of the trial.

    The longest window is chosen if a job made no step in a piece, or if its steps are unknown.
    """
    if not readings:
        return window.seconds
    speeds = [_list_speeds(progress) for progress in zip(*readings, strict=True)]
    if not all(speeds):
        return window.most_s
    # The mean over the jobs of their speed, each relative to its own mean, because jobs may have different units.
    relative = [[speed / statistics.fmean(of_job) for speed in of_job] for of_job in speeds]
    scatter = statistics.stdev(map(statistics.fmean, zip(*relative, strict=True)))
    share = (scatter - STEADY_RATIO) / (UNSTEADY_RATIO - STEADY_RATIO)
    by_scatter = window.seconds + share * (window.most_s - window.seconds)
    by_steps = LEAST_STEPS / min(map(statistics.fmean, speeds))
    return min(window.most_s, max(window.seconds, by_scatter, by_steps))


def choose_slice_s(window: Window, readings: Sequence[Sequence[JobProgress]]) -> float:
    """Choose the length of slices from the progress of each job at the begin and the end of a trial of all jobs.

    The longest slices are chosen if the steps of a job are unknown; only the shortest can be longer than the window.
    """
    slowest = min(max(_list_speeds(progress), default=0.0) for progress in zip(*readings, strict=True))
    lengths_s = [length_s for length_s in SLICES_S if length_s <= max(SLICES_S[0], window.seconds)]
    return next((length_s for length_s in lengths_s if length_s * slowest >= LEAST_SLICE_STEPS), lengths_s[-1])


def _list_speeds(readings: Sequence[JobProgress]) -> list[float]:
    """Return a job's steps per second in each piece; empty if they are unknown in one of the pieces."""
    speeds = []
    for before, after in itertools.pairwise(readings):
        if before.total is None or before.t_ns is None or after.total is None or after.t_ns is None:
            return []
        if not after.samples or after.t_ns <= before.t_ns or after.total <= before.total:
            return []
        speeds.append((after.total - before.total) / after.samples / ((after.t_ns - before.t_ns) / 1e9))
    return speeds
