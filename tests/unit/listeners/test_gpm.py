"""The listeners of NVML and its GPM over a stand-in for the C library, with values of a real H100."""

from __future__ import annotations

import ctypes
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml
import pytest

from listeners.base import ThreadedListener
from listeners.gpm import GpmListener
from listeners.nvml import NvmlListener
from pipeline.base.domain.mig_table import find
from pipeline.base.domain.records import Slot
from pipeline.base.system.errors import ListenerError
from pipeline.simulation.machine.state_file import ComputeInstance, GpuInstance, Process
from pipeline.simulation.nvml.calls import fill
from tests.conftest import DATA
from tests.support.listener_contract import Collected, GpuListenerContract, OneDevice, go, job, wait_until
from tests.support.nvml_library import UUID, NvmlLibrary, installed, report_utilization

IDS: dict[str, int] = json.loads((DATA / "gpm_metric_ids.json").read_text())
# Seven ResNets under MPS on an H100 80GB HBM3 (driver 580.159.04), in percent; the traffic is made up, in MiB/s.
WHOLE = {1: 99.9, 2: 92.0, 3: 33.0, 5: 0.0, 10: 48.0, 11: 0.0, 12: 40.0, 13: 0.5, 20: 12.5, 21: 50.0, 60: 0.0, 61: 0.0}
PER_INSTANCE = {id_: value for id_, value in WHOLE.items() if id_ < 20}


@dataclass
class _Buffer:
    """What a sample holds: when and of what it was taken."""

    structure: Any = field(default_factory=pynvml.struct_c_nvmlGpmSample_t)
    taken_ns: int | None = None
    gi_id: int | None = None


