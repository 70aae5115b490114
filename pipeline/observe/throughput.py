"""The work of a job and its rate: from its steps, its requests, its logged rate, or its whole run.

Only this module distinguishes all ways in which a job can report work. A stressor reports each turn as a phase, `turn
RESOURCE DIAL`; all jobs of a host have one monotonic clock, so the steps of any job can be held against its turns.
"""

from __future__ import annotations

import itertools
import math
import re
import statistics
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple

from pipeline.base.domain import work_units
from pipeline.base.domain.records import Group, Job
from pipeline.base.domain.tags import Tag
from pipeline.base.domain.window import IDLE, SETTLE_S, TURN_S, Place, TurnRates, WindowKind, format_turns
from pipeline.base.system.words import list_first
from pipeline.launch.events import Events
from pipeline.launch.job_state import JobState
from pipeline.launch.job_steps import Steps
from pipeline.launch.requests import Requests
from pipeline.observe import latency
from pipeline.observe.logged_rate import LoggedRate, Points
from pipeline.observe.sample_figures import Window, measure_seconds

STALL_STEPS = 5
STALL_SHARE = 0.05
"""A job is stalled if the time without a step at an edge of the window is above `STALL_STEPS` step times and above
`STALL_SHARE` of the window."""

PAUSE_STEPS, PAUSE_SHARE, MOST_PAUSED_RATIO = 2.5, 0.1, 0.02
"""A job pauses if a step takes longer than `PAUSE_STEPS` usual steps and `PAUSE_SHARE` of a slice. If it pauses for
more than `MOST_PAUSED_RATIO` of its time, slices give a wrong rate: they begin after a step and end anywhere, so that
they cover too many or too few pauses."""

LEAST_GAPS, LONG_TIMES, LONG_SHARE = 2, 4, 0.1
"""A logged value covers too much time if, with `LEAST_GAPS` or more values in the window, it covers more than
`LONG_TIMES` medians and more than `LONG_SHARE` of the window."""

LEAST_KNOWN = 0.25
"""Least part of a window in which the values of all jobs must be known for the rest of it to be left out."""


def compute_step_figures(
    kind: WindowKind, unit: str, log: Events, windows: Sequence[Window], holds: Sequence[Window] = ()
) -> dict[str, float]:
    """Return rate and times of the steps in the windows, without holds; none if a window has no complete step."""
    steps = log.steps
    if not steps.t_ns or log.started_ns is None:
        return {}
    number = steps.total[-1]
    if kind is WindowKind.WORK:
        if (epoch_rate := _compute_epoch_rate(log)) is None:
            return {}
        rate, inside = epoch_rate, [range(1, len(steps))]
    else:
        inside = [_find_steps(steps, window) for window in windows]
        if not all(inside):
            return {}
        done = sum(measure_work(steps, window, holds) for window in windows)
        rate = done / sum(measure_seconds(window) for window in windows)
        number = done if kind is WindowKind.INTERLEAVED else number
    metrics = {work_units.rate_of(unit): rate, work_units.number_of(unit): number}
    held = {bisect_right(steps.t_ns, begin) for begin, _ in holds}  # the duration of these steps is unknown
    times_of = [steps.sorted_times_ms(part.start + (part.start in held), part.stop) for part in inside]
    times_ms = times_of[0] if len(times_of) == 1 else sorted(itertools.chain(*times_of))
    for percent in (50, 95, 99):
        if len(times_ms) and steps.per_entry == 1:
            metrics[f"step_time_p{percent}_ms"] = times_ms[math.ceil(percent / 100 * len(times_ms)) - 1]
    return metrics


def _find_steps(steps: Steps, window: Window) -> range:
    """Return the numbers of the steps that ended in a window; empty if no step ended before the window."""
    first, last = (bisect_right(steps.t_ns, t_ns) - 1 for t_ns in window)
    return range(first + 1, last + 1) if first >= 0 else range(0)


def find_logged_span(points: Points, begin_ns: int) -> Window:
    """Return the time that a job's logged values cover: from the first value, after the start-up, to the last value.

    A single value is the mean of the whole run, which begins at `begin_ns`.
    """
    return (points[0][0] if len(points) > 1 else min(begin_ns, points[0][0]), points[-1][0])


