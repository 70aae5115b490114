"""The NVML listener over a stand-in for NVML's C library."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pynvml
import pytest

from listeners.base import ThreadedListener
from listeners.nvml import NvmlListener
from pipeline.base.errors import ListenerError
from pipeline.simulation.machine.state import Process
from tests.listener_contract import CPU, Collected, ListenerContract, OneDevice, go, job, wait_until
from tests.nvml_library import NvmlLibrary, installed


class TestNvmlListener(ListenerContract):
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
                "pstate": 0,
            }
        )

    def test_what_the_gpu_does_not_offer_is_absent(self, library: NvmlLibrary) -> None:
        library.fail(nvmlDeviceGetUtilizationRates=pynvml.NVML_ERROR_NOT_SUPPORTED)
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
            listed = [(first.pid, 100, "M+C"), (child, 20, "C"), (os.getpid(), 7, "C")]
            library.change(processes=tuple(Process(pid=p, name="", memory_mib=m, kind=k) for p, m, k in listed))
            watch.jobs = {0: first.pid, 1: second.pid}
            with NvmlListener(1000).observe(watch, sink):
                wait_until(lambda: sink.named("process_memory_mib", 0))
        assert sink.named("process_memory_mib", 0) == [120]
        assert not [sample for sample in sink if sample.job == 1], "a job that is not on the GPU has no value, not 0"

    def test_memory_of_jobs_that_cannot_be_had_is_absent(self, library: NvmlLibrary) -> None:
        library.fail(nvmlDeviceGetComputeRunningProcesses_v3=pynvml.NVML_ERROR_NO_PERMISSION)
        watch, sink = OneDevice(), Collected()
        watch.jobs = {0: os.getpid()}
        with NvmlListener(200).observe(watch, sink):
            wait_until(lambda: len(sink) >= 2)
        assert {sample.job for sample in sink} == {None}

    def test_a_device_that_is_no_gpu_is_refused(self) -> None:
        with pytest.raises(ListenerError, match="not a GPU"), NvmlListener(1000).observe(OneDevice(CPU), Collected()):
            pytest.fail("there is no GPU")
