"""The requirements for every listener, as tests that the listener's test class inherits, and their helpers."""

from __future__ import annotations

import importlib
import math
import os
import signal
import subprocess
import sys
import threading
import time
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import yaml

from listeners import program_listener
from listeners.base import ThreadedListener
from listeners.program_listener import ProgramListener
from pipeline.base.domain.protocols import Listener, RunningGroup
from pipeline.base.domain.records import Device
from pipeline.base.domain.samples import Sample
from pipeline.base.system.errors import ConfigError, ListenerError
from pipeline.base.system.host_info import read_process
from pipeline.base.system.paths import PROJECT_DIR
from tests.support.nvml_library import UUID
from tests.support.waiting import wait_until

CONF = PROJECT_DIR / "conf/listeners"
GPU = Device(kind="nvidia", uuid=UUID, name="NVIDIA H100 80GB HBM3", index=0)
CPU = Device(kind="cpu", uuid="CPU-here", name="this machine")
# For each unit, the required end of a field's name.
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
    "1/s": "_per_s",
    "degrees Celsius": "_c",
    "bit mask of nvml.h": "_bits",
    "number of the performance state": "pstate",
    "processes": "num_processes",
    "threads": "num_threads",
    "CPUs": "_cpus",
    "processes, mean of 1 min": "load_1min",
}


class OneDevice(RunningGroup):
    """A running group on a device; a test sets its jobs."""

    def __init__(self, device: Device = GPU) -> None:
        self.jobs: dict[int, int] = {}
        super().__init__(device=device, slots=(), folder=Path(), samples=(), pids=lambda: dict(self.jobs))


class Collected(list[Sample]):
    """A sink that keeps samples in a list."""

    def put(self, sample: Sample) -> None:
        self.append(sample)

    def named(self, name: str, job: int | None = None) -> list[float]:
        return [sample.values[name] for sample in self if sample.job == job and name in sample.values]


def thread_of(listener: ThreadedListener) -> threading.Thread | None:
    return next((thread for thread in threading.enumerate() if thread.name == listener.name), None)


class ListenerContract:
    """The requirements for every listener. A subclass defines the listener, and how its source fails."""

    @pytest.fixture
    def build(self) -> Callable[[int], ThreadedListener]:
        raise NotImplementedError

    @pytest.fixture
    def group(self) -> OneDevice:
        return OneDevice()

    @pytest.fixture
    def remove_source(self) -> Callable[[], None]:
        """Return a function that removes the source."""
        raise NotImplementedError

    @pytest.fixture
    def kill_source(self) -> Callable[[ThreadedListener], None]:
        """Return a function that breaks the source of a running listener."""
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
        self, build: Callable[[int], ThreadedListener], group: OneDevice
    ) -> None:
        sink = Collected()
        before_ns = time.monotonic_ns()
        with build(60_000).observe(group, sink):
            samples = list(sink)
        assert samples
        assert all(before_ns <= sample.t_ns <= time.monotonic_ns() for sample in samples)

    def test_samples_hold_finite_values_of_its_fields_at_rising_instants(
        self, build: Callable[[int], ThreadedListener], group: OneDevice
    ) -> None:
        listener, sink = build(200), Collected()
        with listener.observe(group, sink):
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
        self, build: Callable[[int], ThreadedListener], group: OneDevice
    ) -> None:
        listener = build(60_000)
        with listener.observe(group, Collected()):
            assert thread_of(listener) is not None
            helpers = listener.pids()
            assert all(read_process(pid) is not None for pid in helpers)
            start = time.monotonic()
        assert time.monotonic() - start < 30  # half an interval
        assert thread_of(listener) is None
        assert [read_process(pid) for pid in helpers] == [None] * len(helpers)
        assert listener.pids() == ()

    def test_it_can_observe_again(self, build: Callable[[int], ThreadedListener], group: OneDevice) -> None:
        listener = build(1000)
        for _ in range(2):
            sink = Collected()
            with listener.observe(group, sink):
                assert sink

    def test_descriptors_are_given_back(self, build: Callable[[int], ThreadedListener], group: OneDevice) -> None:
        listener = build(1000)
        open_before = sorted(os.listdir("/proc/self/fd"))
        with listener.observe(group, Collected()):
            pass
        assert sorted(os.listdir("/proc/self/fd")) == open_before

    def test_a_missing_source_is_an_error_at_entry(
        self, build: Callable[[int], ThreadedListener], group: OneDevice, remove_source: Callable[[], None]
    ) -> None:
        listener = build(1000)
        remove_source()
        with pytest.raises(ListenerError, match=listener.name), listener.observe(group, Collected()):
            pytest.fail("there is nothing to observe")
        assert thread_of(listener) is None

    def test_a_source_that_dies_is_an_error_on_leaving(
        self,
        build: Callable[[int], ThreadedListener],
        group: OneDevice,
        kill_source: Callable[[ThreadedListener], None],
    ) -> None:
        listener = build(200)
        with pytest.raises(ListenerError, match=listener.name), listener.observe(group, Collected()):
            kill_source(listener)
            wait_until(lambda: thread_of(listener) is None)

    def test_an_error_of_the_body_goes_first(
        self,
        build: Callable[[int], ThreadedListener],
        group: OneDevice,
        kill_source: Callable[[ThreadedListener], None],
    ) -> None:
        listener = build(200)
        with pytest.raises(ZeroDivisionError) as caught, listener.observe(group, Collected()):
            kill_source(listener)
            wait_until(lambda: thread_of(listener) is None)
            raise ZeroDivisionError
        assert any(listener.name in note for note in caught.value.__notes__)

    def test_a_sink_that_fails_is_an_error(self, build: Callable[[int], ThreadedListener], group: OneDevice) -> None:
        class FullDisk:
            def put(self, sample: Sample) -> None:
                raise OSError(28, "No space left on device")

        listener = build(1000)
        with pytest.raises(ListenerError, match="No space left"), listener.observe(group, FullDisk()):
            pytest.fail("nothing could be stored")


