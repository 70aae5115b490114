"""Figures from the requests of a job: latencies, goodput, and whether the queue grew.

No function has side effects. A request belongs to the window of its intended arrival. A request without an answer
counts as slower than all others; figures that depend on its latency are missing.

A percentile rests on independent excursions above it. Queues remember: requests of one busy period are slow together,
so requests above a percentile do not count, but excursions above it do. An excursion begins above a level and ends when
a latency is at or below the median. Excursions above the 90th percentile are as long as those above higher percentiles
and ten times as many as those above the 99th, so their number says how many a higher percentile has, and depends little
on its value. Where other causes make the slowest requests than the slow ones, such as stalls, the excursions above the
percentile itself count. Simulations (`python -m benchmarks.percentiles`) show how well the intervals then cover.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.base.domain import service_figures, work_units
from pipeline.base.domain.service_figures import MEDIAN, MIN_EXCURSIONS, min_requests
from pipeline.base.domain.workload import Objective
from pipeline.launch.requests import Requests
from pipeline.observe.sample_figures import Window, measure_seconds

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Values = NDArray[np.float64]

LEAST_SHORT, SHORT_SHARE = 10, 0.01
LATE_MS, LATE_SHARE = 1.0, 0.1
"""A generator of requests is late in two cases: more than both `LEAST_SHORT` and `SHORT_SHARE` of the due requests were
not sent, or half of the requests were late by more than both `LATE_MS` and `LATE_SHARE` of the median latency."""

SERIES_POINTS = 200


def compute_figures(
    requests: Requests, window: Window, *, is_rate_given: bool = False, objective: Objective | None = None
) -> dict[str, float]:
    """Return the figures of a job in a window; none if no request was answered in the window.

    `is_rate_given` is true if the user chose the offered load.
    """
    import numpy as np

    seconds = (window[1] - window[0]) / 1e9
    answered_requests = requests.where(_is_inside(requests["done_ns"], window))
    due = requests.where(_is_inside(requests["intended_ns"], window))
    if not len(answered_requests) or not len(due) or seconds <= 0:
        return {}
    answered = requests.where(requests.is_answered)
    # A client of a closed loop always has a request, so that the window may cut many of them, all at once.
    shares = _compute_shares(answered, answered["done_ns" if is_rate_given else "intended_ns"], window)
    metrics = {
        work_units.rate_of(work_units.REQUESTS): float(shares.sum()) / seconds,
        work_units.number_of(work_units.REQUESTS): float(len(due)),
        **_compute_latencies(due),
    }
    if objective is not None:
        metrics[service_figures.GOODPUT] = float(shares[_compute_excess(answered, objective) <= 1].sum()) / seconds
        percentile = objective.percentile
        if percentile is not None and len(due) >= min_requests(percentile):
            excess = _compute_excess(due, objective)
            is_met = select_rank(np.sort(excess), percentile) <= 1
            # A window that is too short shows too low a percentile, so it can only show that an objective is missed.
            if not is_met or has_enough(excess, percentile):
                metrics[service_figures.OBJECTIVE_MET] = float(is_met)
    if is_rate_given:
        metrics[service_figures.SUSTAINED] = _compute_sustained(requests, due, len(answered_requests), window)
        late = np.sort(_subtract_ms(due, "intended_ns", "sent_ns"))
        metrics |= {"send_late_p50_ms": select_rank(late, 50), "send_late_p99_ms": select_rank(late, 99)}
    if tokens := _count_tokens(answered, window):
        metrics[work_units.rate_of("tokens")] = tokens / seconds
    return metrics


def _count_tokens(answered: Requests, window: Window) -> float:
    """Return the number of tokens in a window; those after the first one of an answer come at equal intervals."""
    import numpy as np

    first_ns = np.where(answered["first_token_ns"] > 0, answered["first_token_ns"], answered["done_ns"])
    further = np.maximum(answered["tokens"] - 1, 0)
    first = _is_inside(first_ns, window) & (answered["tokens"] > 0)
    return float(np.count_nonzero(first) + (further * _compute_shares(answered, first_ns, window)).sum())


def _compute_shares(answered: Requests, since_ns: NDArray[np.int64], window: Window) -> Values:
    """Return the share of the time from an instant until each answer that is in a window; 0 or 1 for no time."""
    import numpy as np

    done_ns = answered["done_ns"]
    length_ns = done_ns - since_ns
    inside_ns = np.minimum(done_ns, window[1]) - np.maximum(since_ns, window[0])
    parts: Values = np.clip(inside_ns, 0, None) / np.maximum(length_ns, 1)
    shares: Values = np.where(length_ns > 0, parts, _is_inside(done_ns, window))
    return shares


def _compute_latencies(requests: Requests) -> dict[str, float]:

    metrics = _compute_spread("latency", [_compute_latency_ms(requests)])
    has_begun = requests["begun_ns"] > 0
    if has_begun.all():
        metrics["queue_mean_ms"] = float(_subtract_ms(requests, "intended_ns", "begun_ns").mean())
        if requests.is_answered.all():
            metrics["service_mean_ms"] = float(_subtract_ms(requests, "begun_ns", "done_ns").mean())
            metrics["batch_mean_requests"] = float(requests["batch"].mean())
    has_spoken = requests["first_token_ns"] > 0
    if has_spoken.any():
        metrics |= _compute_spread("first_token", [_compute_first_ms(requests)])
        several = requests.where(has_spoken & requests.is_answered & (requests["tokens"] > 1))
        if len(several):
            metrics |= _compute_spread(
                "per_token", [_subtract_ms(several, "first_token_ns", "done_ns") / (several["tokens"] - 1)]
            )
    return metrics


def pool_first_tokens(copies: Sequence[Requests], window: Window) -> dict[str, float]:
    """Return the times to the first token of the answers of all copies of a service; none if a copy has none.

    The slowest of several copies would be compared with a single one alone.
    """
    first_ms = [_compute_first_ms(requests.where(_is_inside(requests["intended_ns"], window))) for requests in copies]
    if not all(len(values) for values in first_ms):
        return {}
    figures = _compute_spread("first_token", first_ms)
    return {
        service_figures.name_pooled(name): figures[name] for name in service_figures.FIRST_TOKENS if name in figures
    }


def _compute_first_ms(requests: Requests) -> Values:
    """Return the times to the first token of streamed answers; infinite without an answer."""
    import numpy as np

    streamed = requests.where((requests["first_token_ns"] > 0) | ~requests.is_answered)
    first_ms: Values = np.where(
        streamed["first_token_ns"] > 0, _subtract_ms(streamed, "intended_ns", "first_token_ns"), np.inf
    )
    return first_ms


def _compute_excess(requests: Requests, objective: Objective) -> Values:
    """Return the times of each request over their objectives, of which the largest counts; infinite if unanswered.

    An answer without a first token meets no objective for tokens.
    """
    import numpy as np

    excess: Values = np.where(requests.is_answered, 0.0, np.inf)
    if objective.latency_ms is not None:
        excess = np.maximum(excess, _compute_latency_ms(requests) / objective.latency_ms)
    has_spoken = requests["first_token_ns"] > 0
    if objective.first_token_ms is not None:
        first_ms = _subtract_ms(requests, "intended_ns", "first_token_ns")
        excess = np.maximum(excess, np.where(has_spoken, first_ms, np.inf) / objective.first_token_ms)
    if objective.per_token_ms is not None:
        num_further = np.maximum(requests["tokens"] - 1, 1)
        further_ms = _subtract_ms(requests, "first_token_ns", "done_ns") / num_further
        excess = np.maximum(excess, np.where(has_spoken, further_ms, np.inf) / objective.per_token_ms)
    return excess


def describe_lateness(requests: Requests, window: Window) -> str | None:
    """Describe how far a generator of requests was behind the offered load; `None` if it was not late."""
    import numpy as np

    intended = requests.where(_is_inside(requests["intended_ns"], window))
    num_sent = int(np.count_nonzero(_is_inside(requests["sent_ns"], window)))
    due = len(intended) + _count_never_sent(requests, window)
    if due - num_sent > max(LEAST_SHORT, SHORT_SHARE * due):
        return f"its generator sent {num_sent} of the {due} requests due in the window"
    if not len(intended):
        return None
    late_ms = select_rank(np.sort(_subtract_ms(intended, "intended_ns", "sent_ns")), 50)
    latency_ms = select_rank(np.sort(_compute_latency_ms(intended)), 50)
    if late_ms > max(LATE_MS, LATE_SHARE * latency_ms):
        return f"its generator sent half of its requests more than {late_ms:.3g} ms late (latency: {latency_ms:.3g} ms)"
    return None


def describe_short_window(requests: Requests, window: Window, percentile: float) -> str | None:
    """Describe a window that is too short for a percentile at its load; `None` if it is long enough.

    A window with fewer than the minimum number of requests is not described, because the plan has a note.
    """
    import numpy as np

    latency_ms = _compute_latency_ms(requests.where(_is_inside(requests["intended_ns"], window)))
    if len(latency_ms) < min_requests(percentile) or has_enough(latency_ms, percentile):
        return None
    if _has_grown(requests, window) or not math.isfinite(select_rank(np.sort(latency_ms), percentile)):
        return None  # a saturated service has no percentile, however long the window
    seconds = suggest_length(latency_ms, percentile, measure_seconds(window))
    return f"the window is too short for a p{percentile:g} at this load, about {seconds:g} s are needed"


def _count_never_sent(requests: Requests, window: Window) -> int:
    """Estimate how many requests were due in a window after the last sent request, from the rate before it."""
    if len(requests) < 2:
        return 0
    intended = requests["intended_ns"]
    distance_ns = float(intended[-1] - intended[0]) / (len(requests) - 1)
    late_ns = min(int(requests["sent_ns"].max()), window[1]) - max(int(intended[-1]), window[0])
    return int((late_ns - 1) / distance_ns) if late_ns > 0 and distance_ns > 0 else 0


def make_series(requests: Requests) -> dict[str, list[tuple[int, int, float]]]:
    """Return series over equal intervals: mean latency of the due requests, answers per second, waiting requests."""
    import numpy as np

    if not len(requests):
        return {}

    first_ns = int(requests["intended_ns"][0])
    last_ns = int(max(requests["intended_ns"][-1], requests["done_ns"].max())) + 1
    count = min(SERIES_POINTS, max(1, len(requests) // 20))
    edges = np.linspace(first_ns, last_ns, count + 1).astype(np.int64)
    due, done = requests["intended_ns"], np.sort(requests["done_ns"][requests.is_answered])
    due_before, done_before = np.searchsorted(due, edges), np.searchsorted(done, edges)
    latency_ms = _compute_latency_ms(requests)
    answered_per_s = np.diff(done_before) / (np.diff(edges) / 1e9)
    waiting = (due_before - done_before)[1:]
    means = [float(part.mean()) if len(part) else math.inf for part in np.split(latency_ms, due_before[1:-1])]
    curves = {
        "latency_ms": means,
        "answered_requests_per_s": answered_per_s.tolist(),
        "waiting_requests": waiting.tolist(),
    }
    return {
        name: [(step, int(edges[step + 1]), float(v)) for step, v in enumerate(values) if math.isfinite(v)]
        for name, values in curves.items()
    }


def _compute_sustained(requests: Requests, due: Requests, num_answered: int, window: Window) -> float:
    """Return 1 if the queue did not grow and every request was answered, else the answered share, below 1."""
    if due.is_answered.all() and not _has_grown(requests, window):
        return 1.0
    return min(num_answered / len(due), math.nextafter(1.0, 0.0))


def _has_grown(requests: Requests, window: Window) -> bool:
    """Return whether the shortest queue in the last quarter of a window is above the longest queue in the first.

    The shortest queue is compared because a queue that does not grow becomes short again and again.
    """
    import numpy as np

    due, done = requests["intended_ns"], np.sort(requests["done_ns"][requests.is_answered])
    quarter_ns = (window[1] - window[0]) // 4

    def waiting(instants: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.searchsorted(due, instants, "right") - np.searchsorted(done, instants, "right")

    early = due[_is_inside(due, (window[0], window[0] + quarter_ns))]
    late = done[_is_inside(done, (window[1] - quarter_ns, window[1]))]
    if not len(early) or not len(late):
        return bool(waiting(np.array([window[1]])) > waiting(np.array([window[0]])))
    return bool(waiting(late).min() > waiting(early).max())


def _compute_spread(name: str, services: Sequence[Values]) -> dict[str, float]:
    """Return mean, deviation and percentiles of times, each service's in the order of arrivals."""
    import numpy as np

    values = np.concatenate(services)
    std = float(np.std(values)) if np.isfinite(values).all() else math.inf
    metrics = {f"{name}_mean_ms": float(np.mean(values)), f"{name}_std_ms": std}
    ordered = np.sort(values)
    metrics |= {
        f"{name}_p{text}_ms": select_rank(ordered, percent)
        for text, percent in service_figures.PERCENTILES
        if _have_enough(services, percent)
    }
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def _compute_latency_ms(requests: Requests) -> Values:
    """Return the times from intended instant to answer; infinite without an answer."""
    import numpy as np

    latency: Values = np.where(requests.is_answered, _subtract_ms(requests, "intended_ns", "done_ns"), np.inf)
    return latency


