"""The rates of jobs in the turns of a stressor that ran beside them.

A stressor reports each turn as a phase, `turn RESOURCE DIAL`. All jobs of a host have one monotonic clock, so the steps
of any job can be held against these instants.
"""

from __future__ import annotations

import itertools
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from pipeline.base.domain.tags import Tag
from pipeline.base.domain.turns import IDLE, SETTLE_S, TURN_S, Place, TurnRates, format_turns
from pipeline.base.system.words import list_first
from pipeline.launch.events import Events
from pipeline.launch.job_state import JobState
from pipeline.launch.job_steps import Steps
from pipeline.launch.requests import Requests
from pipeline.observe import throughput
from pipeline.observe.program_rates.logged_rate import LoggedRate, Points
from pipeline.observe.sample_figures import Window, measure_seconds

_TURN = re.compile(r"turn (\w+) (\d+(?:\.\d+)?)")
_MOST_NAMES = 3


class BatchTurns(NamedTuple):
    """The rates of jobs that ran together in the turns of their stressor, and notes on rates that are missing."""

    rates: tuple[TurnRates, ...] = ()
    gaps: tuple[str, ...] = ()


def compute_rates(
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
        measure = partial(compute_rate, log_of[index], logged_of[index])
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


def make_tags(batches: Iterable[BatchTurns]) -> dict[str, str]:
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
            what = "logged no value for" if job.workload.rate.is_logged else "completed fewer than two steps in"
            yield (
                f"job {job.name} {what} a turn of {list_first(names, _MOST_NAMES)}; raise {TURN_S} of the stressor, "
                "or let the jobs run longer"
            )


def _list_turns(log: Events) -> Iterator[tuple[Place, Window]]:
    """Yield the resource and dial of each turn with its begin and end; the end is the begin of the next phase."""
    for (name, begin_ns), (_, end_ns) in itertools.pairwise(log.phases):
        if (match := _TURN.fullmatch(name)) is not None:
            yield (match[1], float(match[2])), (begin_ns, end_ns)


def compute_rate(log: Events, logged: LoggedRate | None, turns: Sequence[Window]) -> float | None:
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
        return throughput.measure_work(steps, turn), last - first + 1
    step_ns, work = ((column[last] - column[first]) / (last - first) for column in (steps.t_ns, steps.total))
    share = min(1.0, (end - steps.t_ns[last]) / step_ns)
    return throughput.measure_work(steps, (begin, steps.t_ns[last])) + share * work, last - first + 1


def _count_requests(requests: Requests, turn: Window) -> tuple[float, int]:
    done = requests["done_ns"]
    number = int(((done >= turn[0]) & (done < turn[1])).sum())
    return float(number), number


def _average_logged(points: Points, turn: Window) -> tuple[float, int]:
    """Return the work by the logged values that cover no time outside a turn, else by all values, and their number."""
    inside = [
        (rate, now - before)
        for (before, _), (now, rate) in itertools.pairwise(points)
        if turn[0] <= before < now <= turn[1]
    ]
    rate = throughput.average_logged_rate(points, turn) if points else 0.0
    if inside:
        rate = sum(rate * ns for rate, ns in inside) / sum(ns for _, ns in inside)
    return rate * measure_seconds(turn), len(inside)
