"""What the steps of a job say: its rate in the window, its step times, and whether it stood still at an edge."""

from __future__ import annotations

import itertools
import math
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Sequence

from pipeline.base import units
from pipeline.base.records import WindowKind
from pipeline.launch.events import Events, Steps
from pipeline.observe.logged.metric import Points
from pipeline.observe.sampled import Window

STALL_STEPS = 5
STALL_SHARE = 0.05
"""A job stood still that made no step at an edge of the window for so many step times, and this share of the window."""


def figures(kind: WindowKind, unit: str, log: Events, window: Window) -> dict[str, float]:
    """The rate in the unit that the steps count, and step times, in the window; none if no step was completed in it."""
    steps = log.steps
    if not steps.t_ns or log.started_ns is None:
        return {}
    if kind is WindowKind.WORK:
        # Steps may follow the last epoch that was reported: its time is not theirs.
        num = bisect_right(steps.t_ns, log.epochs[-1].t_ns) if log.epochs else 0
        seconds = sum(epoch.seconds for epoch in log.epochs) if num else (steps.t_ns[-1] - log.started_ns) / 1e9
        rate, inside = steps.total[num - 1] / seconds, range(1, len(steps.t_ns))
    else:
        begin, end = window
        first, last = bisect_right(steps.t_ns, begin) - 1, bisect_right(steps.t_ns, end) - 1
        if last <= first or first < 0:
            return {}
        rate = (_done(steps, end) - _done(steps, begin)) / ((end - begin) / 1e9)
        inside = range(first + 1, last + 1)
    metrics = {units.rate_of(unit): rate, units.number_of(unit): float(steps.total[-1])}
    times_ms = sorted(_times_ms(steps, inside))
    for percent in (50, 95, 99):
        if times_ms:
            metrics[f"step_time_p{percent}_ms"] = times_ms[math.ceil(percent / 100 * len(times_ms)) - 1]
    return metrics


def common_window(spans: Sequence[Window]) -> Window | None:
    """Return the time in which all of several jobs logged how fast they are; `None` if there is none."""
    begin, end = max(begin for begin, _ in spans), min(end for _, end in spans)
    return (begin, end) if begin < end else None


def logged_span(points: Points, begin_ns: int) -> Window:
    """Return the time that the values of a job tell of, given its begin.

    That is from its first value on: what a job does before it is its start-up, and part of that value. A single value
    is the mean of the whole run.
    """
    return (points[0][0] if len(points) > 1 else min(begin_ns, points[0][0]), points[-1][0])


def logged_rate(points: Points, window: Window | None) -> float:
    """The rate that a job logged: the mean over the window, each value for the time since the one before.

    Without a window, its last value is that of its whole run, as the program understands it.
    """
    if window is None:
        return points[-1][1]
    begin, end = window
    weighted = [
        (max(0, min(now, end) - max(before, begin)), value) for (before, _), (now, value) in itertools.pairwise(points)
    ]
    total_ns = sum(ns for ns, _ in weighted)
    return sum(ns * value for ns, value in weighted) / total_ns if total_ns else points[-1][1]


def num_values(points: Points, window: Window) -> int:
    """Count the values that tell of a window: those in it, and one that came after it and tells of its end."""
    inside = sum(window[0] < t_ns < window[1] for t_ns, _ in points)
    return inside + any(t_ns >= window[1] for t_ns, _ in points)


def stall(log: Events, window: Window) -> str | None:
    """In words, where at an edge of the window a job made no step for several of its step times; `None` if nowhere.

    The first step of an epoch may take longer, as validation and the start of a loader do.
    """
    steps, t_ns, (begin, end) = log.steps, log.steps.t_ns, window
    first, following = bisect_right(t_ns, begin), bisect_right(t_ns, end)
    if not 0 < first < following:
        return None  # no step in the window: that is a failure, not a stall
    usual_ms = statistics.median(_times_ms(steps, range(1, len(t_ns))) or [math.inf])
    limit_ms = max(STALL_STEPS * usual_ms, STALL_SHARE * (end - begin) / 1e6)
    edges = (("first", first, begin, t_ns[first]), ("last", following, t_ns[following - 1], end))
    for edge, step, since_ns, until_ns in edges:
        idle_ms = (until_ns - since_ns) / 1e6
        if idle_ms > limit_ms and not (step < len(t_ns) and _begins_epoch(steps, step)):
            return f"made no step in the {edge} {idle_ms / 1e3:.3g} s of the window (a step takes {usual_ms:.3g} ms)"
    return None


def _done(steps: Steps, t_ns: int) -> float:
    """Work done by an instant after the first step; of a step under way, as much as of its time has passed."""
    following = bisect_right(steps.t_ns, t_ns)
    before_ns, before = steps.t_ns[following - 1], steps.total[following - 1]
    if following == len(steps.t_ns):
        return before
    share = (t_ns - before_ns) / (steps.t_ns[following] - before_ns)
    return before + share * (steps.total[following] - before)


def _times_ms(steps: Steps, numbers: Iterable[int]) -> list[float]:
    """The first step of an epoch waits for validation or for the loader to begin again: that is no step time."""
    return [(steps.t_ns[i] - steps.t_ns[i - 1]) / 1e6 for i in numbers if not _begins_epoch(steps, i)]


def _begins_epoch(steps: Steps, number: int) -> bool:
    return steps.epoch[number] != steps.epoch[number - 1]
