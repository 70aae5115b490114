"""The host listener, over real processes and files."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from listeners import host
from listeners.base import ThreadedListener
from listeners.host import HostListener, JobProcesses, find_job, growth
from pipeline.base.system.host_info import ProcessReading, read_file, read_process
from tests.support.listener_contract import CPU, Collected, ListenerContract, OneDevice, go, job, wait_until


class TestHostListener(ListenerContract):
    """The host and the processes of jobs."""

    @pytest.fixture
    def build(self) -> Callable[[int], ThreadedListener]:
        return HostListener

    @pytest.fixture
    def group(self) -> OneDevice:
        group = OneDevice(CPU)
        group.jobs = {0: os.getpid()}
        return group

    @pytest.fixture
    def remove_source(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
        def vanish(path: str) -> bytes:
            raise FileNotFoundError(path)

        return lambda: monkeypatch.setattr(host, "read_file", vanish)

    @pytest.fixture
    def kill_source(self, remove_source: Callable[[], None]) -> Callable[[ThreadedListener], None]:
        return lambda _listener: remove_source()


BURN = "def burn(seconds):\n    while time.process_time() < seconds: pass\n"


def _read_cpu_s(sink: Collected, index: int = 0) -> float:
    """CPU time that the samples of a job account for."""
    samples = [sample for sample in sink if sample.job == index]
    pairs = itertools.pairwise(samples)
    return sum((b.t_ns - a.t_ns) / 1e9 * b.values["cpu_pct"] / 100 for a, b in pairs)


def sample_this_process(is_enough: Callable[[Collected], bool]) -> Collected:
    """What the listener samples of this process as its one job, until that is enough."""
    group, sink = OneDevice(CPU), Collected()
    group.jobs = {0: os.getpid()}
    with HostListener(200).observe(group, sink):
        wait_until(lambda: is_enough(sink))
    return sink


class TestHostListenerOnJobs:
    """Real process trees."""

    @pytest.mark.sampled(1)
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
        group, sink = OneDevice(CPU), Collected()
        with job(f"{BURN}{script}\nprint('done', flush=True)\ntime.sleep(60)") as process:
            group.jobs = {0: process.pid}
            with HostListener(200).observe(group, sink):
                go(process)
                assert process.stdout is not None
                process.stdout.readline()
                burnt = len(sink)
                wait_until(lambda: len(sink) >= burnt + 4)
        assert 0.4 < _read_cpu_s(sink) < 0.75

    def test_the_tree_is_counted_and_its_memory_is_pss_and_rss(self) -> None:
        group, sink = OneDevice(CPU), Collected()
        script = (
            "data = bytearray(os.urandom(1 << 20)) * 64; os.fork() or time.sleep(60)\n"
            "print('forked', flush=True); time.sleep(60)"
        )
        with job(script) as process:
            go(process)
            assert process.stdout is not None
            process.stdout.readline()
            group.jobs = {3: process.pid}
            with HostListener(200).observe(group, sink):
                wait_until(lambda: sink.named("pss_mib", 3))
        assert sink.named("num_processes", 3)[0] == 2
        assert sink.named("num_threads", 3)[0] == 2
        assert sink.named("rss_mib", 3)[0] > 128, "both processes map the 64 MiB"
        assert 64 < sink.named("pss_mib", 3)[0] < 100, "which exist once"

    def test_a_peak_between_two_samples_is_seen_and_shared_pages_are_not_in_it(self, monkeypatch) -> None:
        group, sink = OneDevice(CPU), Collected()
        monkeypatch.setattr(host, "_PSS_REST_FACTOR", 1_000_000)  # as of a process that takes long to read
        # Both processes map 64 MiB, which exist once; then one has 256 MiB more for an instant.
        script = (
            "data = os.urandom(1 << 20) * 64; os.fork() or time.sleep(60)\nprint('forked', flush=True); input()\n"
            "more = os.urandom(1 << 20) * 256; del more; print('freed', flush=True); time.sleep(60)"
        )
        with job(script) as process:
            go(process)
            assert process.stdin is not None and process.stdout is not None
            process.stdout.readline()
            group.jobs = {3: process.pid}
            with HostListener(200).observe(group, sink):
                wait_until(lambda: len(sink.named("pss_peak_mib", 3)) >= 2)
                before = len(sink.named("pss_peak_mib", 3))
                go(process)
                process.stdout.readline()
                freed = len(sink.named("pss_peak_mib", 3))
                wait_until(lambda: len(sink.named("pss_peak_mib", 3)) >= freed + 3)
        peaks = sink.named("pss_peak_mib", 3)
        assert all(64 < peak < 110 for peak in peaks[:before])
        assert 64 + 256 < max(peaks) < 110 + 256
        assert peaks[-1] < 110, "what is over is no peak any more"
        assert len(sink.named("pss_mib", 3)) == 1

    def test_rates_need_two_readings(self) -> None:
        sink = Collected()
        group = OneDevice(CPU)
        group.jobs = {0: os.getpid()}
        rates = {
            "cpu_pct",
            "process_cpu_pct",
            "run_queue_delay_pct",
            "read_mib_per_s",
            "write_mib_per_s",
            "cpu_machine_pct",
        }
        rates |= {field.name for field in HostListener.fields if field.name.endswith("_per_s")}
        with HostListener(200).observe(group, sink):
            wait_until(lambda: len(sink) >= 4)
        machine, process, next_machine, next_own = sink[:4]
        assert not rates & (machine.values.keys() | process.values.keys())
        assert {"cpu_machine_pct"} <= next_machine.values.keys()
        assert {"cpu_pct", "read_mib_per_s", "write_mib_per_s"} <= next_own.values.keys()

    @pytest.fixture
    def storage(self) -> Iterator[Path]:
        """A folder that is not in memory, as those of the suite may be."""
        with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
            yield Path(name)

    def test_written_bytes_are_seen(self, storage: Path) -> None:
        group, sink = OneDevice(CPU), Collected()
        script = (
            "f = open(sys.argv[1], 'wb'); f.write(bytes(8 << 20)); f.flush(); os.fsync(f.fileno())\n"
            "print('done', flush=True); time.sleep(60)"
        )
        before = Path("/proc/self/io").read_text()
        Path(storage / "probe").write_bytes(bytes(1 << 20))
        if Path("/proc/self/io").read_text().split("\nwrite_bytes")[1] == before.split("\nwrite_bytes")[1]:
            pytest.skip("/var/tmp is no storage")
        with job(script, str(storage / "file")) as process:
            group.jobs = {0: process.pid}
            with HostListener(200).observe(group, sink):
                go(process)
                assert process.stdout is not None
                process.stdout.readline()
                written = len(sink)
                wait_until(lambda: len(sink) >= written + 4)
        samples = [sample for sample in sink if sample.job == 0]
        pairs = itertools.pairwise(samples)
        assert sum((b.t_ns - a.t_ns) / 1e9 * b.values["write_mib_per_s"] for a, b in pairs) == pytest.approx(8, rel=0.1)

    def test_jobs_are_told_apart_and_may_come_and_go(self) -> None:
        group, sink = OneDevice(CPU), Collected()
        with HostListener(200).observe(group, sink), job("time.sleep(60)") as first, job("time.sleep(60)") as second:
            wait_until(lambda: len(sink) >= 2)
            assert {sample.job for sample in sink} == {None}
            group.jobs = {0: first.pid, 1: second.pid}
            wait_until(lambda: {sample.job for sample in sink} == {None, 0, 1})
            os.killpg(first.pid, signal.SIGKILL)
            first.wait()
            gone = len(sink)
            wait_until(lambda: len(sink) >= gone + 6)
        assert not [sample for sample in sink[gone + 2 :] if sample.job == 0]
        assert sink[-1].job == 1 or sink[-2].job == 1

    def test_a_process_that_may_not_be_read_leaves_its_values_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        read = host.read_file

        def refuse(path: str) -> bytes:
            if path.endswith(("/io", "/smaps_rollup")):
                raise PermissionError(path)
            return read(path)

        monkeypatch.setattr(host, "read_file", refuse)
        sink = sample_this_process(lambda sink: len([sample for sample in sink if sample.job == 0]) >= 2)
        for sample in (sample for sample in sink if sample.job == 0):
            assert {"rss_mib", "num_processes"} <= sample.values.keys()
            assert not {"pss_mib", "pss_peak_mib", "read_mib_per_s", "write_mib_per_s"} & sample.values.keys()

    def test_an_expensive_pss_is_read_rarely(self, monkeypatch: pytest.MonkeyPatch) -> None:
        read = host.read_file

        def slow(path: str) -> bytes:
            if path.endswith("/smaps_rollup"):
                time.sleep(0.02)
            return read(path)

        monkeypatch.setattr(host, "read_file", slow)
        sink = sample_this_process(lambda sink: len(sink.named("num_processes", 0)) >= 5)
        assert len(sink.named("pss_mib", 0)) == 1, "20 ms of reading earn 2 s of rest"

    def test_threads_that_share_a_cpu_wait_for_it(self) -> None:
        cpu = min(os.sched_getaffinity(0))
        burn = f"os.sched_setaffinity(0, [{cpu}]); os.fork()\nwhile True: pass"
        group, sink = OneDevice(CPU), Collected()
        with job(burn) as process:
            group.jobs = {0: process.pid}
            with HostListener(200).observe(group, sink):
                go(process)
                wait_until(lambda: len(sink.named("run_queue_delay_pct", 0)) >= 4)
        assert sink.named("run_queue_delay_pct", 0)[-1] > 50, "one of the two always waits"
        assert sink.named("involuntary_switches_per_s", 0)[-1] > 1
        last = sink.named("process_cpu_pct", 0)[-1]
        assert 0 < last < 80, "the busiest has about half of the CPU"
        assert last < sink.named("cpu_pct", 0)[-1]

    def test_a_kernel_that_does_not_count_waits_leaves_them_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def old_kernel(path: str) -> bytes:
            if path.endswith("/schedstat"):
                raise FileNotFoundError(path)
            return read_file(path)

        monkeypatch.setattr(host, "read_file", old_kernel)
        sink = sample_this_process(lambda sink: len(sink.named("cpu_pct", 0)) >= 2)
        assert not sink.named("run_queue_delay_pct", 0) and not sink.named("involuntary_switches_per_s", 0)

    def test_the_clock_is_that_of_the_cpu_that_the_busiest_process_ran_on(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(host, "_HAS_CLOCKS", True)
        clocks = {f"/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_cur_freq" for cpu in os.sched_getaffinity(0)}
        monkeypatch.setattr(host, "read_file", lambda path: b"3400000\n" if path in clocks else read_file(path))
        sink = sample_this_process(lambda sink: bool(sink.named("cpu_clock_mhz", 0)))
        assert sink.named("cpu_clock_mhz", 0)[0] == pytest.approx(3400)

    def test_the_machine_has_its_memory_and_load(self) -> None:
        sink = Collected()
        with HostListener(1000).observe(OneDevice(CPU), sink):
            pass
        total_mib = int(Path("/proc/meminfo").read_text().split()[1]) / 1024
        assert sink.named("memory_used_mib")[0] + sink.named("memory_available_mib")[0] == pytest.approx(total_mib)
        assert sink.named("load_1min")[0] >= 0

    @pytest.mark.slow
    def test_a_busy_machine_shows(self) -> None:
        group, sink = OneDevice(CPU), Collected()
        with job(f"{BURN}burn(60)") as process, HostListener(200).observe(group, sink):
            go(process)
            wait_until(lambda: len(sink) >= 6)
        count = os.cpu_count()
        assert count is not None
        assert 50 / count < max(sink.named("cpu_machine_pct")) <= 100


def _start_process(pid: int, parent: int, ticks: int, children: int = 0, start: int = 1) -> ProcessReading:
    return ProcessReading(
        pid=pid, parent=parent, session=1, start_ticks=start, thread_ticks=ticks, children_ticks=children,
        num_threads=1, rss_pages=1, cpu=0, is_zombie=False,
    )  # fmt: skip


def _measure_growth(before: Iterable[ProcessReading], now: Iterable[ProcessReading]) -> int:
    return growth(
        {p.pid: p for p in before}, {p.pid: p for p in now}, lambda p: p.thread_ticks, lambda p: p.children_ticks
    )


class TestGrowth:
    """CPU time of a tree whose processes come and go."""

    def test_of_the_living(self) -> None:
        assert (
            _measure_growth(
                [_start_process(1, 0, 10), _start_process(2, 1, 20)],
                [_start_process(1, 0, 13), _start_process(2, 1, 24)],
            )
            == 7
        )

    def test_a_child_that_was_waited_for_counts_once(self) -> None:
        assert (
            _measure_growth(
                [_start_process(1, 0, 10), _start_process(2, 1, 20)], [_start_process(1, 0, 10, children=25)]
            )
            == 5
        )

    def test_a_child_that_nobody_waits_for_takes_nothing_away(self) -> None:
        assert _measure_growth([_start_process(1, 0, 10), _start_process(2, 1, 20)], [_start_process(1, 0, 13)]) == 3

    def test_a_whole_branch_that_vanished_counts_once(self) -> None:
        before = [_start_process(1, 0, 10), _start_process(2, 1, 20), _start_process(3, 2, 30)]
        assert _measure_growth(before, [_start_process(1, 0, 10, children=56)]) == 6

    def test_a_new_process_counts_with_its_children(self) -> None:
        assert (
            _measure_growth([_start_process(1, 0, 10)], [_start_process(1, 0, 10), _start_process(2, 1, 4, children=3)])
            == 7
        )

    def test_another_process_of_the_same_pid_is_a_new_one(self) -> None:
        before = [_start_process(1, 0, 10), _start_process(2, 1, 20)]
        assert _measure_growth(before, [_start_process(1, 0, 10, children=20), _start_process(2, 1, 4, start=9)]) == 4


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
                assert find_job(child, jobs) == 5
                go(process)
                process.wait()
                assert processes.scan(jobs)[5].keys() == {child}
            finally:
                os.kill(child, signal.SIGKILL)

    def test_strangers_belong_to_no_job(self) -> None:
        with job("") as process:
            assert find_job(os.getpid(), {0: process.pid}) is None
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