def _subtract_ms(requests: Requests, since: str, until: str) -> Values:
    times: Values = (requests[until] - requests[since]) / 1e6
    return times


def _is_inside(instants: NDArray[np.int64], window: Window) -> NDArray[np.bool_]:
    inside: NDArray[np.bool_] = (instants >= window[0]) & (instants < window[1])
    return inside


_LEVEL = 90.0
_SCATTER = 3.5
"""The number of excursions above the percentile itself scatters, so it only counts if smaller by this factor."""
_RESERVE = 1.5
"""Factor of the suggested length of a window, so that a repeated run rarely falls short again."""


def estimate_number(latencies: NDArray[np.float64], percentile: float) -> float:
    """Estimate the number of independent excursions above a percentile.

    Args:
        latencies: in the order of arrivals; infinite without an answer.
        percentile: between 0 and 100.
    """
    return _estimate_number([latencies], percentile)


def _estimate_number(services: Sequence[Values], percentile: float) -> float:
    import numpy as np

    ordered = np.sort(np.concatenate(services))
    median = select_rank(ordered, MEDIAN)

    def count_above(level: float) -> int:
        limit = select_rank(ordered, level)
        calm_and_high = [(np.flatnonzero(values <= median), np.flatnonzero(values >= limit)) for values in services]
        return sum(len(np.unique(np.searchsorted(calm, high))) for calm, high in calm_and_high)

    return min(count_above(_LEVEL) * (100 - percentile) / (100 - _LEVEL), _SCATTER * count_above(percentile))


def has_enough(latencies: NDArray[np.float64], percentile: float) -> bool:
    """Return whether a percentile can be stated; the median always can."""
    return _have_enough([latencies], percentile)


def _have_enough(services: Sequence[Values], percentile: float) -> bool:
    return percentile <= MEDIAN or (
        sum(map(len, services)) >= min_requests(percentile) and _estimate_number(services, percentile) >= MIN_EXCURSIONS
    )


def suggest_length(latencies: NDArray[np.float64], percentile: float, length: float) -> float:
    """Return how long a window must be for a percentile: 1, 2 or 5 times a power of ten; `length` is its length now."""
    min_length = _RESERVE * length * MIN_EXCURSIONS / estimate_number(latencies, percentile)
    power = 10.0 ** math.floor(math.log10(min_length))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= min_length)


def select_rank(ordered: NDArray[np.float64], percent: float) -> float:
    """Select a percentile of ascending values: the smallest that so many per cent of the values do not exceed."""
    return float(ordered[math.ceil(percent / 100 * len(ordered)) - 1])
