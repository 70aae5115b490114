"""One contract that every listener keeps, and the schedule of those that poll. Real threads."""

from __future__ import annotations

import dataclasses
import importlib
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from listeners.base import PollingListener, StopSignal, ThreadedListener, ticks
from listeners.host import read_process
from pipeline.errors import ConfigError, ListenerError
from pipeline.protocols import Listener, Watch
from pipeline.types import Device, Field, Sample
from tests.nvml_library import UUID

CONF = Path(__file__).parent.parent.parent / "conf" / "listeners"
GPU = Device(kind="nvidia", uuid=UUID, name="NVIDIA H100 80GB HBM3", index=0)
CPU = Device(kind="cpu", uuid="CPU-here", name="this machine")
# How a name must end for each unit.
SUFFIXES = {
    "ratio": "_ratio",
    "W": "_w",
    "J": "_j",
    "MHz": "_mhz",
    "MiB": "_mib",
    "MiB/s": "_mib_per_s",
    "%": "_pct",
    "% of one core": "_pct",
    "% of all CPUs": "_pct",
    "degrees Celsius": "_c",
    "bit mask of nvml.h": "_bits",
    "number of the performance state": "pstate",
    "processes": "num_processes",
    "threads": "num_threads",
    "processes, mean of 1 min": "load_1min",
}


class OneDevice:
    """A watch whose jobs a test sets."""

    def __init__(self, device: Device = GPU, **jobs: int) -> None:
        self.device = device
        self.slots = ()
        self.jobs: dict[int, int] = {}

    def pids(self) -> dict[int, int]:
        return dict(self.jobs)


class Collected(list[Sample]):
    """A sink that keeps samples in a list."""

    def put(self, sample: Sample) -> None:
        self.append(sample)

    def named(self, name: str, job: int | None = None) -> list[float]:
        return [sample.values[name] for sample in self if sample.job == job and name in sample.values]


