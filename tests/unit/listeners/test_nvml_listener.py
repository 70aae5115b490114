"""The NVML listener over a stand-in for NVML's C library."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pynvml
import pytest

from listeners.base import ThreadedListener
from listeners.nvml import NvmlListener
from pipeline.base.domain.mig_table import find
from pipeline.base.domain.records import Slot
from pipeline.simulation.machine.state_file import ComputeInstance, GpuInstance, Process
from pipeline.simulation.nvml.calls import fill
from tests.support.listener_contract import Collected, GpuListenerContract, OneDevice, go, job, wait_until
from tests.support.nvml_library import NvmlLibrary, installed, report_utilization


class TestNvmlListener(GpuListenerContract):
    """NVML over a stand-in for its C library."""

    @pytest.fixture(autouse=True)
    def library(self, tmp_path: Path) -> Iterator[NvmlLibrary]:
        with installed(NvmlLibrary(tmp_path)) as library:
            yield library

    @pytest.fixture
    def build(self) -> Callable[[int], ThreadedListener]:
        return NvmlListener

    @pytest.fixture
    def remove_source(self, library: NvmlLibrary) -> Callable[[], None]:
        return lambda: library.fail(nvmlInitWithFlags=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    @pytest.fixture
    def kill_source(self, library: NvmlLibrary) -> Callable[[ThreadedListener], None]:
        return lambda _listener: library.fail(nvmlDeviceGetPowerUsage=pynvml.NVML_ERROR_GPU_IS_LOST)

    def test_values_are_in_the_units_of_their_names(self) -> None:
        sink = Collected()
        with NvmlListener(1000).observe(OneDevice(), sink):
            pass
        assert sink[0].values == pytest.approx(
            {
                "memory_used_mib": 1554,
                "power_w": 581.023,
                "energy_j": 5637.754,
                "sm_clock_mhz": 345,
                "memory_clock_mhz": 2619,
                "temperature_c": 42,
                "utilization_gpu_pct": 100,
                "utilization_memory_pct": 15,
                "throttle_reasons_bits": 4,
                "throttled_ratio": 1,
                "pstate": 0,
            }
        )

    @pytest.mark.parametrize(("bits", "ratio"), [(0x0, 0), (0x1 | 0x2 | 0x10, 0), (0x4, 1), (0x1 | 0x20, 1), (0x80, 1)])
    def test_power_and_heat_throttle_and_an_idle_gpu_does_not(
        self, library: NvmlLibrary, bits: int, ratio: float
    ) -> None:
        library.functions["nvmlDeviceGetCurrentClocksThrottleReasons"] = lambda _, reasons: fill(reasons, bits)
        sink = Collected()
        with NvmlListener(1000).observe(OneDevice(), sink):
            pass
        assert sink.named("throttled_ratio") == [ratio]

    def test_memory_is_read_of_each_instance_that_is_used(self, library: NvmlLibrary) -> None:
        profile = next(profile for profile in find("h100_80gb").profiles if profile.name == "1g.10gb")
        instance = ComputeInstance(id=0, profile_id=profile.ci_profiles[0].id, start=0, size=1)
        instances = tuple(
            GpuInstance(id=number, profile_id=profile.id, start=start, size=1, compute_instances=(instance,))
            for start, number in enumerate((7, 8, 9))
        )
        processes = (_make_process(7, 500), _make_process(7, 20), _make_process(8, 300), _make_process(9, 1))
        library.change(mig_current=True, mig_pending=True, instances=instances, processes=processes)
        group, sink = OneDevice(), Collected()
        group.slots = tuple(Slot(visible_devices="MIG-x", gi_id=number) for number in (7, 8))
        with NvmlListener(1000).observe(group, sink):
            pass
        read = {sample.gi_id: sample.values for sample in sink if sample.gi_id is not None}
        assert read == {7: {"instance_memory_used_mib": 520}, 8: {"instance_memory_used_mib": 300}}

    def test_what_the_gpu_does_not_offer_is_absent(self, library: NvmlLibrary) -> None:
        library.fail(nvmlDeviceGetUtilizationRates=pynvml.NVML_ERROR_NOT_SUPPORTED)
        sink = Collected()
        with NvmlListener(1000).observe(OneDevice(), sink):
            pass
        assert sink[0].values.keys() & {"utilization_gpu_pct", "utilization_memory_pct", "power_w"} == {"power_w"}

    def test_memory_of_a_job_is_that_of_its_whole_tree(self, library: NvmlLibrary) -> None:
        group, sink = OneDevice(), Collected()
        script = "child = os.fork() or time.sleep(60)\nprint(child, flush=True)\ntime.sleep(60)"
        with job(script) as first, job("time.sleep(60)") as second:
            go(first)
            assert first.stdout is not None
            child = int(first.stdout.readline())
            listed = [(first.pid, 100, "M+C"), (child, 20, "C"), (os.getpid(), 7, "C")]
            library.change(processes=tuple(Process(pid=p, name="", memory_mib=m, kind=k) for p, m, k in listed))
            group.jobs = {0: first.pid, 1: second.pid}
            with NvmlListener(1000).observe(group, sink):
                wait_until(lambda: sink.named("process_memory_mib", 0))
        assert sink.named("process_memory_mib", 0) == [120]
        assert set(sink.named("gpu_num_processes", 0)) == {2}
        of_second = [sample.values for sample in sink if sample.job == 1]
        assert of_second and all(values == {"gpu_num_processes": 0} for values in of_second), "no memory, not 0"

    def test_processes_of_a_job_are_not_counted_where_a_listed_one_may_be_a_jobs(self, library: NvmlLibrary) -> None:
        group, sink = OneDevice(), Collected()
        library.change(processes=(Process(pid=577, name="nvidia-cuda-mps-server", memory_mib=66),))
        with job("time.sleep(60)") as first, NvmlListener(200).observe(group, sink):
            group.jobs = {0: first.pid}
            wait_until(lambda: sink.named("gpu_num_processes", 0))
            library.change(processes=(Process(pid=4_000_000, name="", memory_mib=9),))  # a PID of another namespace
            num_samples = len(sink)
            wait_until(lambda: len(sink) >= num_samples + 3)
            num_counted = len(sink.named("gpu_num_processes", 0))
            wait_until(lambda: len(sink) >= num_samples + 6)
        assert len(sink.named("gpu_num_processes", 0)) == num_counted

    def test_processes_of_a_job_are_not_counted_while_an_empty_list_hides_memory_in_use(
        self, library: NvmlLibrary
    ) -> None:
        group, sink = OneDevice(), Collected()
        group.jobs = {0: os.getpid()}
        processes = library.file.read().gpus[0].processes
        library.change(processes=())
        for kind in ("Graphics", "Compute", "MPSCompute"):
            library.functions[f"nvmlDeviceGet{kind}RunningProcesses_v3"] = lambda _, count, __: fill(count, 0)
        with NvmlListener(200).observe(group, sink):
            wait_until(lambda: sink.named("gpu_num_processes", 0))
            library.change(processes=processes)
            num_samples = len(sink)
            wait_until(lambda: len(sink) >= num_samples + 3)
            num_counted = len(sink.named("gpu_num_processes", 0))
            wait_until(lambda: len(sink) >= num_samples + 6)
        assert len(sink.named("gpu_num_processes", 0)) == num_counted

    def test_memory_of_jobs_that_cannot_be_had_is_absent(self, library: NvmlLibrary) -> None:
        library.fail(nvmlDeviceGetComputeRunningProcesses_v3=pynvml.NVML_ERROR_NO_PERMISSION)
        group, sink = OneDevice(), Collected()
        group.jobs = {0: os.getpid()}
        with NvmlListener(200).observe(group, sink):
            wait_until(lambda: len(sink) >= 2)
        assert {sample.job for sample in sink} == {None}

    def test_utilisation_of_a_job_is_summed_over_its_processes(self, library: NvmlLibrary) -> None:
        with _busy_and_idle_job(library, "C") as (group, child):
            busy = ((group.jobs[0], 40, 10), (child, 20, 5), (1, 30, 3))
            report_utilization(library, lambda since_us: [(pid, since_us + 1, *used) for pid, *used in busy])
            assert _observe_utilization(group) == {0: (60, 15), 1: (0, 0)}

    def test_mps_clients_have_no_utilisation(self, library: NvmlLibrary) -> None:
        """Recorded on an H100 with driver 580: only the server has a figure, 62 % and 9 %."""
        with _busy_and_idle_job(library, "M+C") as (group, _):
            report_utilization(library, lambda since_us: [(577, since_us + 1, 62, 9)])
            assert _observe_utilization(group) == {}

    @pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION])
    def test_refused_utilisation_is_missing(self, library: NvmlLibrary, code: int) -> None:
        """MIG mode and missing permissions refuse both calls."""
        library.fail(nvmlDeviceGetProcessesUtilizationInfo=code, nvmlDeviceGetProcessUtilization=code)
        with _busy_and_idle_job(library, "C") as (group, _):
            assert _observe_utilization(group) == {}


@contextmanager
def _busy_and_idle_job(library: NvmlLibrary, kind: str) -> Iterator[tuple[OneDevice, int]]:
    """Run a job with a child process and a job without; yield the group and the child's PID."""
    group = OneDevice()
    script = "child = os.fork() or time.sleep(60)\nprint(child, flush=True)\ntime.sleep(60)"
    with job(script) as first, job("time.sleep(60)") as second:
        go(first)
        assert first.stdout is not None
        child = int(first.stdout.readline())
        processes = [Process(pid=pid, name="", memory_mib=9, kind=kind) for pid in (first.pid, child, second.pid)]
        server = Process(pid=577, name="nvidia-cuda-mps-server", memory_mib=66)
        library.change(processes=(*processes, server))
        group.jobs = {0: first.pid, 1: second.pid}
        yield group, child


def _observe_utilization(group: OneDevice) -> dict[int, tuple[float, float]]:
    """Return the first utilisation of each job; the first reading of the listener has none."""
    sink = Collected()
    names = ("process_sm_utilization_pct", "process_memory_utilization_pct")
    with NvmlListener(200).observe(group, sink):
        wait_until(lambda: len(sink.named("process_memory_mib", 1)) >= 3)
    assert len({name for sample in sink for name in sample.values if name in names}) in (0, 2)
    return {
        number: (sink.named(names[0], number)[0], sink.named(names[1], number)[0])
        for number in group.jobs
        if sink.named(names[0], number)
    }


def _make_process(instance: int, memory_mib: int) -> Process:
    """A process on the only MIG device of a GPU instance."""
    return Process(
        pid=1000 + memory_mib, name="", memory_mib=memory_mib, gpu_instance_id=instance, compute_instance_id=0
    )
