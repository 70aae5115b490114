"""When a polled listener reads, and what it makes of a source that gives nothing or hangs."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import pytest

from listeners.base import PollingListener, StopSignal, ticks
from pipeline.base.domain.protocols import RunningGroup
from pipeline.base.domain.samples import Field, Sample
from pipeline.base.system.errors import ListenerError
from tests.support.listener_contract import CPU, GPU, Collected, OneDevice, thread_of, wait_until


class _Slow(PollingListener):
    """Gives `values`, and once there is `release` waits for it in each reading."""

    name = "slow"
    fields = (Field(source_id="none", name="load_1min", unit="processes, mean of 1 min"),)
    release: threading.Event | None = None
    is_held = False
    values: dict[str, float] = {"load_1min": 1.0}  # noqa: RUF012 -- replaced as a whole, never changed

    @contextmanager
    def source(self, group: RunningGroup) -> Iterator[Callable[[], Iterable[Sample]]]:
        def read() -> list[Sample]:
            if self.release is not None:
                self.is_held = True
                self.release.wait()
            return [Sample(source=self.name, t_ns=time.monotonic_ns(), values=self.values)]

        yield read


class _Mistaken(_Slow):
    """Calls a function with the wrong type."""

    @contextmanager
    def source(self, group: RunningGroup) -> Iterator[Callable[[], Iterable[Sample]]]:
        int([])  # type: ignore[call-overload]
        yield list


class _Clock(StopSignal):
    """A time that passes only where somebody waits for the signal, or is busy."""

    now_ns = 0

    def monotonic_ns(self) -> int:
        return self.now_ns

    def wait(self, timeout_s: float) -> bool:
        self.now_ns += round(max(0, timeout_s) * 1e9)
        return self.is_set()


class TestSchedule:
    """When a polled source is read."""

    def _instants_ms(self, monkeypatch: pytest.MonkeyPatch, busy_ms: int, count: int) -> list[float]:
        clock, instants_ms = _Clock(), []
        monkeypatch.setattr("listeners.base.time", clock)
        for _ in ticks(clock, 200_000_000):
            instants_ms.append(clock.now_ns / 1e6)
            clock.now_ns += busy_ms * 1_000_000
            if len(instants_ms) == count:
                clock.set()
        clock.close()
        return instants_ms

    def test_it_does_not_drift(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self._instants_ms(monkeypatch, busy_ms=80, count=6) == [0, 200, 400, 600, 800, 1000]

    def test_a_reading_that_takes_too_long_skips_ticks_and_stays_on_the_schedule(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert self._instants_ms(monkeypatch, busy_ms=250, count=4) == [0, 400, 800, 1200]

    def test_a_source_is_read_at_the_ticks(self) -> None:
        sink = Collected()
        begin_ns = time.monotonic_ns()
        with _Slow(200).observe(OneDevice(CPU), sink):
            wait_until(lambda: len(sink) >= 3)
        assert all(sample.t_ns - begin_ns >= 200e6 * number for number, sample in enumerate(sink))

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
            "listener slow: the simulated NVIDIA H100 80GB HBM3 has no readings for it; its figures are absent"
        ]

    def test_a_mistake_in_the_code_of_a_listener_is_named_with_its_line(self) -> None:
        with (
            pytest.raises(
                ListenerError,
                match=r"^listener slow failed: TypeError: int\(\) .* \(test_listener_base\.py:\d+\); correct it, or "
                "leave slow out of listeners$",
            ),
            _Mistaken(200).observe(OneDevice(CPU), Collected()),
        ):
            pytest.fail("there was no sample")

    def test_a_source_that_hangs_is_named_and_does_not_hold_the_caller(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("listeners.base._STOP_LIMIT_S", 0.1)
        listener = _Slow(200)
        with (
            pytest.raises(ListenerError, match="slow did not stop reading"),
            listener.observe(OneDevice(CPU), Collected()),
        ):
            listener.release = threading.Event()
            wait_until(lambda: listener.is_held)
        listener.release.set()
        wait_until(lambda: thread_of(listener) is None)