def wait_until(condition: Callable[[], object], within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


def thread_of(listener: ThreadedListener) -> threading.Thread | None:
    return next((thread for thread in threading.enumerate() if thread.name == listener.name), None)


class ListenerContract:
    """What holds for every listener. A subclass gives the listener, and the ways in which its source fails."""

    @pytest.fixture
    def build(self) -> Callable[[int], ThreadedListener]:
        raise NotImplementedError

    @pytest.fixture
    def watch(self) -> OneDevice:
        return OneDevice()

    @pytest.fixture
    def remove_source(self) -> Callable[[], None]:
        """Make the source missing."""
        raise NotImplementedError

    @pytest.fixture
    def kill_source(self) -> Callable[[ThreadedListener], None]:
        """Break the source of a listener that observes."""
        raise NotImplementedError

    def test_it_is_a_listener_that_its_yaml_builds(self, build: Callable[[int], ThreadedListener]) -> None:
        listener: Listener = build(1000)
        settings = yaml.safe_load((CONF / f"{type(listener).name}.yaml").read_text())[type(listener).name]
        module, name = settings["_target_"].rsplit(".", 1)
        assert getattr(importlib.import_module(module), name) is type(listener)

    def test_every_field_has_a_source_a_unit_and_a_name_that_ends_with_it(
        self, build: Callable[[int], ThreadedListener]
    ) -> None:
        fields = build(1000).fields
        assert fields
        assert len({field.name for field in fields}) == len({field.source_id for field in fields}) == len(fields)
        for field in fields:
            assert field.source_id
            assert field.name.endswith(SUFFIXES[field.unit])

    @pytest.mark.parametrize("interval_ms", [199, 0, -1000])
    def test_an_interval_below_200_ms_is_refused(
        self, build: Callable[[int], ThreadedListener], interval_ms: int
    ) -> None:
        with pytest.raises(ConfigError, match="200"):
            build(interval_ms)

    def test_an_unknown_option_is_refused(self, build: Callable[[int], ThreadedListener]) -> None:
        with pytest.raises(ConfigError, match="colour"):
            type(build(1000))(1000, colour="red")

    def test_the_first_sample_is_there_when_entering_returns(
        self, build: Callable[[int], ThreadedListener], watch: OneDevice
    ) -> None:
        sink = Collected()
        before_ns = time.monotonic_ns()
        with build(60_000).observe(watch, sink):
            samples = list(sink)
        assert samples
        assert all(before_ns <= sample.t_ns <= time.monotonic_ns() for sample in samples)

    def test_samples_hold_finite_values_of_its_fields_at_rising_instants(
        self, build: Callable[[int], ThreadedListener], watch: OneDevice
    ) -> None:
        listener, sink = build(200), Collected()
        with listener.observe(watch, sink):
            wait_until(lambda: len([sample for sample in sink if sample.job is None]) >= 3)
        names = {field.name for field in listener.fields}
        instants = [sample.t_ns for sample in sink if sample.job is None]
        assert instants == sorted(set(instants))
        for sample in sink:
            assert sample.source == listener.name
            assert sample.values
            assert sample.values.keys() <= names
            assert all(math.isfinite(value) for value in sample.values.values())

    def test_leaving_is_prompt_and_leaves_neither_thread_nor_process(
        self, build: Callable[[int], ThreadedListener], watch: OneDevice
    ) -> None:
        listener = build(60_000)
        with listener.observe(watch, Collected()):
            assert thread_of(listener) is not None
            helpers = listener.pids()
            assert all(read_process(pid) is not None for pid in helpers)
            start = time.monotonic()
        assert time.monotonic() - start < 1
        assert thread_of(listener) is None
        assert [read_process(pid) for pid in helpers] == [None] * len(helpers)
        assert listener.pids() == ()

    def test_it_can_observe_again(self, build: Callable[[int], ThreadedListener], watch: OneDevice) -> None:
        listener = build(1000)
        for _ in range(2):
            sink = Collected()
            with listener.observe(watch, sink):
                assert sink

    def test_descriptors_are_given_back(self, build: Callable[[int], ThreadedListener], watch: OneDevice) -> None:
        listener = build(1000)
        open_before = sorted(os.listdir("/proc/self/fd"))
        with listener.observe(watch, Collected()):
            pass
        assert sorted(os.listdir("/proc/self/fd")) == open_before

    def test_a_missing_source_is_an_error_at_entry(
        self, build: Callable[[int], ThreadedListener], watch: OneDevice, remove_source: Callable[[], None]
    ) -> None:
        listener = build(1000)
        remove_source()
        with pytest.raises(ListenerError, match=listener.name), listener.observe(watch, Collected()):
            pytest.fail("there is nothing to observe")
        assert thread_of(listener) is None

    def test_a_source_that_dies_is_an_error_on_leaving(
        self,
        build: Callable[[int], ThreadedListener],
        watch: OneDevice,
        kill_source: Callable[[ThreadedListener], None],
    ) -> None:
        listener = build(200)
        with pytest.raises(ListenerError, match=listener.name), listener.observe(watch, Collected()):
            kill_source(listener)
            wait_until(lambda: thread_of(listener) is None)

    def test_an_error_of_the_body_goes_first(
        self,
        build: Callable[[int], ThreadedListener],
        watch: OneDevice,
        kill_source: Callable[[ThreadedListener], None],
    ) -> None:
        listener = build(200)
        with pytest.raises(ZeroDivisionError) as caught, listener.observe(watch, Collected()):
            kill_source(listener)
            wait_until(lambda: thread_of(listener) is None)
            raise ZeroDivisionError
        assert any(listener.name in note for note in caught.value.__notes__)

    def test_a_sink_that_fails_is_an_error(self, build: Callable[[int], ThreadedListener], watch: OneDevice) -> None:
        class FullDisk:
            def put(self, sample: Sample) -> None:
                raise OSError(28, "No space left on device")

        listener = build(1000)
        with pytest.raises(ListenerError, match="No space left"), listener.observe(watch, FullDisk()):
            pytest.fail("nothing could be stored")


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
