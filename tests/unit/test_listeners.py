"""One contract that every listener keeps, and what is particular to each. Real threads, processes and files."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pynvml
import pytest
import yaml

from listeners import host
from listeners.base import PollingListener, StopSignal, ThreadedListener, ticks
from listeners.host import HostListener, JobProcesses, Process, growth, job_of, read_process
from listeners.nvml import NvmlListener
from listeners.smi import SmiListener
from pipeline.errors import ConfigError, ListenerError
from pipeline.protocols import Listener, Watch
from pipeline.types import Device, Field, Sample
from tests.nvml_library import MIB, UUID, NvmlLibrary, installed

DATA = Path(__file__).parent.parent / "data"
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


class TestHostListener(ListenerContract):
    """The host and the processes of jobs."""

    @pytest.fixture
    def build(self) -> Callable[[int], ThreadedListener]:
        return HostListener

    @pytest.fixture
    def watch(self) -> OneDevice:
        watch = OneDevice(CPU)
        watch.jobs = {0: os.getpid()}
        return watch

    @pytest.fixture
    def remove_source(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
        def vanish(path: str) -> bytes:
            raise FileNotFoundError(path)

        return lambda: monkeypatch.setattr(host, "_read", vanish)

    @pytest.fixture
    def kill_source(self, remove_source: Callable[[], None]) -> Callable[[ThreadedListener], None]:
        return lambda _listener: remove_source()


@contextmanager
def job(script: str, *argv: str) -> Iterator[subprocess.Popen[str]]:
    """A toy job: a session leader that runs a Python script once it reads a line, and is killed as a group."""
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


BURN = "def burn(seconds):\n    while time.process_time() < seconds: pass\n"


def _cpu_seconds(sink: Collected, index: int = 0) -> float:
    """CPU time that the samples of a job account for."""
    samples = [sample for sample in sink if sample.job == index]
    pairs = itertools.pairwise(samples)
    return sum((b.t_ns - a.t_ns) / 1e9 * b.values["cpu_pct"] / 100 for a, b in pairs)


class TestHostListenerOnJobs:
    """Real process trees."""

    @pytest.mark.parametrize(
        "script",
        [
            pytest.param("burn(0.5)", id="by itself"),
            pytest.param("os.fork() or (burn(0.5), os._exit(0)); os.wait()", id="by a child that exits"),
            pytest.param(
                "os.fork() or (os.fork() or (burn(0.5), os._exit(0)), os.wait(), os._exit(0)); os.wait()",
                id="by a grandchild that exits",
            ),
            pytest.param("os.fork() or (os.setsid(), burn(0.5), os._exit(0)); os.wait()", id="in another session"),
        ],
    )
    def test_cpu_time_is_complete(self, script: str) -> None:
        watch, sink = OneDevice(CPU), Collected()
        with job(f"{BURN}{script}\nprint('done', flush=True)\ntime.sleep(60)") as process:
            watch.jobs = {0: process.pid}
            with HostListener(200).observe(watch, sink):
                go(process)
                assert process.stdout is not None
                process.stdout.readline()
                burnt = len(sink)
                wait_until(lambda: len(sink) >= burnt + 4)
        assert 0.4 < _cpu_seconds(sink) < 0.75

    def test_the_tree_is_counted_and_its_memory_is_pss_and_rss(self) -> None:
        watch, sink = OneDevice(CPU), Collected()
        script = (
            "data = bytearray(os.urandom(1 << 20)) * 64; os.fork() or time.sleep(60)\n"
            "print('forked', flush=True); time.sleep(60)"
        )
        with job(script) as process:
            go(process)
            assert process.stdout is not None
            process.stdout.readline()
            watch.jobs = {3: process.pid}
            with HostListener(200).observe(watch, sink):
                wait_until(lambda: sink.named("pss_mib", 3))
        assert sink.named("num_processes", 3)[0] == 2
        assert sink.named("num_threads", 3)[0] == 2
        assert sink.named("rss_mib", 3)[0] > 128, "both processes map the 64 MiB"
        assert 64 < sink.named("pss_mib", 3)[0] < 100, "which exist once"

    def test_rates_need_two_readings(self) -> None:
        sink = Collected()
        watch = OneDevice(CPU)
        watch.jobs = {0: os.getpid()}
        rates = {"cpu_pct", "read_mib_per_s", "write_mib_per_s", "cpu_machine_pct"}
        rates |= {field.name for field in HostListener.fields if field.name.endswith("_per_s")}
        with HostListener(200).observe(watch, sink):
            wait_until(lambda: len(sink) >= 4)
        machine, own, next_machine, next_own = sink[:4]
        assert not rates & (machine.values.keys() | own.values.keys())
        assert {"cpu_machine_pct"} <= next_machine.values.keys()
        assert {"cpu_pct", "read_mib_per_s", "write_mib_per_s"} <= next_own.values.keys()

    def test_written_bytes_are_seen(self, tmp_path: Path) -> None:
        watch, sink = OneDevice(CPU), Collected()
        script = (
            "f = open(sys.argv[1], 'wb'); f.write(bytes(8 << 20)); f.flush(); os.fsync(f.fileno())\n"
            "print('done', flush=True); time.sleep(60)"
        )
        before = Path("/proc/self/io").read_text()
        Path(tmp_path / "probe").write_bytes(bytes(1 << 20))
        if Path("/proc/self/io").read_text().split("\nwrite_bytes")[1] == before.split("\nwrite_bytes")[1]:
            pytest.skip("the temporary folder is no storage")
        with job(script, str(tmp_path / "file")) as process:
            watch.jobs = {0: process.pid}
            with HostListener(200).observe(watch, sink):
                go(process)
                assert process.stdout is not None
                process.stdout.readline()
                written = len(sink)
                wait_until(lambda: len(sink) >= written + 4)
        samples = [sample for sample in sink if sample.job == 0]
        pairs = itertools.pairwise(samples)
        assert sum((b.t_ns - a.t_ns) / 1e9 * b.values["write_mib_per_s"] for a, b in pairs) == pytest.approx(8, rel=0.1)

    def test_jobs_are_told_apart_and_may_come_and_go(self) -> None:
        watch, sink = OneDevice(CPU), Collected()
        with HostListener(200).observe(watch, sink), job("time.sleep(60)") as first, job("time.sleep(60)") as second:
            wait_until(lambda: len(sink) >= 2)
            assert {sample.job for sample in sink} == {None}
            watch.jobs = {0: first.pid, 1: second.pid}
            wait_until(lambda: {sample.job for sample in sink} == {None, 0, 1})
            os.killpg(first.pid, signal.SIGKILL)
            first.wait()
            gone = len(sink)
            wait_until(lambda: len(sink) >= gone + 6)
        assert not [sample for sample in sink[gone + 2 :] if sample.job == 0]
        assert sink[-1].job == 1 or sink[-2].job == 1

    def test_a_process_that_may_not_be_read_leaves_its_values_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        read = host._read

        def refuse(path: str) -> bytes:
            if path.endswith(("/io", "/smaps_rollup")):
                raise PermissionError(path)
            return read(path)

        monkeypatch.setattr(host, "_read", refuse)
        watch, sink = OneDevice(CPU), Collected()
        watch.jobs = {0: os.getpid()}
        with HostListener(200).observe(watch, sink):
            wait_until(lambda: len([sample for sample in sink if sample.job == 0]) >= 2)
        for sample in (sample for sample in sink if sample.job == 0):
            assert {"rss_mib", "num_processes"} <= sample.values.keys()
            assert not {"pss_mib", "read_mib_per_s", "write_mib_per_s"} & sample.values.keys()

    def test_an_expensive_pss_is_read_rarely(self, monkeypatch: pytest.MonkeyPatch) -> None:
        read = host._read

        def slow(path: str) -> bytes:
            if path.endswith("/smaps_rollup"):
                time.sleep(0.02)
            return read(path)

        monkeypatch.setattr(host, "_read", slow)
        watch, sink = OneDevice(CPU), Collected()
        watch.jobs = {0: os.getpid()}
        with HostListener(200).observe(watch, sink):
            wait_until(lambda: len(sink.named("num_processes", 0)) >= 5)
        assert len(sink.named("pss_mib", 0)) == 1, "20 ms of reading earn 2 s of rest"

    def test_the_machine_has_its_memory_and_load(self) -> None:
        sink = Collected()
        with HostListener(1000).observe(OneDevice(CPU), sink):
            pass
        total_mib = int(Path("/proc/meminfo").read_text().split()[1]) / 1024
        assert sink.named("memory_used_mib")[0] + sink.named("memory_available_mib")[0] == pytest.approx(total_mib)
        assert sink.named("load_1min")[0] >= 0

    def test_a_busy_machine_shows(self) -> None:
        watch, sink = OneDevice(CPU), Collected()
        with job(f"{BURN}burn(60)") as process, HostListener(200).observe(watch, sink):
            go(process)
            wait_until(lambda: len(sink) >= 6)
        count = os.cpu_count()
        assert count is not None
        assert 50 / count < max(sink.named("cpu_machine_pct")) <= 100


def _process(pid: int, parent: int, own: int, children: int = 0, start: int = 1) -> Process:
    return Process(
        pid=pid, parent=parent, session=1, start_ticks=start, own_ticks=own, children_ticks=children,
        num_threads=1, rss_pages=1, is_zombie=False,
    )  # fmt: skip


def _growth(before: Iterable[Process], now: Iterable[Process]) -> int:
    return growth(
        {p.pid: p for p in before}, {p.pid: p for p in now}, lambda p: p.own_ticks, lambda p: p.children_ticks
    )


class TestGrowth:
    """CPU time of a tree whose processes come and go."""

    def test_of_the_living(self) -> None:
        assert _growth([_process(1, 0, 10), _process(2, 1, 20)], [_process(1, 0, 13), _process(2, 1, 24)]) == 7

    def test_a_child_that_was_waited_for_counts_once(self) -> None:
        assert _growth([_process(1, 0, 10), _process(2, 1, 20)], [_process(1, 0, 10, children=25)]) == 5

    def test_a_child_that_nobody_waits_for_takes_nothing_away(self) -> None:
        assert _growth([_process(1, 0, 10), _process(2, 1, 20)], [_process(1, 0, 13)]) == 3

    def test_a_whole_branch_that_vanished_counts_once(self) -> None:
        before = [_process(1, 0, 10), _process(2, 1, 20), _process(3, 2, 30)]
        assert _growth(before, [_process(1, 0, 10, children=56)]) == 6

    def test_a_new_process_counts_with_its_children(self) -> None:
        assert _growth([_process(1, 0, 10)], [_process(1, 0, 10), _process(2, 1, 4, children=3)]) == 7

    def test_another_process_of_the_same_pid_is_a_new_one(self) -> None:
        before = [_process(1, 0, 10), _process(2, 1, 20)]
        assert _growth(before, [_process(1, 0, 10, children=20), _process(2, 1, 4, start=9)]) == 4


class TestJobProcesses:
    """Which process belongs to which job."""

    def test_a_name_with_blanks_and_parentheses_is_read_right(self, tmp_path: Path) -> None:
        program = tmp_path / "a) R 1 (b"
        program.symlink_to("/bin/sleep")
        with subprocess.Popen([str(program), "60"], start_new_session=True) as process:
            try:
                wait_until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "a) R 1 (b\n")
                read = read_process(process.pid)
            finally:
                process.kill()
        assert read is not None
        assert (read.parent, read.session) == (os.getpid(), process.pid)

    def test_descendants_in_other_sessions_belong_to_the_job_even_as_orphans(self) -> None:
        script = (
            "if not os.fork():\n"
            "    os.setsid()\n"
            "    print(os.getpid(), flush=True)\n"
            "    time.sleep(60)\n"
            "sys.stdin.readline()\n"
        )
        processes = JobProcesses()
        with job(script) as process:
            go(process)
            assert process.stdout is not None
            child = int(process.stdout.readline())
            try:
                jobs = {5: process.pid}
                assert processes.scan(jobs)[5].keys() == {process.pid, child}
                assert job_of(child, jobs) == 5
                go(process)
                process.wait()
                assert processes.scan(jobs)[5].keys() == {child}
            finally:
                os.kill(child, signal.SIGKILL)

    def test_strangers_belong_to_no_job(self) -> None:
        with job("") as process:
            assert job_of(os.getpid(), {0: process.pid}) is None
            assert JobProcesses().scan({0: process.pid})[0].keys() == {process.pid}

    def test_a_process_that_ends_after_its_parent_was_read_stays_for_one_scan(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        processes = JobProcesses()
        with job("child = os.fork() or time.sleep(60)\nprint(child, flush=True)\ntime.sleep(60)") as process:
            go(process)
            assert process.stdout is not None
            child = int(process.stdout.readline())
            (before,) = processes.scan({0: process.pid}).values()
            with monkeypatch.context() as patch:
                patch.setattr(host, "read_process", lambda pid: None if pid == child else read_process(pid))
                (now,) = processes.scan({0: process.pid}).values()
            assert now[child] == before[child], "its parent cannot have inherited its CPU time yet"
            os.kill(child, signal.SIGKILL)
            process.kill()
            process.wait()
            wait_until(lambda: read_process(child) is None)
            assert processes.scan({0: process.pid}) == {}

    def test_a_job_that_was_seen_before_it_was_known_is_found(self) -> None:
        processes = JobProcesses()
        with job("") as first, job("") as second:
            assert processes.scan({0: first.pid}).keys() == {0}
            assert processes.scan({0: first.pid, 1: second.pid}).keys() == {0, 1}


class TestNvmlListener(ListenerContract):
    """NVML over a stand-in for its C library."""

    @pytest.fixture(autouse=True)
    def library(self) -> Iterator[NvmlLibrary]:
        with installed(NvmlLibrary()) as library:
            yield library

    @pytest.fixture
    def build(self) -> Callable[[int], ThreadedListener]:
        return NvmlListener

    @pytest.fixture
    def remove_source(self, library: NvmlLibrary) -> Callable[[], None]:
        return lambda: library.errors.update(nvmlInitWithFlags=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    @pytest.fixture
    def kill_source(self, library: NvmlLibrary) -> Callable[[ThreadedListener], None]:
        return lambda _listener: library.errors.update(nvmlDeviceGetPowerUsage=pynvml.NVML_ERROR_GPU_IS_LOST)

    def test_values_are_in_the_units_of_their_names(self) -> None:
        sink = Collected()
        with NvmlListener(1000).observe(OneDevice(), sink):
            pass
        assert sink[0].values == pytest.approx(
            {
                "memory_used_mib": 1564,
                "power_w": 581.023,
                "energy_j": 5637.754,
                "sm_clock_mhz": 345,
                "memory_clock_mhz": 2619,
                "temperature_c": 42,
                "utilization_gpu_pct": 100,
                "utilization_memory_pct": 15,
                "throttle_reasons_bits": 4,
                "pstate": 0,
            }
        )

    def test_what_the_gpu_does_not_offer_is_absent(self, library: NvmlLibrary) -> None:
        library.errors.update(nvmlDeviceGetUtilizationRates=pynvml.NVML_ERROR_NOT_SUPPORTED)
        sink = Collected()
        with NvmlListener(1000).observe(OneDevice(), sink):
            pass
        assert sink[0].values.keys() & {"utilization_gpu_pct", "utilization_memory_pct", "power_w"} == {"power_w"}

    def test_memory_of_a_job_is_that_of_its_whole_tree(self, library: NvmlLibrary) -> None:
        watch, sink = OneDevice(), Collected()
        script = "child = os.fork() or time.sleep(60)\nprint(child, flush=True)\ntime.sleep(60)"
        with job(script) as first, job("time.sleep(60)") as second:
            go(first)
            assert first.stdout is not None
            child = int(first.stdout.readline())
            listed = [(first.pid, 100 * MIB), (child, 20 * MIB), (os.getpid(), 7 * MIB)]
            library.gpus[0].processes = {"Compute": listed, "MPSCompute": listed[:1], "Graphics": []}
            watch.jobs = {0: first.pid, 1: second.pid}
            with NvmlListener(1000).observe(watch, sink):
                wait_until(lambda: sink.named("process_memory_mib", 0))
        assert sink.named("process_memory_mib", 0) == [120]
        assert not [sample for sample in sink if sample.job == 1], "a job that is not on the GPU has no value, not 0"

    def test_memory_of_jobs_that_cannot_be_had_is_absent(self, library: NvmlLibrary) -> None:
        library.errors.update(nvmlDeviceGetComputeRunningProcesses_v3=pynvml.NVML_ERROR_NO_PERMISSION)
        watch, sink = OneDevice(), Collected()
        watch.jobs = {0: os.getpid()}
        with NvmlListener(200).observe(watch, sink):
            wait_until(lambda: len(sink) >= 2)
        assert {sample.job for sample in sink} == {None}

    def test_a_device_that_is_no_gpu_is_refused(self) -> None:
        with pytest.raises(ListenerError, match="not a GPU"), NvmlListener(1000).observe(OneDevice(CPU), Collected()):
            pytest.fail("there is no GPU")


def _recorded() -> tuple[dict[str, str], dict[str, str]]:
    """Columns of the recorded query of an H100: as asked for to header, and to value (without unit)."""
    command, header, *_ = (DATA / "h100" / "query.txt").read_text().splitlines()
    row = (DATA / "h100" / "query_nounits.txt").read_text().splitlines()[1].split(", ")
    match = re.search(r"--query-gpu=(\S+)", command)
    assert match is not None
    asked, printed = match[1].split(","), header.split(", ")
    # nvidia-smi takes the name that it prints as well as the short one.
    names = [*asked, *(cell.split(" [")[0] for cell in printed)]
    return dict(zip(names, printed * 2, strict=True)), dict(zip(names, row * 2, strict=True))


PROGRAM = """#!{python} -S
import signal, sys, time
header, row, before, after, ignore_term = {header!r}, {row!r}, {before!r}, {after!r}, {ignore_term!r}
columns = sys.argv[1].removeprefix("--query-gpu=").split(",")
assert sys.argv[2:5] == ["--format=csv,nounits", "-i", "{uuid}"] and sys.argv[5] == "-lms", sys.argv
for column in columns:
    if column not in header:
        print('Field "%s" is not a valid field to query.\\n' % column)
        sys.exit(2)
