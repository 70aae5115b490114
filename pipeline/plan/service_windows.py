"""Check that the window of a service holds enough requests for its percentiles."""

from __future__ import annotations

import math
from typing import Any

from pipeline.base.domain import service_figures
from pipeline.base.domain.window import Window, WindowKind

_UNDER_LOAD = {0.6: 4000, 0.8: 13_000}
"""Numbers of requests in which a queue with constant service times has enough excursions for a p99
(`python -m benchmarks.percentiles`)."""


def list_notes(service: Any, window: Window) -> list[str]:
    """Return notes on the percentiles of a service in a window; none for other workloads.

    Raises:
        ValueError: the window holds too few requests for the percentile of the objective.
    """
    rate_per_s, requests = getattr(service, service_figures.RATE, None), getattr(service, "requests", None)
    if window.kind is WindowKind.WORK and requests is not None:
        count = requests * window.epochs
        held = f"{count:,} requests"
    elif window.kind is WindowKind.STEADY and rate_per_s is not None:
        count = int(rate_per_s * window.longest_s)  # the steps of services are unknown, so their window is the longest
        held = f"about {count:,} requests ({rate_per_s:g}/s for {window.longest_s:g} s)"
    else:
        return []  # the number of requests is unknown if clients wait for answers
    percentile = getattr(service, service_figures.OBJECTIVE_PERCENTILE, None)
    if percentile is not None and count < service_figures.min_requests(percentile):
        needed = service_figures.min_requests(percentile)
        raise ValueError(
            f"objective_percentile={percentile:g} needs {needed:,} requests, but the window holds only {held}; "
            f"{_suggest_window(rate_per_s, window, needed)}"
        )
    if count < (least := service_figures.min_requests(99)):
        enough = _suggest_window(rate_per_s, window, least)
        return [f"no p99: a p99 needs at least {least:,} requests, but the window holds only {held}; {enough}"]
    if count < max(_UNDER_LOAD.values()):
        needs = " and ".join(f"{number:,} at load {load:g}" for load, number in _UNDER_LOAD.items())
        return [f"a p99 needs {least:,} requests that do not wait for others, about {needs}; the window holds {held}"]
    return []


def _suggest_window(rate_per_s: float | None, window: Window, count: int) -> str:
    if window.kind is WindowKind.WORK or rate_per_s is None:
        return "raise workload.requests or window.epochs"
    return f"set {window.longest_key}={math.ceil(1.1 * count / rate_per_s)}"
