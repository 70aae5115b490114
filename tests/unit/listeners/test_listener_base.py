"""When a polled listener reads, and what it makes of a source that gives nothing or hangs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest

from listeners.base import PollingListener, StopSignal, ticks
from pipeline.base.errors import ListenerError
from pipeline.base.protocols import Watch
from pipeline.base.samples import Field, Sample
from tests.listener_contract import CPU, GPU, Collected, OneDevice, thread_of, wait_until


class _Slow(PollingListener):
    """Takes `busy_s` for each reading, and gives `values`."""

    name = "slow"
    fields = (Field(source_id="none", name="load_1min", unit="processes, mean of 1 min"),)
    busy_s = 0.0
    values: dict[str, float] = {"load_1min": 1.0}  # noqa: RUF012 -- replaced as a whole, never changed

    @contextmanager
    def source(self, watch: Watch) -> Iterator[Callable[[], Iterable[Sample]]]:
        def read() -> list[Sample]:
            t_ns = time.monotonic_ns()
            time.sleep(self.busy_s)
            return [Sample(source=self.name, t_ns=t_ns, values=self.values)]

        yield read


class TestSchedule:
    """When a polled source is read."""

    def _instants_ms(self, busy_s: float, count: int) -> list[float]:
        listener, sink = _Slow(200), Collected()
        listener.busy_s = busy_s
        with listener.observe(OneDevice(CPU), sink):
            wait_until(lambda: len(sink) >= count)
        return [(sample.t_ns - sink[0].t_ns) / 1e6 for sample in sink[:count]]

    def test_it_does_not_drift(self) -> None:
        assert self._instants_ms(busy_s=0.08, count=6)[5] == pytest.approx(1000, abs=60), (
            "5 intervals, not 5 times 280 ms"
        )

    def test_a_reading_that_takes_too_long_skips_ticks_and_stays_on_the_schedule(self) -> None:
        instants = self._instants_ms(busy_s=0.25, count=4)
        assert instants == pytest.approx([0, 400, 800, 1200], abs=60)

    def test_ticks_never_repeat(self) -> None:
        stop = StopSignal()
        numbers = []
        for number in ticks(stop, 1_000_000):
            numbers.append(number)
            if len(numbers) == 50:
                stop.set()
        stop.close()
        assert numbers == sorted(set(numbers))

    def test_readings_without_any_value_are_no_samples(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_Slow, "values", {})
        monkeypatch.setattr(_Slow, "start_limit_s", 0.5)
        sink = Collected()
        with (
            pytest.raises(ListenerError, match=r"no sample of this machine within 0\.5 s"),
            _Slow(200).observe(OneDevice(CPU), sink),
        ):
            pytest.fail("there was no sample")
        assert not sink

    def test_of_a_simulated_gpu_a_reading_without_any_value_is_one_warning(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(_Slow, "values", {})
        sink = Collected()
        with _Slow(200).observe(OneDevice(dataclasses.replace(GPU, kind="simulated")), sink):
            time.sleep(0.3)
            assert not sink
            monkeypatch.setattr(_Slow, "values", {"load_1min": 1.0})
            wait_until(lambda: sink)
        assert [record.message for record in caplog.records] == [
            "listener slow: the simulated NVIDIA H100 80GB HBM3 has no readings for it; they are absent"
        ]

    def test_a_source_that_hangs_is_named_and_does_not_hold_the_caller(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("listeners.base._STOP_LIMIT_S", 0.1)
        listener = _Slow(200)
        with pytest.raises(ListenerError, match="slow hangs"), listener.observe(OneDevice(CPU), Collected()):
            listener.busy_s = 1.0
            time.sleep(0.3)
        wait_until(lambda: thread_of(listener) is None)