if ignore_term:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(before, end="", flush=True)
print(", ".join(header[column] for column in columns), flush=True)
print(", ".join(row[column] for column in columns), flush=True)
if after:
    sys.stderr.write(after)
    sys.exit(15)
while True:
    time.sleep(int(sys.argv[6]) / 1e3)
    print(", ".join(row[column] for column in columns), flush=True)
"""


LISTENING = """
import time
from listeners.smi import SmiListener
from pipeline.types import Device

class Watch:
    slots = ()
    device = Device(kind="nvidia", uuid={uuid!r}, name="gpu")

    def pids(self):
        return {{}}

class Sink:
    def put(self, sample):
        pass

listener = SmiListener(200, program={program!r})
with listener.observe(Watch(), Sink()):
    print(*listener.pids(), flush=True)
    time.sleep(60)
"""


@dataclasses.dataclass
class Program:
    """A stand-in for nvidia-smi that prints the recorded row again and again."""

    path: Path
    header: dict[str, str]
    row: dict[str, str]
    before: str = ""
    after: str = ""
    ignore_term: bool = False

    def write(self) -> str:
        settings = {key: value for key, value in vars(self).items() if key != "path"}
        self.path.write_text(PROGRAM.format(python=sys.executable, uuid=UUID, **settings))
        self.path.chmod(0o755)
        return str(self.path)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    header, row = _recorded()
    program = Program(tmp_path / "nvidia-smi", header, row)
    program.write()
    return program


class TestSmiListener(ListenerContract):
    """nvidia-smi, played by a program that prints what a real one printed."""

    @pytest.fixture
    def build(self, program: Program, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], ThreadedListener]:
        monkeypatch.setenv("PATH", f"{program.path.parent}:{os.environ['PATH']}")
        return SmiListener

    @pytest.fixture
    def remove_source(self, program: Program) -> Callable[[], None]:
        return program.path.unlink

    @pytest.fixture
    def kill_source(self) -> Callable[[ThreadedListener], None]:
        def kill(listener: ThreadedListener) -> None:
            (pid,) = listener.pids()
            os.kill(pid, signal.SIGKILL)

        return kill

    def _first(self, program: Program) -> dict[str, float]:
        sink = Collected()
        with SmiListener(1000, program=program.write()).observe(OneDevice(), sink):
            return sink[0].values

    def test_values_are_those_of_the_recording(self, program: Program) -> None:
        assert self._first(program) == {
            "power_w": 74.93,
            "memory_used_mib": 0,
            "utilization_gpu_pct": 0,
            "utilization_memory_pct": 0,
            "sm_clock_mhz": 345,
            "memory_clock_mhz": 2619,
            "temperature_c": 41,
            "pstate": 0,
        }

    @pytest.mark.parametrize("cell", ["[N/A]", "[Not Supported]", "N/A", "[Unknown Error]", ""])
    def test_what_is_not_available_is_absent(
        self, program: Program, cell: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        program.row["power.draw"] = cell
        values = self._first(program)
        assert "power_w" not in values
        assert "temperature_c" in values
        assert not caplog.records, "that is normal and no reason to warn"

    @pytest.mark.parametrize("cell", ["74.93 W", "nan", "P?"])
    def test_what_is_no_number_is_absent_with_a_warning(
        self, program: Program, cell: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        program.row["power.draw"] = cell
        assert "power_w" not in self._first(program)
        assert "power.draw" in caplog.text

    def test_columns_are_found_by_name(self, program: Program, caplog: pytest.LogCaptureFixture) -> None:
        program.header["power.draw"] = "power.draw.average [W]"
        values = self._first(program)
        assert "power_w" not in values
        assert values["temperature_c"] == 41
        assert "no column power.draw" in caplog.text

    def test_a_field_that_this_nvidia_smi_does_not_know_is_left_out(
        self, program: Program, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert 'Field "nope" is not a valid field to query.' in (DATA / "h100" / "query_bad.txt").read_text()
        del program.header["utilization.memory"], program.header["pstate"]
        values = self._first(program)
        assert values.keys() >= {"power_w", "temperature_c"}
        assert not {"utilization_memory_pct", "pstate"} & values.keys()
        assert "does not know utilization.memory" in caplog.text
        assert "does not know pstate" in caplog.text

    def test_a_program_that_knows_no_field_is_an_error(self, program: Program) -> None:
        program.header.clear()
        with pytest.raises(ListenerError, match="none of the columns"):
            self._first(program)

    def test_lines_that_are_no_rows_are_no_samples(self, program: Program) -> None:
        program.before = "WARNING: infoROM is corrupted at gpu 0000:00:06.0\n\n"
        assert self._first(program)["power_w"] == 74.93

    def test_an_early_end_tells_status_and_last_words(self, program: Program) -> None:
        program.after = "Unable to determine the device handle for GPU0: Unknown Error\n"
        listener = SmiListener(1000, program=program.write())
        with (
            pytest.raises(ListenerError, match=r"status 15.*Unable to determine"),
            listener.observe(OneDevice(), Collected()),
        ):
            wait_until(lambda: thread_of(listener) is None)

    def test_a_gpu_that_it_does_not_find_is_an_error(self, tmp_path: Path) -> None:
        program = tmp_path / "nvidia-smi"
        _, words, _ = (DATA / "h100" / "query_i9.txt").read_text().splitlines()
        program.write_text(f"#!/bin/sh\necho {words}; exit 6\n")
        program.chmod(0o755)
        listening = SmiListener(1000, program=str(program)).observe(OneDevice(), Collected())
        with pytest.raises(ListenerError, match=r"status 6.*No devices were found"), listening:
            pytest.fail("there is no GPU")

    def test_one_that_says_nothing_is_an_error_in_time(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text("#!/bin/sh\nexec sleep 60\n")
        program.chmod(0o755)
        monkeypatch.setattr(SmiListener, "start_limit_s", 0.3)
        listening = SmiListener(1000, program=str(program)).observe(OneDevice(), Collected())
        with pytest.raises(ListenerError, match="no sample"), listening:
            pytest.fail("it said nothing")

    def test_one_that_falls_silent_is_an_error(self, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(SmiListener, "start_limit_s", 1.0)
        monkeypatch.setattr("listeners.program._END_LIMIT_S", 0.2)
        listener = SmiListener(200, program=program.write())
        with pytest.raises(ListenerError, match=r"no row for 1\.2 s"), listener.observe(OneDevice(), Collected()):
            (pid,) = listener.pids()
            os.kill(pid, signal.SIGSTOP)
            wait_until(lambda: thread_of(listener) is None)
        assert read_process(pid) is None

    def test_one_that_ignores_sigterm_is_killed(self, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("listeners.program._END_LIMIT_S", 0.2)
        program.ignore_term = True
        listener = SmiListener(60_000, program=program.write())
        with listener.observe(OneDevice(), Collected()):
            (pid,) = listener.pids()
        assert read_process(pid) is None

    def test_it_has_a_session_of_its_own_and_ends_when_nobody_reads(self, program: Program) -> None:
        listening = LISTENING.format(uuid=UUID, program=program.write())
        with subprocess.Popen(
            [sys.executable, "-c", listening], stdout=subprocess.PIPE, text=True, cwd=CONF.parent.parent
        ) as process:
            assert process.stdout is not None
            pid = int(process.stdout.readline())
            read = read_process(pid)
            process.kill()
        assert read is not None
        assert read.session == pid
        wait_until(lambda: (left := read_process(pid)) is None or left.is_zombie)

    def test_a_device_that_is_no_gpu_is_refused(self, program: Program) -> None:
        with pytest.raises(ListenerError, match="not a GPU"), SmiListener(1000).observe(OneDevice(CPU), Collected()):
            pytest.fail("there is no GPU")


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