class GpmLibrary(NvmlLibrary):
    """A library with GPM counters.

    Attributes:
        values: GPU instance (`None`: the whole GPU) to metric id to value. A metric that is not there is not supported.
        passed_over: metrics whose slots the driver leaves as it found them.
        taken_ns: of each answered query, when its two samples were taken.
        asked: the metric ids of each query, by GPU instance.
    """

    def __init__(self, folder: Path, *missing: str) -> None:
        super().__init__(folder, *missing)
        self.functions |= {
            "nvmlGpmQueryDeviceSupport": self.query_support,
            "nvmlGpmSampleAlloc": self.allocate,
            "nvmlGpmSampleFree": self.free,
            "nvmlGpmSampleGet": self.take,
            "nvmlGpmMigSampleGet": self.take_of_instance,
            "nvmlGpmMetricsGet": self.tell,
        }
        self.is_supported = 1
        self.values: dict[int | None, dict[int, float]] = {None: dict(WHOLE)}
        self.passed_over: set[int] = set()
        self.buffers: dict[int, _Buffer] = {}
        self.taken_ns: list[tuple[int, int]] = []
        self.asked: dict[int | None, list[int]] = {}

    def _buffer(self, sample: Any) -> _Buffer:
        return self.buffers[ctypes.addressof(sample.contents)]

    def query_support(self, _handle: Any, support: Any) -> int:
        if support._obj.version != 1:
            return int(pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
        support._obj.isSupportedDevice = self.is_supported
        return 0

    def allocate(self, sample: Any) -> int:
        buffer = _Buffer()
        sample._obj.contents = buffer.structure
        self.buffers[ctypes.addressof(buffer.structure)] = buffer
        return 0

    def free(self, sample: Any) -> int:
        del self.buffers[ctypes.addressof(sample.contents)]
        return 0

    def take(self, handle: Any, sample: Any) -> int:
        assert self.whole_gpu(handle)[1].uuid == UUID
        return self._fill(sample, None)

    def take_of_instance(self, handle: Any, gi_id: Any, sample: Any) -> int:
        assert self.whole_gpu(handle)[1].uuid == UUID, "the handle of the GPU is wanted, not that of a MIG device"
        return self._fill(sample, int(gi_id))

    def _fill(self, sample: Any, gi_id: int | None) -> int:
        if gi_id not in self.values:
            return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
        buffer = self._buffer(sample)
        buffer.taken_ns, buffer.gi_id = time.monotonic_ns(), gi_id
        return 0

    def tell(self, request: Any) -> int:
        query = request._obj
        first, second = self._buffer(query.sample1), self._buffer(query.sample2)
        if first.taken_ns is None or second.taken_ns is None or first.gi_id != second.gi_id:
            return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        apart_ms = (second.taken_ns - first.taken_ns) / 1e6
        if query.version != 1 or apart_ms <= 100:
            return int(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        self.taken_ns.append((first.taken_ns, second.taken_ns))
        metrics = query.metrics[: query.numMetrics]
        self.asked[first.gi_id] = [metric.metricId for metric in metrics]
        for metric in metrics:
            if metric.metricId in self.passed_over:
                continue
            value = self.values[first.gi_id].get(metric.metricId)
            metric.nvmlReturn = pynvml.NVML_ERROR_NOT_SUPPORTED if value is None else 0
            # An implementation may leave anything in the value of a metric that it refuses.
            metric.value = 0.0 if value is None else value
        return 0


@pytest.fixture(autouse=True)
def library(tmp_path: Path) -> Iterator[GpmLibrary]:
    with installed(GpmLibrary(tmp_path)) as library:
        yield library
    assert not library.buffers, "a sample was not freed"


def _collect_first(*gi_ids: int | None) -> Collected:
    """The samples that are there when entering returns."""
    group, sink = OneDevice(), Collected()
    group.slots = tuple(Slot(visible_devices="", gpu_uuid=UUID, gi_id=gi_id) for gi_id in gi_ids)  # type: ignore[assignment]
    with GpmListener(60_000).observe(group, sink):
        return Collected(sink)


class TestGpmListener(GpuListenerContract):
    """The contract, and what is particular to GPM."""

    @pytest.fixture
    def build(self) -> Callable[[int], ThreadedListener]:
        return GpmListener

    @pytest.fixture
    def remove_source(self, library: GpmLibrary) -> Callable[[], None]:
        return lambda: library.fail(nvmlInitWithFlags=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    @pytest.fixture
    def kill_source(self, library: GpmLibrary) -> Callable[[ThreadedListener], None]:
        return lambda _listener: library.fail(nvmlGpmSampleGet=pynvml.NVML_ERROR_GPU_IS_LOST)


def test_values_are_in_the_units_of_their_names() -> None:
    (sample,) = _collect_first(None)
    assert sample.gi_id is None
    assert sample.values == pytest.approx(
        {
            "gract_ratio": 0.999,
            "smact_ratio": 0.92,
            "smocc_ratio": 0.33,
            "tensor_active_ratio": 0.0,
            "dram_active_ratio": 0.48,
            "fp64_active_ratio": 0.0,
            "fp32_active_ratio": 0.4,
            "fp16_active_ratio": 0.005,
            "pcie_tx_mib_per_s": 12.5,
            "pcie_rx_mib_per_s": 50.0,
            "nvlink_tx_mib_per_s": 0.0,
            "nvlink_rx_mib_per_s": 0.0,
        }
    )


def test_pynvml_names_the_ids_of_nvml_h() -> None:
    assert {field.source_id: getattr(pynvml, field.source_id) for field in GpmListener.fields} == IDS


def test_each_instance_is_sampled_once_and_without_what_only_the_gpu_has(library: GpmLibrary) -> None:
    library.values |= {5: PER_INSTANCE | {1: 10.0}, 9: PER_INSTANCE | {1: 20.0}}
    samples = _collect_first(9, 5, 9)
    assert [(sample.gi_id, sample.values["gract_ratio"]) for sample in samples] == [
        (None, pytest.approx(0.999)),
        (5, pytest.approx(0.1)),
        (9, pytest.approx(0.2)),
    ]
    assert library.asked[5] == library.asked[9] == [1, 2, 3, 5, 10, 11, 12, 13]
    assert not [name for sample in samples[1:] for name in sample.values if name.endswith("_mib_per_s")]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_no_number_is_absent(library: GpmLibrary, value: float) -> None:
    library.values[None][2] = value
    (sample,) = _collect_first()
    assert "smact_ratio" not in sample.values
    assert sample.values["gract_ratio"] == pytest.approx(0.999)


def test_a_metric_that_is_refused_is_absent_and_not_0(library: GpmLibrary) -> None:
    del library.values[None][61]
    (sample,) = _collect_first()
    assert "nvlink_tx_mib_per_s" not in sample.values
    assert sample.values["nvlink_rx_mib_per_s"] == 0


def test_a_metric_that_the_driver_passes_over_is_absent_and_not_0(library: GpmLibrary) -> None:
    library.passed_over = {60}
    (sample,) = _collect_first()
    assert "nvlink_rx_mib_per_s" not in sample.values
    assert sample.values["nvlink_tx_mib_per_s"] == 0


def test_a_metric_that_is_passed_over_later_does_not_keep_its_old_value(library: GpmLibrary) -> None:
    sink = Collected()
    with GpmListener(200).observe(OneDevice(), sink):
        library.passed_over = {2}
        wait_until(lambda: len(sink) >= 3)
    assert "smact_ratio" in sink[0].values
    assert "smact_ratio" not in sink[-1].values


def test_a_value_covers_the_time_since_the_one_before(library: GpmLibrary) -> None:
    sink = Collected()
    with GpmListener(200).observe(OneDevice(), sink):
        wait_until(lambda: len(sink) >= 4)
    assert all(begin_ns == end_ns for (_, end_ns), (begin_ns, _) in itertools.pairwise(library.taken_ns))
    instants = [sample.t_ns for sample in sink]
    ends = [end_ns for _, end_ns in library.taken_ns]
    assert all(before < end <= t_ns for before, end, t_ns in zip([0, *instants], ends, instants, strict=False))


def test_the_first_value_is_not_kept_waiting_for_an_interval(library: GpmLibrary) -> None:
    with GpmListener(600_000).observe(OneDevice(), Collected()):
        ((begin_ns, end_ns),) = library.taken_ns
    assert end_ns - begin_ns < 120e9


def test_a_tick_too_close_to_the_one_before_is_left_out(library: GpmLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    """What NVML would refuse: the tick after a late one comes after less than 100 ms."""
    monkeypatch.setattr("listeners.base.ticks", lambda stop, _interval_ns: _tick(stop, 0.04))
    sink = Collected()
    with GpmListener(200).observe(OneDevice(), sink):
        wait_until(lambda: len(sink) >= 4)
    assert min(end_ns - begin_ns for begin_ns, end_ns in library.taken_ns) > 100e6


def _tick(stop: Any, seconds: float) -> Iterator[int]:
    yield 0
    while not stop.wait(seconds):
        yield 1


@pytest.mark.parametrize("answer", ["unsupported", "not supported"])
def test_a_gpu_without_counters_is_told_which_ones_have_them(library: GpmLibrary, answer: str) -> None:
    if answer == "unsupported":
        library.is_supported = 0
    else:
        library.fail(nvmlGpmQueryDeviceSupport=pynvml.NVML_ERROR_NOT_SUPPORTED)
    with pytest.raises(
        ListenerError, match=r"no GPM counters, which came with Hopper .*listeners\.gpm\.required=false"
    ):
        _collect_first()


def test_a_driver_without_gpm_is_named_as_such(library: GpmLibrary) -> None:
    library.fail(nvmlGpmQueryDeviceSupport=pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    with pytest.raises(ListenerError, match="R520"):
        _collect_first()


def test_missing_permission_is_an_error_with_the_remedy(library: GpmLibrary) -> None:
    library.fail(nvmlGpmSampleGet=pynvml.NVML_ERROR_NO_PERMISSION)
    with pytest.raises(ListenerError, match=r"whole GPU: Insufficient Permissions.*RestrictProfiling"):
        _collect_first()


def test_an_instance_that_does_not_answer_is_left_out_with_a_warning(
    library: GpmLibrary, caplog: pytest.LogCaptureFixture
) -> None:
    library.values[5] = dict(PER_INSTANCE)
    assert [sample.gi_id for sample in _collect_first(5, 7)] == [None, 5]
    assert "GPU instance 7: Not Supported" in caplog.text


def test_instances_are_sampled_where_the_whole_gpu_may_not_be(
    library: GpmLibrary, caplog: pytest.LogCaptureFixture
) -> None:
    library.values[5] = dict(PER_INSTANCE)
    library.fail(nvmlGpmSampleGet=pynvml.NVML_ERROR_NO_PERMISSION)
    assert [sample.gi_id for sample in _collect_first(5)] == [5]
    assert "the whole GPU" in caplog.text


def test_a_gpu_that_nvml_does_not_know_is_an_error(library: GpmLibrary) -> None:
    library.change(uuid="GPU-other")
    with pytest.raises(ListenerError, match=f"listener gpm: NVML cannot read GPU {UUID}"):
        _collect_first()


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
        with _hold_busy_and_idle_job(library, "C") as (group, child):
            busy = ((group.jobs[0], 40, 10), (child, 20, 5), (1, 30, 3))
            report_utilization(library, lambda since_us: [(pid, since_us + 1, *used) for pid, *used in busy])
            assert _observe_utilization(group) == {0: (60, 15), 1: (0, 0)}

    def test_mps_clients_have_no_utilisation(self, library: NvmlLibrary) -> None:
        """Recorded on an H100 with driver 580: only the server has a figure, 62 % and 9 %."""
        with _hold_busy_and_idle_job(library, "M+C") as (group, _):
            report_utilization(library, lambda since_us: [(577, since_us + 1, 62, 9)])
            assert _observe_utilization(group) == {}

    @pytest.mark.parametrize("code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NO_PERMISSION])
    def test_refused_utilisation_is_missing(self, library: NvmlLibrary, code: int) -> None:
        """MIG mode and missing permissions refuse both calls."""
        library.fail(nvmlDeviceGetProcessesUtilizationInfo=code, nvmlDeviceGetProcessUtilization=code)
        with _hold_busy_and_idle_job(library, "C") as (group, _):
            assert _observe_utilization(group) == {}


@contextmanager
def _hold_busy_and_idle_job(library: NvmlLibrary, kind: str) -> Iterator[tuple[OneDevice, int]]:
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
