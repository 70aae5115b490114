"""The share of time in which a stressor works."""

from __future__ import annotations

import itertools

import pytest

from workloads.rates import duty_cycle
from workloads.rates.duty_cycle import DutyCycle

MS = 1_000_000


class Clock:
    """A clock of a computer that only works and sleeps; each sleep is longer than requested."""

    def __init__(self, oversleep_ns: int) -> None:
        self.now_ns, self.oversleep_ns = 0, oversleep_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9) + self.oversleep_ns


class Calls:
    """A load whose calls take a fixed time each."""

    def __init__(self, clock: Clock, call_ns: int) -> None:
        self.clock, self.call_ns, self.worked_ns = clock, call_ns, 0

    def run_until(self, end_ns: int) -> int:
        for number in itertools.count(1):
            self.clock.now_ns += self.call_ns
            self.worked_ns += self.call_ns
            if self.clock.now_ns >= end_ns:
                return number
        raise AssertionError

    def count_wrong(self) -> int:
        return 0


@pytest.mark.parametrize("dial", [0.0, 0.1, 0.33, 0.67, 1.0])
@pytest.mark.parametrize("call_ns", [MS // 10, 3 * MS, 12 * MS])
def test_a_stressor_works_for_the_share_of_its_dial_even_if_its_calls_are_slow(monkeypatch, dial, call_ns):
    clock = Clock(oversleep_ns=MS // 10)
    monkeypatch.setattr(duty_cycle, "time", clock)
    load = Calls(clock, call_ns)
    cycle = DutyCycle(load, dial)
    for _ in range(200):
        cycle.work()
        cycle.pause()
    assert load.worked_ns / clock.now_ns == pytest.approx(dial, abs=0.003)


def test_a_dial_of_zero_does_nothing():
    load = Calls(Clock(0), MS)
    cycle = DutyCycle(load, 0.0)
    assert [cycle.work(), cycle.work()] == [0, 0] and load.worked_ns == 0