@contextmanager
def job(script: str, *argv: str) -> Iterator[subprocess.Popen[str]]:
    """A toy job: a session leader that runs a Python script after it has read a line; on exit, its group is killed."""
    waiting = f"import os, subprocess, sys, time\nprint('up', flush=True)\nsys.stdin.readline()\n{script}"
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", waiting, *argv],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.readline()
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


class GpuListenerContract(ListenerContract):
    """The requirements for a listener of a GPU."""

    def test_a_device_that_is_no_gpu_is_refused(self, build: Callable[[int], ThreadedListener]) -> None:
        with pytest.raises(ListenerError, match="not a GPU"), build(1000).observe(OneDevice(CPU), Collected()):
            pytest.fail("there is no GPU")


class StandIn(typing.Protocol):
    """A program that plays the source of a listener: `write` writes it with its present settings."""

    path: Path
    ignores_sigterm: bool

    def write(self) -> str: ...


_LISTENING = """
import time
import typing
from listeners.{module} import {name}
from tests.support.listener_contract import Collected, OneDevice

listener = {name}(200, program={program!r})
with listener.observe(OneDevice(), Collected()):
    print(*listener.pids(), flush=True)
    time.sleep(60)
"""


class ProgramListenerContract(GpuListenerContract):
    """The requirements for a listener that reads the output of a program; a subclass names it, and what plays it."""

    listener: type[ProgramListener]

    @pytest.fixture
    def stand_in(self) -> StandIn:
        raise NotImplementedError

    @pytest.fixture
    def build(self, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], ThreadedListener]:
        monkeypatch.setenv("PATH", f"{stand_in.path.parent}:{os.environ['PATH']}")
        return self.listener

    @pytest.fixture
    def remove_source(self, stand_in: StandIn) -> Callable[[], None]:
        return stand_in.path.unlink

    @pytest.fixture
    def kill_source(self) -> Callable[[ThreadedListener], None]:
        def kill(listener: ThreadedListener) -> None:
            (pid,) = listener.pids()
            os.kill(pid, signal.SIGKILL)

        return kill

    def test_one_that_falls_silent_is_an_error(self, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(self.listener, "start_limit_s", 2.0)
        monkeypatch.setattr(program_listener, "_END_LIMIT_S", 0.2)
        listener = self.listener(200, program=stand_in.write())
        with pytest.raises(ListenerError, match=r"no row for 2\.2 s"), listener.observe(OneDevice(), Collected()):
            (pid,) = listener.pids()
            os.kill(pid, signal.SIGSTOP)
            wait_until(lambda: thread_of(listener) is None)
        assert read_process(pid) is None

    def test_one_that_ignores_sigterm_is_killed(self, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(program_listener, "_END_LIMIT_S", 0.2)
        stand_in.ignores_sigterm = True
        listener = self.listener(60_000, program=stand_in.write())
        with listener.observe(OneDevice(), Collected()):
            (pid,) = listener.pids()
        assert read_process(pid) is None

    def test_it_has_a_session_of_its_own_and_ends_when_nobody_reads(self, stand_in: StandIn) -> None:
        module, name = self.listener.__module__.rpartition(".")[2], self.listener.__name__
        listening = _LISTENING.format(module=module, name=name, program=stand_in.write())
        argv = [sys.executable, "-c", listening]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=PROJECT_DIR) as process:
            assert process.stdout is not None
            pid = int(process.stdout.readline())
            read = read_process(pid)
            process.kill()
        assert read is not None
        assert read.session == pid
        wait_until(lambda: (child := read_process(pid)) is None or child.is_zombie)
