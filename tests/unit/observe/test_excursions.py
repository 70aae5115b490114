"""Percentiles rest on independent excursions: counted by hand, and simulated in queues whose p99 is known."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.percentiles import measure_coverage, simulate_claims, simulate_latencies
from pipeline.observe.excursions import estimate_number, has_enough, suggest_length

SEED = 20261126


def test_a_burst_of_slow_requests_is_one_excursion():
    assert estimate_number(np.array([1.0] * 80 + [9.0] * 20), 90) == 1
    assert estimate_number(np.array(([1.0] * 4 + [9.0]) * 20), 90) == 20
    # Latencies between the median and the 90th percentile do not end an excursion.
    assert estimate_number(np.array([1.0] * 60 + [5.0] * 20 + [9.0, 5.0] * 10), 90) == 1
    # A tenth of the excursions above the 90th percentile are above the 99th.
    assert estimate_number(np.array(([1.0] * 4 + [9.0]) * 20), 99) == pytest.approx(2)


def test_rare_stalls_are_counted_themselves():
    rng = np.random.default_rng(SEED)
    latencies = rng.normal(5, 0.1, 10_000)
    assert has_enough(latencies, 99)
    for begin in (2000, 7000):
        latencies[begin : begin + 100] += 50
    assert not has_enough(latencies, 99)
    assert has_enough(latencies, 95)


def test_equal_latencies_have_every_percentile():
    assert has_enough(np.full(1200, 5.0), 99)
    assert not has_enough(np.full(1199, 5.0), 99)
    assert has_enough(np.full(1, 5.0), 50)


def test_independent_latencies_need_little_more_than_the_least_number_of_requests():
    rng = np.random.default_rng(SEED)
    windows = rng.exponential(1, (200, 1500))
    assert np.mean([has_enough(window, 99) for window in windows]) > 0.95
    assert np.mean([has_enough(window[:300], 95) for window in windows]) > 0.95
    assert not any(has_enough(window[:1100], 99) for window in windows)


def test_a_suggested_window_is_long_enough():
    rng, load = np.random.default_rng(SEED), 0.8
    (window,) = simulate_latencies(rng, load, 5000)
    assert not has_enough(window, 99)
    suggested = suggest_length(window, 99, 50.0)
    assert suggested in (200, 500)
    longer = simulate_latencies(rng, load, int(100 * suggested), 10)
    assert sum(has_enough(latencies, 99) for latencies in longer) >= 9


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("load", "requests", "studies"),
    [
        (0.3, 3000, 300),
        (0.6, 8000, 200),
        pytest.param(0.8, 25_000, 300, marks=pytest.mark.slow),
        pytest.param(0.9, 80_000, 200, marks=pytest.mark.exhaustive),
    ],
)
def test_the_interval_of_a_p99_covers_the_true_one(load, requests, studies):
    coverage = measure_coverage(np.random.default_rng(SEED), load, requests, 5, studies)
    assert coverage.num_shown >= 0.9 * studies
    assert coverage.of_shown is not None
    # Three standard deviations of the share below 0.93.
    assert coverage.of_shown >= 0.93 - 3 * (0.93 * 0.07 / coverage.num_shown) ** 0.5
    assert coverage.ratio == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize(("load", "most_covered"), [(0.6, 0.97), (0.8, 0.9), (0.9, 0.7)])
def test_a_window_too_short_for_its_load_shows_no_p99(load, most_covered):
    coverage = measure_coverage(np.random.default_rng(SEED), load, 1300, 5, 100)
    assert coverage.num_shown == 0
    assert coverage.of_all < most_covered


def test_equal_services_are_not_worse_under_the_same_arrivals():
    slowest, same = simulate_claims(np.random.default_rng(SEED), 0.6, 10, 20)
    assert slowest > 0.5
    assert same <= 0.1