def average_logged_rate(points: Points, windows: Sequence[Window]) -> float:
    """Return the mean of the logged values over the windows; each value covers the time since the previous value.

    Without windows, return the last value, which is the program's own figure for its whole run; of a counter, return
    the mean.
    """
    if not windows:
        if not math.isnan(points[0][1]):
            return points[-1][1]
        windows = [(points[0][0], points[-1][0])]
    covered = [part for window in windows for part in _clip_values(points, window)]
    total_ns = sum(ns for ns, _ in covered)
    return sum(ns * value for ns, value in covered) / total_ns if total_ns else points[-1][1]


def cut_gaps(window: Window, points_of_jobs: Iterable[Points]) -> list[Window]:
    """Return the parts of a window in which the logged values of all jobs are known, if they are `LEAST_KNOWN` of it.

    While the counter of one job begins again, as for a validation, the others may be faster.
    """
    begin, end = window
    gaps = (
        (before, after)
        for points in points_of_jobs
        for (before, _), (after, value) in itertools.pairwise(points)
        if math.isnan(value)
    )
    parts = list[Window]()
    for gap_begin, gap_end in sorted(gaps):
        parts.append((begin, min(gap_begin, end)))
        begin = max(begin, gap_end)
    parts.append((begin, end))
    known = [part for part in parts if part[0] < part[1]]
    return known if sum(map(measure_seconds, known)) >= LEAST_KNOWN * measure_seconds(window) else [window]


def _clip_values(points: Points, window: Window) -> Iterator[tuple[int, float]]:
    """Yield the time that each known value covers in a window, in ns, and the value."""
    begin, end = window
    first = max(0, bisect_right(points, begin, key=itemgetter(0)) - 1)
    last = bisect_left(points, end, key=itemgetter(0))
    for (before, _), (after, value) in itertools.pairwise(points[first : last + 1]):
        covered_ns = min(after, end) - max(before, begin)
        if covered_ns > 0 and not math.isnan(value):
            yield covered_ns, value


def count_values(points: Points, window: Window) -> int:
    """Count the known values that cover a part of a window: those inside, and the first one after the window."""
    known_ns = [t_ns for t_ns, value in points if not math.isnan(value)]
    return sum(window[0] < t_ns < window[1] for t_ns in known_ns) + any(t_ns >= window[1] for t_ns in known_ns)


