"""Names of the figures of services, and of groups of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

MEAN, P99, DEVIATION = "latency_mean_ms", "latency_p99_ms", "latency_std_ms"
STEP_TIME = "step_time_p50_ms"
"""Median time of the steps of one training job."""
LATENCIES = (MEAN, "latency_p50_ms", "latency_p95_ms", P99, "latency_p999_ms")
"""Latencies of one job, counted from the scheduled send time of a request."""
FIRST_TOKENS = ("first_token_mean_ms", "first_token_p95_ms", "first_token_p99_ms")
"""Times to the first token of the answers of one job, counted in the same way."""
GOODPUT, SUSTAINED = "goodput_requests_per_s", "rate_sustained_ratio"
"""Goodput in requests/s, and its ratio to the offered load."""

OBJECTIVE_MET = "objective_met_ratio"
"""For a job with an objective at a percentile: 1 if so many of its requests meet it, else 0."""
PERCENTILES = (("50", 50.0), ("95", 95.0), ("99", 99.0), ("999", 99.9))
"""Name and percentage of each percentile."""
MEDIAN = 50.0
MIN_EXCURSIONS = 10
"""Least number of independent excursions above an upper percentile (`pipeline/observe/latency.py`)."""
RATE, OBJECTIVE, OBJECTIVE_PERCENTILE = "rate_per_s", "objective_ms", "objective_percentile"
"""Params of a job: the rate of its requests, the objective's latency, and the objective's percentile."""
CLIENTS, CLIENTS_OF = "outstanding", "outstanding_per"
"""Params of a job: the number of clients, and whether they are its own or divided among the copies of a group."""
TTFT, TPOT = "ttft_ms", "tpot_ms"
"""Params of a job: its objectives for the time to the first token, and for the mean time of each further token."""

GOODPUT_TOTAL, SUSTAINED_WORST = "goodput_total_requests_per_s", "rate_sustained_worst_ratio"
OBJECTIVE_MET_WORST = "objective_met_worst_ratio"


def name_worst(latency: str) -> str:
    """Name the figure of the slowest job of a group: `latency_p99_worst_ms`."""
    return f"{latency.removesuffix('_ms')}_worst_ms"


def name_pooled(time: str) -> str:
    """Name the figure of the requests of all copies of a service: `first_token_p99_all_ms`."""
    return f"{time.removesuffix('_ms')}_all_ms"


def min_requests(percentile: float) -> int:
    """Return the minimum number of requests for a percentile; more are needed if requests wait for each other.

    Independent latencies return to the median before they exceed the 90th percentile again with a probability of 5/6,
    so `MIN_EXCURSIONS` excursions need 12 requests above the percentile.
    """
    return 1 if percentile <= MEDIAN else round(1.2 * MIN_EXCURSIONS / (1 - percentile / 100))


def summarise_group(jobs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Summarise the figures of the services of a group; a figure that one service lacks is missing for the group."""
    # A saturated service has no latency figures, because some of its requests were never answered.
    services = [job for job in jobs if MEAN in job or SUSTAINED in job]

    def known(name: str) -> list[float]:
        values = [job[name] for job in services if name in job]
        return values if len(values) == len(services) else []

    figures = {name_worst(name): max(values) for name in LATENCIES if (values := known(name))}
    if goodput := known(GOODPUT):
        figures[GOODPUT_TOTAL] = sum(goodput)
    for name, worst in ((SUSTAINED, SUSTAINED_WORST), (OBJECTIVE_MET, OBJECTIVE_MET_WORST)):
        if values := known(name):
            figures[worst] = min(values)
    return figures
