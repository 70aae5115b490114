"""Figures of a group of services from those of its jobs."""

from __future__ import annotations

from pipeline.base.domain import service_figures


def test_a_group_is_as_slow_as_its_slowest_service_and_what_one_lacks_it_lacks() -> None:
    fast = {"latency_mean_ms": 4.0, "latency_p99_ms": 9.0, "goodput_requests_per_s": 90.0, "rate_sustained_ratio": 1.0}
    slow = {"latency_mean_ms": 6.0, "goodput_requests_per_s": 70.0, "rate_sustained_ratio": 0.8}
    training = {"throughput_samples_per_s": 100.0}
    assert service_figures.summarise_group([fast, training]) == {
        "latency_mean_worst_ms": 4.0,
        "latency_p99_worst_ms": 9.0,
        "goodput_total_requests_per_s": 90.0,
        "rate_sustained_worst_ratio": 1.0,
    }
    assert service_figures.summarise_group([fast, slow]) == {
        "latency_mean_worst_ms": 6.0,
        "goodput_total_requests_per_s": 160.0,
        "rate_sustained_worst_ratio": 0.8,
    }
    assert service_figures.summarise_group([training]) == {}
    saturated = {"goodput_requests_per_s": 5.0, "rate_sustained_ratio": 0.4}  # some requests have no latency
    assert service_figures.summarise_group([fast, saturated]) == {
        "goodput_total_requests_per_s": 95.0,
        "rate_sustained_worst_ratio": 0.4,
    }