def describe_long_value(points: Points, window: Window) -> str | None:
    """Report that a logged value covers a much longer time than the others in a window; `None` if none does.

    Values of this time that were not logged, or not found, may have been different.
    """
    gaps_ns = sorted(covered_ns for covered_ns, _ in _clip_values(points, window))
    if len(gaps_ns) < LEAST_GAPS:
        return None
    longest_ns, usual_ns = gaps_ns[-1], gaps_ns[(len(gaps_ns) - 1) // 2]
    if longest_ns <= max(LONG_TIMES * usual_ns, LONG_SHARE * (window[1] - window[0])):
        return None
    return f"one logged value covers {longest_ns / 1e9:.3g} s of the window, the others {usual_ns / 1e9:.3g} s"


def describe_stall(log: Events, window: Window) -> str | None:
    """Describe a pause of several step times at an edge of the window; `None` if there is none.

    A longer first step of an epoch is not a pause, because it may include validation and the start of a data loader.
    """
    steps, t_ns, (begin, end) = log.steps, log.steps.t_ns, window
    first, following = bisect_right(t_ns, begin), bisect_right(t_ns, end)
    if not 0 < first < following:
        return None  # no step in the window: that is a failure, not a stall
    times_ms = steps.sorted_times_ms()
    middle = len(times_ms) // 2
    usual_ms = (times_ms[middle] + times_ms[~middle]) / 2 if len(times_ms) else math.inf
    limit_ms = max(STALL_STEPS * usual_ms, STALL_SHARE * (end - begin) / 1e6)
    edges = (("first", first, begin, t_ns[first]), ("last", following, t_ns[following - 1], end))
    for edge, step, since_ns, until_ns in edges:
        idle_ms = (until_ns - since_ns) / 1e6
        if idle_ms > limit_ms and not (step < len(t_ns) and steps.begins_epoch(step)):
            return f"made no step in the {edge} {idle_ms / 1e3:.3g} s of the window (a step takes {usual_ms:.3g} ms)"
    return None


def describe_pauses(steps: Steps, slices: Sequence[Window], settle_ns: int, holds: Sequence[Window]) -> str | None:
    """Report pauses of a job in its slices, in their settling times, and until the first step after a slice."""
    end_ns = slices[-1][1]
    if not steps.t_ns or steps.t_ns[0] >= end_ns:
        return None
    t_ns = [*steps.t_ns, max(steps.t_ns[-1], end_ns)]
    times_ns = {
        number: t_ns[number] - t_ns[number - 1]
        for begin, end in slices
        for number in range(max(1, bisect_right(t_ns, begin - settle_ns)), bisect_left(t_ns, end) + 1)
    }
    usual_ns = statistics.median_low(times_ns.values())
    limit_ns = max(PAUSE_SHARE * min(end - begin for begin, end in slices), PAUSE_STEPS * usual_ns)
    for number in [number for number, time_ns in times_ns.items() if time_ns > limit_ns]:
        times_ns[number] = _measure_working_ns(t_ns[number - 1], t_ns[number], holds)
    pauses_ns = [time_ns for time_ns in times_ns.values() if time_ns > limit_ns]
    share = sum(pauses_ns) / sum(times_ns.values())
    if share <= MOST_PAUSED_RATIO:
        return None
    pauses = f"up to {max(pauses_ns) / 1e9:.3g} s between steps of {usual_ns / 1e6:.3g} ms"
    return f"paused for {pauses}, {100 * share:.0f} % of its time; set window=steady"


def measure_work(steps: Steps, window: Window, holds: Sequence[Window] = ()) -> float:
    """Return the work in a window; a step across an edge counts by its share."""
    begin, end = (_interpolate_work(steps, t_ns, holds) for t_ns in window)
    return end - begin


def _interpolate_work(steps: Steps, t_ns: int, holds: Sequence[Window] = ()) -> float:
    following = bisect_right(steps.t_ns, t_ns)
    if not following:
        return 0.0
    before_ns, before = steps.t_ns[following - 1], steps.total[following - 1]
    if following == len(steps.t_ns):
        return before
    left_ns, step_ns = (_measure_working_ns(since, steps.t_ns[following], holds) for since in (t_ns, before_ns))
    return steps.total[following] - left_ns / step_ns * (steps.total[following] - before)


def _measure_working_ns(begin_ns: int, end_ns: int, holds: Sequence[Window]) -> int:
    held_ns = sum(max(0, min(end_ns, end) - max(begin_ns, begin)) for begin, end in holds)
    return max(1, end_ns - begin_ns - held_ns)


def _compute_epoch_rate(log: Events) -> float | None:
    """Return the rate over the time of all epochs, else from the start to the last step."""
    steps, started_ns = log.steps, log.started_ns or 0
    if not log.epochs:
        seconds, work = (steps.t_ns[-1] - started_ns) / 1e9, steps.total[-1]
    elif log.lacks_epochs:
        # Some epochs were not reported, so only the work within the reported epochs counts.
        spans = [(epoch.t_ns - int(epoch.whole_s * 1e9), epoch.t_ns) for epoch in log.epochs]
        work = sum(measure_work(steps, span) for span in spans)
        seconds = sum(epoch.seconds for epoch in log.epochs)
    else:
        # Steps after the last reported epoch do not count, because their time is unknown.
        num = bisect_right(steps.t_ns, log.epochs[-1].t_ns)
        seconds = sum(epoch.seconds for epoch in log.epochs) if num else (steps.t_ns[-1] - started_ns) / 1e9
        work = steps.total[num - 1]
    return work / seconds if seconds > 0 else None


def compute_work_figures(
    group: Group,
    job: Job,
    log: Events,
    logged: LoggedRate | None,
    windows: Sequence[Window],
    makespan_s: float | None,
    holds: Sequence[Window] = (),
) -> dict[str, float]:
    """Return the rate of a job in each of its work units, and other figures of its work."""
    unit, kind = job.workload.work_unit, WindowKind.STEADY if job.is_co_runner else group.window.kind
    metrics: dict[str, float] = {}
    if windows:
        metrics |= compute_step_figures(kind, unit, log, windows, holds)
        metrics |= _compute_request_figures(kind, job, log, windows[0])
    samples = job.workload.rate.samples
    if samples is not None and makespan_s:
        metrics |= {work_units.rate_of(unit): samples / makespan_s, work_units.number_of(unit): float(samples)}
    elif logged is not None and logged.points:
        unit = logged.work_unit
        rate = average_logged_rate(logged.points, windows if kind is WindowKind.LOGGED else [])
        metrics |= {} if math.isnan(rate) else {work_units.rate_of(unit): rate}
    for other, number in work_units.list_second_units(unit, log.params):
        for name in (work_units.rate_of, work_units.number_of):
            if name(unit) in metrics:
                metrics[name(other)] = number * metrics[name(unit)]
    return metrics


def list_instants_ns(log: Events) -> Sequence[int]:
    """Return the instants of a job's steps, or of its first and last answer; empty if it reports neither."""
    return log.steps.t_ns if log.requests is None else log.requests.first_and_last_ns


def _compute_request_figures(kind: WindowKind, job: Job, log: Events, window: Window) -> dict[str, float]:
    """Return the figures of the requests in a steady window, else from the start to the last answer; not in slices."""
    if log.requests is None or log.started_ns is None or kind is WindowKind.INTERLEAVED:
        return {}
    if kind is not WindowKind.STEADY and (instants := log.requests.first_and_last_ns):
        window = log.started_ns, instants[-1] + 1
    workload = job.workload
    return latency.compute_figures(
        log.requests, window, is_rate_given=workload.is_rate_given, objective=workload.objective
    )


def explain_absence(group: Group, job: Job, log: Events, metrics: dict[str, float], logged: LoggedRate | None) -> str:
    """Explain why a successful job has no measured work; empty if it has some."""
    if logged is not None and not logged.points:
        return logged.absence
    is_lacking = work_units.rate_of(job.workload.work_unit) not in metrics
    if group.window.kind is WindowKind.INTERLEAVED and is_lacking:
        if log.requests is not None:
            return "requests are not measured in slices; set window=steady"
        return "the job completed no step in one of its slices; raise window.slice_s"
    if group.window.kind is WindowKind.STEADY and not job.is_co_runner and is_lacking:
        quantity = (
            "request was sent and answered" if job.workload.work_unit == work_units.REQUESTS else "step was completed"
        )
        lower = " or lower the request rate" if job.workload.is_rate_given else ""
        return f"no {quantity} inside the window; raise {group.window.longest_key}{lower}"
    if not job.workload.ends_by_itself and not list_instants_ns(log):
        return "lost result: the job succeeded, but its files contain neither a step nor an answered request"
    return ""


_TURN = re.compile(r"turn (\w+) (\d+(?:\.\d+)?)")
_MOST_NAMES = 3


class BatchTurns(NamedTuple):
    """The rates of jobs that ran together in the turns of their stressor, and notes on rates that are missing."""

    rates: tuple[TurnRates, ...] = ()
    gaps: tuple[str, ...] = ()


def compute_turn_rates(
    states: Sequence[JobState],
    log_of: Mapping[int, Events],
    logged_of: Mapping[int, LoggedRate | None],
    window: Window | None,
) -> BatchTurns:
    """Return the rates of jobs that ran together in the turns of their stressor; none without exactly one stressor.

    All turns of a resource and dial count as one. A rate is the work in all of them over their time.
    """
    takers = [state for state in states if _takes_turns(state)]
    if len(takers) != 1 or window is None:
        return BatchTurns()
    taker = takers[0].job
    spans = select_turns(log_of[taker.index], dict(taker.workload.params), window)
    rates: dict[Place, dict[int, float]] = defaultdict(dict)
    lacking: dict[int, list[Place]] = defaultdict(list)
    for state, (place, turns) in itertools.product(states, spans.items()):
        index = state.job.index
        if state is takers[0] and place[0] == IDLE:
            continue
        measure = partial(compute_turn_rate, log_of[index], logged_of[index])
        if (rate := measure(turns)) is not None:
            rates[place][index] = rate
        if rate is None or None in (measure([turn]) for turn in turns):
            lacking[index].append(place)
    measured = [
        TurnRates(resource=place[0], dial=place[1], num_turns=len(turns), rates=rates[place])
        for place, turns in sorted(spans.items())
    ]
    return BatchTurns(tuple(measured), tuple(_describe_gaps(lacking, states)))


def select_turns(log: Events, params: Mapping[str, Any], window: Window) -> dict[Place, list[Window]]:
    """Return the complete turns of a stressor inside the window, without the time in which they settle.

    A resource and dial without such a turn has an empty list. `params` are those of the stressor.
    """
    spans: dict[Place, list[Window]] = {}
    for place, (begin_ns, end_ns) in _list_turns(log):
        counted = spans.setdefault(place, [])
        settled_ns = begin_ns + int(float(params[SETTLE_S]) * 1e9)
        is_complete = end_ns - begin_ns >= float(params[TURN_S]) * 1e9
        if is_complete and window[0] <= settled_ns and end_ns <= window[1]:
            counted.append((settled_ns, end_ns))
    return spans


def make_turn_tags(batches: Iterable[BatchTurns]) -> dict[str, str]:
    """Return the tag with the rates in the turns of all batches; empty without turns."""
    rates = [turn for batch in batches for turn in batch.rates]
    return {Tag.TURNS: format_turns(rates)} if rates else {}


def _takes_turns(state: JobState) -> bool:
    return {TURN_S, SETTLE_S} <= dict(state.job.workload.params).keys()


def _describe_gaps(lacking: Mapping[int, Sequence[Place]], states: Sequence[JobState]) -> Iterator[str]:
    """Yield a note for each job with a turn that does not show its rate, with the resources and dials of such turns."""
    for state in states:
        job = state.job
        if places := sorted(lacking[job.index]):
            names = [resource if resource == IDLE else f"{resource} {dial:g}" for resource, dial in places]
            shortfall = "logged no value for" if job.workload.rate.is_logged else "completed fewer than two steps in"
            yield (
                f"job {job.name} {shortfall} a turn of {list_first(names, _MOST_NAMES)}; raise {TURN_S} of the "
                "stressor, or let the jobs run longer"
            )


def _list_turns(log: Events) -> Iterator[tuple[Place, Window]]:
    """Yield the resource and dial of each turn with its begin and end; the end is the begin of the next phase."""
    for (name, begin_ns), (_, end_ns) in itertools.pairwise(log.phases):
        if (match := _TURN.fullmatch(name)) is not None:
            yield (match[1], float(match[2])), (begin_ns, end_ns)


def compute_turn_rate(log: Events, logged: LoggedRate | None, turns: Sequence[Window]) -> float | None:
    """Return the rate of a job over several turns; `None` if it completed fewer than two steps a turn."""
    least = 2
    if logged is not None:
        parts, least = [_average_logged(logged.points, turn) for turn in turns], 1
    elif log.requests is not None:
        parts = [_count_requests(log.requests, turn) for turn in turns]
    else:
        parts = [_measure_steps(log.steps, turn) for turn in turns]
    if not turns or sum(number for _, number in parts) < least * len(turns):
        return None
    return sum(work for work, _ in parts) / sum(map(measure_seconds, turns))


def _measure_steps(steps: Steps, turn: Window) -> tuple[float, int]:
    """Return work and number of the steps in a turn. A step across its end is taken for one of the mean length.

    The load changes during such a step, so its length does not show its share in the turn.
    """
    begin, end = turn
    first, last = bisect_left(steps.t_ns, begin), bisect_right(steps.t_ns, end) - 1
    if first >= last:
        return measure_work(steps, turn), last - first + 1
    step_ns, work = ((column[last] - column[first]) / (last - first) for column in (steps.t_ns, steps.total))
    share = min(1.0, (end - steps.t_ns[last]) / step_ns)
    return measure_work(steps, (begin, steps.t_ns[last])) + share * work, last - first + 1


def _count_requests(requests: Requests, turn: Window) -> tuple[float, int]:
    done = requests["done_ns"]
    number = int(((done >= turn[0]) & (done < turn[1])).sum())
    return float(number), number


def _average_logged(points: Points, turn: Window) -> tuple[float, int]:
    """Return the work by the logged values that cover no time outside a turn, else by all values, and their number."""
    inside = [
        (rate, after - before)
        for (before, _), (after, rate) in itertools.pairwise(points)
        if turn[0] <= before < after <= turn[1] and not math.isnan(rate)
    ]
    rate = average_logged_rate(points, [turn]) if points else 0.0
    if inside:
        rate = sum(rate * ns for rate, ns in inside) / sum(ns for _, ns in inside)
    return rate * measure_seconds(turn), len(inside)
