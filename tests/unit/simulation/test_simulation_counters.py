"""The counters of a simulated GPU, without and with a source of readings: NVML, dcgmi, nvidia-smi, listeners."""

from __future__ import annotations

import ctypes
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pynvml
import pytest

from listeners.base import ThreadedListener
from listeners.dcgm import DcgmListener
from listeners.gpm import GpmListener
from pipeline.base.domain.records import Slot
from pipeline.base.system.errors import ListenerError
from pipeline.base.system.factory import Spec
from pipeline.prepare.device import gpu_reader, nvml
from pipeline.simulation import dcgmi, nvidia_smi
from pipeline.simulation.install import install_driver, write_programs
from pipeline.simulation.machine import codes
from pipeline.simulation.machine.driver import Driver
from pipeline.simulation.machine.readings import Quantity
from pipeline.simulation.machine.state_file import Fault, Gpu, GpuInstance, Process, StateFile
from pipeline.simulation.nvml.library import NvmlLibrary
from tests.conftest import DATA
from tests.support.listener_contract import Collected, OneDevice
from tests.support.recordings import recording

Dcgmi = Callable[..., tuple[int, str]]
NO_ENGINE = "Unable to connect to host engine"


@pytest.fixture
def run_dcgmi(state_file: StateFile, capsys: pytest.CaptureFixture[str]) -> Dcgmi:
    """Run the program in this process: its exit status and what it printed, errors last."""

    def call(*arguments: str) -> tuple[int, str]:
        capsys.readouterr()
        status = dcgmi.main(["--state-file", str(state_file.path), *arguments])
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    return call


def _partition(state_file: StateFile, profiles: str, *, gpu: str = "0", is_old: bool = True) -> None:
    """Make instances; old ones were made so long ago that the host engine has seen them."""
    assert _smi(state_file, "-i", gpu, "-mig", "1") == 0
    assert _smi(state_file, "mig", "-i", gpu, "-cgi", profiles, "-C") == 0
    if is_old:
        _age(state_file, 60)


def _age(state_file: StateFile, seconds: float) -> None:
    with state_file.change() as cell:
        for index, gpu in enumerate(cell.state.gpus):
            older = tuple(replace(instance, made_s=instance.made_s - seconds) for instance in gpu.instances)
            cell.state = cell.state.replace_gpu(index, replace(gpu, instances=older))


def _observe(
    listener: ThreadedListener, state_file: StateFile, folder: Path, *gi_ids: int, seconds: float = 0.0
) -> Collected:
    programs = write_programs(folder / "bin", state_file.path)
    with install_driver(state_file.path):
        (device,) = nvml.list_devices()
        group, sink = OneDevice(), Collected()
        group.device = replace(
            device, kind="simulated", programs=tuple((name, str(path)) for name, path in programs.items())
        )
        group.slots = tuple(Slot(visible_devices="", gi_id=gi_id) for gi_id in gi_ids)
        with listener.observe(group, sink):
            time.sleep(seconds)
        return sink


# GPM


def test_counters_are_those_of_the_architecture(state_file: StateFile) -> None:
    state_file.create(["a100_40gb", "h100_80gb", "b200_180gb"])
    with install_driver(state_file.path):
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(3)]
        assert [pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice for handle in handles] == [0, 1, 1]
        sample = pynvml.nvmlGpmSampleAlloc()
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlGpmSampleGet(handles[0], sample)
        pynvml.nvmlGpmSampleGet(handles[1], sample)
        pynvml.nvmlGpmSampleFree(sample)
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlGpmSampleFree(sample)


def _query(handle: object, *, version: int = 1, apart_s: float = 0.11, gi_id: int | None = None) -> object:
    """Answer of one query of two metrics, over two samples that far apart."""
    samples = [pynvml.nvmlGpmSampleAlloc() for _ in range(2)]
    for sample in samples:
        if gi_id is None:
            pynvml.nvmlGpmSampleGet(handle, sample)
        else:
            pynvml.nvmlGpmMigSampleGet(handle, gi_id, sample)
        time.sleep(apart_s)
    request = pynvml.c_nvmlGpmMetricsGet_t(version=version, numMetrics=2, sample1=samples[0], sample2=samples[1])
    request.metrics[0].metricId, request.metrics[1].metricId = 1, 2
    request.metrics[2].nvmlReturn = 77
    return pynvml.nvmlGpmMetricsGet(request)


def test_every_metric_is_not_supported_and_has_no_value(state_file: StateFile) -> None:
    _partition(state_file, "9")
    with install_driver(state_file.path):
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        for gi_id in (None, 2):
            answer = _query(handle, gi_id=gi_id)
            assert [metric.nvmlReturn for metric in answer.metrics[:3]] == [3, 3, 77], "no more than were asked for"
            assert [metric.value for metric in answer.metrics[:2]] == [0.0, 0.0], "left as it was given"
        with pytest.raises(pynvml.NVMLError_NotFound):
            _query(handle, gi_id=1)


def test_a_query_that_nvml_would_refuse_is_refused(state_file: StateFile) -> None:
    with install_driver(state_file.path) as library:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        with pytest.raises(pynvml.NVMLError) as caught:
            _query(handle, version=2)
        assert caught.value.value == codes.VERSION_MISMATCH == 25
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            _query(handle, apart_s=0.0)
        untaken = pynvml.c_nvmlGpmMetricsGet_t(
            version=1, sample1=pynvml.nvmlGpmSampleAlloc(), sample2=pynvml.nvmlGpmSampleAlloc()
        )
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlGpmMetricsGet(untaken)
        support = pynvml.c_nvmlGpmSupport_t(version=9)
        assert isinstance(library, NvmlLibrary)
        assert library.nvmlGpmQueryDeviceSupport(handle, ctypes.byref(support)) == codes.VERSION_MISMATCH


def test_listener_gpm_runs_without_a_value_and_says_so(
    state_file: StateFile, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _partition(state_file, "9,9")
    assert _observe(GpmListener(200), state_file, tmp_path, 1, 2, seconds=0.5) == []
    messages = [record.message for record in caplog.records]
    assert messages == [
        "listener gpm: the simulated NVIDIA H100 80GB HBM3 has no readings for it; its figures are absent",
    ]


def test_listener_gpm_is_refused_where_the_real_gpu_has_no_counters(state_file: StateFile, tmp_path: Path) -> None:
    state_file.create(["a100_40gb"])
    with pytest.raises(ListenerError, match=r"A100-SXM4-40GB has no GPM counters.*listeners\.gpm\.required=false"):
        _observe(GpmListener(200), state_file, tmp_path)


# dcgmi


@pytest.mark.parametrize("kind", ["l", "c"])
def test_discovery_is_laid_out_as_that_of_dcgm(state_file: StateFile, run_dcgmi: Dcgmi, kind: str) -> None:
    """The same machine as in the file: two A100s with two instances each."""
    state_file.create(["a100_40gb", "a100_40gb"])
    _partition(state_file, "9,9")
    _partition(state_file, "14,14", gpu="1")
    first, second = state_file.read().gpus
    expected = (DATA / f"dcgmi_discovery_{kind}.txt").read_text()
    expected = expected.replace("GPU-11199999-2222-3333-4444-666666666666", first.uuid)
    expected = expected.replace("GPU-11111111-2222-3333-4444-555555555555", second.uuid)
    expected = expected.replace("07:00.0 ", "00:06.0 ").replace("0F:00.0 ", "00:07.0 ")
    status, text = run_dcgmi("discovery", f"-{kind}")
    # Which ids NVML gives to instances of other sizes is not what is compared here.
    plain, recorded = (re.sub(r" +", " ", re.sub(r"I 1/\d+", "I 1/N", lines)) for lines in (text, expected))
    assert (status, plain) == (0, recorded)
    assert {len(line) for line in text.splitlines()} == {len(line) for line in expected.splitlines()}


def test_entities_are_counted_by_dcgm_and_asked_for_by_its_number(state_file: StateFile, run_dcgmi: Dcgmi) -> None:
    state_file.create(["h100_80gb", "h100_80gb"])
    _partition(state_file, "9,19", gpu="1")
    hierarchy = run_dcgmi("discovery", "-c")[1]
    # Counted as NVML lists them, the smallest profile first; shown by NVML's ids. A GPU without instances is not there.
    assert re.findall(r"-> (C?I \S+) .*EntityID: (\d)", hierarchy) == [
        ("I 1/1", "8"),
        ("CI 1/1/0", "8"),
        ("I 1/11", "7"),
        ("CI 1/11/0", "7"),
    ]
    assert "GPU 0 " not in hierarchy
    for targets, labels in {
        "gpu:1,i:8": ["GPU 1", "GPU-I 8"],
        "i:7,i:8,gpu:1": ["GPU 1", "GPU-I 8", "GPU-I 7"],
        "": ["GPU 0", "GPU 1"],
    }.items():
        options = ["-i", targets] if targets else []
        status, text = run_dcgmi("dmon", "-e", "1001", *options, "-d", "1", "-c", "1")
        assert (status, [line[:16].strip() for line in text.splitlines()[2:]]) == (0, labels)
    status, text = run_dcgmi("dmon", "-e", "1001", "-i", "i:2", "-c", "1")
    assert (status, text) == (255, "Error: the host engine has no entity i:2.\n")


def test_compute_instances_of_a_gpu_instance_are_counted_on(state_file: StateFile, run_dcgmi: Dcgmi) -> None:
    _partition(state_file, "9,19")
    driver = Driver(state_file)
    driver.destroy_compute_instance(0, 2, 0)
    for _ in range(2):
        driver.create_compute_instance(0, 2, 0)
    numbers = re.findall(r"-> (C?I \S+) .*EntityID: (\d)", run_dcgmi("discovery", "-c")[1])
    assert numbers == [("I 0/2", "1"), ("CI 0/2/0", "1"), ("CI 0/2/1", "2"), ("I 0/7", "0"), ("CI 0/7/0", "0")]


def test_an_instance_is_seen_a_second_after_it_was_made(state_file: StateFile, run_dcgmi: Dcgmi) -> None:
    _partition(state_file, "9", is_old=False)
    assert "GPU Instance" not in run_dcgmi("discovery", "-c")[1]
    assert run_dcgmi("dmon", "-e", "1001", "-i", "i:0", "-c", "1")[0] == 255
    # Later; and on a kept machine, after the computer was started again, whose clock began anew.
    for seconds in (1.0, -1e6):
        _age(state_file, seconds)
        assert "-> I 0/2" in run_dcgmi("discovery", "-c")[1]
        assert run_dcgmi("dmon", "-e", "1001", "-i", "i:0", "-c", "1")[0] == 0


def test_dcgm_that_watches_an_ampere_gpu_leaves_its_mig_mode_pending(state_file: StateFile, tmp_path: Path) -> None:
    state_file.create(["a100_40gb"])
    driver = Driver(state_file)
    argv = [write_programs(tmp_path / "bin", state_file.path)["dcgmi"], "dmon", "-e", "1001", "-d", "100"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert driver.set_mig_mode(0, is_on=True) == codes.IN_USE
        process.kill()
    assert driver.state().sessions == ()


def test_dmon_is_laid_out_as_that_of_dcgm_and_has_no_reading(state_file: StateFile, run_dcgmi: Dcgmi) -> None:
    _partition(state_file, "9")
    recorded = (DATA / "dcgmi_dmon_v4.txt").read_text().splitlines()
    fields = ",".join(str(number) for number in range(1001, 1013))
    status, text = run_dcgmi("dmon", "-e", fields, "-i", "gpu:0,i:0", "-d", "0", "-c", "31")
    lines = text.splitlines()
    assert (status, lines[:2]) == (0, recorded[:2])
    assert {len(line) for line in lines} == {len(recorded[0])}
    assert lines[2].split() == ["GPU", "0", *["N/A"] * 12]
    assert lines[3].split() == ["GPU-I", "0", *["N/A"] * 8], "what an instance has none of is blank"
    # After 15 rounds, then after 14, of two rows each; the two lines of a header are between.
    headers = [number for number, line in enumerate(lines) if line.startswith("#")]
    assert (headers, len(lines)) == ([0, 2 + 30, 2 + 30 + 2 + 28], 31 * 2 + 3 * 2)
    assert not re.search(r"\d", "".join(line[16:] for line in lines if line.startswith("GPU")))


def test_one_field_that_is_refused_refuses_all(
    state_file: StateFile, run_dcgmi: Dcgmi, capsys: pytest.CaptureFixture[str]
) -> None:
    state_file.create(["h100_80gb"], [Fault(function="dcgmWatchFields:1006", code=codes.NOT_SUPPORTED, times=None)])
    header = "#Entity         GRACT        FP64A        \nID                                        \n"
    refusal = "Error setting watches. Result: -6: Feature not supported\n"
    assert run_dcgmi("dmon", "-e", "1001,1006", "-c", "1") == (250, header + refusal)
    dcgmi.main(["--state-file", str(state_file.path), "dmon", "-e", "1001,1006", "-c", "1"])
    assert capsys.readouterr().err == refusal, "the table goes to one stream, the refusal to the other"
    assert run_dcgmi("dmon", "-e", "1001", "-c", "1")[0] == 0


def test_an_engine_that_is_down_answers_nothing(state_file: StateFile, run_dcgmi: Dcgmi, tmp_path: Path) -> None:
    state_file.create(["h100_80gb"], [Fault(function="dcgmConnect", code=codes.NOT_FOUND, times=None)])
    for arguments in (["discovery", "-l"], ["dmon", "-e", "1001"], ["discovery", "-c"]):
        status, text = run_dcgmi(*arguments)
        assert (status, NO_ENGINE in text) == (235, True)
    with pytest.raises(ListenerError, match=f"{NO_ENGINE}.*nv-hostengine"):
        _observe(DcgmListener(1000), state_file, tmp_path)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["group", "-l"],
        ["discovery"],
        ["dmon"],
        ["dmon", "-e", "x"],
        ["dmon", "-e", "1001,155"],
        *(["dmon", "-e", "1001", "-d", period] for period in ("soon", "-5", "9" * 400)),
        ["dmon", "-e", "1001", "-j"],
        ["discovery", "-l", "-e", "1001"],
        ["profile", "-l"],
        ["profile", "--pause", "-i", "0"],
        ["-v"],
    ],
)
def test_what_the_program_does_not_know_is_refused(run_dcgmi: Dcgmi, arguments: list[str]) -> None:
    status, text = run_dcgmi(*arguments)
    assert status == 255
    assert "simulated dcgmi does not support" in text


def test_dmon_ends_with_its_reader(state_file: StateFile, tmp_path: Path) -> None:
    program = write_programs(tmp_path / "bin", state_file.path)["dcgmi"]
    with subprocess.Popen([program, "dmon", "-e", "1001", "-d", "20"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert [process.stdout.readline().split() for _ in range(4)][2:] == [["GPU", "0", "N/A"]] * 2
        process.stdout.close()
        assert process.wait(60) == 1


def test_a_machine_that_is_not_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert dcgmi.main(["--state-file", str(tmp_path / "none.json"), "discovery", "-l"]) == 1
    assert "simulated machine" in capsys.readouterr().out


@pytest.mark.slow
def test_listener_dcgm_runs_without_a_value_and_says_so(
    state_file: StateFile, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """On instances that have just been made, and with a field that is refused."""
    state_file.create(["h100_80gb"], [Fault(function="dcgmWatchFields:1006", code=codes.NOT_SUPPORTED, times=None)])
    _partition(state_file, "9,9", is_old=False)
    assert _observe(DcgmListener(200), state_file, tmp_path, 1, 2, seconds=0.5) == []
    messages = [record.message for record in caplog.records]
    assert messages == [
        "listener dcgm: DCGM refuses field 1006 (FP64A), which is left out: "
        "Error setting watches. Result: -6: Feature not supported",
        "listener dcgm: the simulated NVIDIA H100 80GB HBM3 has no readings for it; its figures are absent",
    ]


# A source of readings, and what NVML, nvidia-smi and dcgmi make of it

# What the recorded nvidia-smi says of an idle H100 (tests/data/h100/query_nounits.txt).
IDLE = {
    Quantity.POWER: 74.93,
    Quantity.SM_CLOCK: 345.0,
    Quantity.MEMORY_CLOCK: 2619.0,
    Quantity.TEMPERATURE: 41.0,
    Quantity.GPU_UTILIZATION: 0.0,
    Quantity.MEMORY_UTILIZATION: 0.0,
    Quantity.THROTTLE_REASONS: 1.0,
    Quantity.PERFORMANCE_STATE: 0.0,
    Quantity.ENERGY: 12.5,
}


class FixedSource:
    """A source that knows of the whole GPU what it is told, and of an instance that SMs are active by its slices."""

    def __init__(self, values: tuple[tuple[str, float], ...]) -> None:
        self._values = dict(values)

    def read(self, quantity: Quantity, gpu: Gpu, instance: GpuInstance | None, t_ns: int) -> float | None:
        assert 0 <= time.monotonic_ns() - t_ns < 10e9
        if instance is not None:
            return instance.size / 8 if quantity is Quantity.SMACT else None
        return self._values.get(quantity)


@pytest.fixture
def source(state_file: StateFile) -> StateFile:
    """An H100 whose source knows what IDLE says, and some of its counters."""
    values = IDLE | {Quantity.GRACT: 0.75, Quantity.PCIE_OUT: 2.0}
    _set_sources(state_file, Spec(target=f"{__name__}.FixedSource", options=(("values", tuple(values.items())),)))
    return state_file


def _set_sources(file: StateFile, *sources: Spec) -> None:
    with file.change() as cell:
        cell.state = replace(cell.state, sources=sources)


def _smi(file: StateFile, *arguments: str) -> int:
    return nvidia_smi.main(["--state-file", str(file.path), *arguments])


def test_nvml_gives_what_the_source_says_in_its_own_units(source: StateFile) -> None:
    with install_driver(source.path), nvml.session():
        read = gpu_reader.GpuReader(source.read().gpus[0].uuid).quantities()
    assert {name: value for name, value in read.items() if "Memory" not in name} == {
        "nvmlDeviceGetUtilizationRates.gpu": 0.0,
        "nvmlDeviceGetUtilizationRates.memory": 0.0,
        "nvmlDeviceGetPowerUsage": 74930.0,
        "nvmlDeviceGetTotalEnergyConsumption": 12500.0,
        "nvmlDeviceGetClockInfo(SM)": 345.0,
        "nvmlDeviceGetClockInfo(MEM)": 2619.0,
        "nvmlDeviceGetTemperature": 41.0,
        "nvmlDeviceGetCurrentClocksThrottleReasons": 1.0,
        "nvmlDeviceGetPerformanceState": 0.0,
    }


def test_a_reading_that_the_source_lacks_is_not_supported(source: StateFile) -> None:
    _set_sources(source, Spec(target=f"{__name__}.FixedSource", options=(("values", (("power_w", 80.0),)),)))
    with install_driver(source.path), nvml.session():
        read = gpu_reader.GpuReader(source.read().gpus[0].uuid).quantities()
    assert [name for name in read if "Memory" not in name] == ["nvmlDeviceGetPowerUsage"]


def test_the_first_source_that_knows_a_reading_gives_it(source: StateFile) -> None:
    first = Spec(target=f"{__name__}.FixedSource", options=(("values", (("temperature_c", 55.0),)),))
    _set_sources(source, first, *source.read().sources)
    with install_driver(source.path), nvml.session():
        read = gpu_reader.GpuReader(source.read().gpus[0].uuid).quantities()
    assert (read["nvmlDeviceGetTemperature"], read["nvmlDeviceGetClockInfo(SM)"]) == (55.0, 345.0)


@pytest.mark.parametrize("kind", ["C", "M+C"])
def test_processes_have_equal_utilisation_and_of_mps_only_the_server(source: StateFile, kind: str) -> None:
    used = (("utilization_gpu_pct", 90.0), ("utilization_memory_pct", 30.0))
    _set_sources(source, Spec(target=f"{__name__}.FixedSource", options=(("values", used),)))
    processes = tuple(Process(pid=pid, name="", memory_mib=9, kind=kind) for pid in (1, 2))
    with source.change() as cell:
        processes += (Process(pid=3, name="nvidia-cuda-mps-server", memory_mib=9),)
        cell.state = cell.state.replace_gpu(0, replace(cell.state.gpus[0], processes=processes))
    with install_driver(source.path), nvml.session():
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        for call in (pynvml.nvmlDeviceGetProcessesUtilizationInfo, pynvml.nvmlDeviceGetProcessUtilization):
            entries = call(handle, 0)
            read = {entry.pid: (entry.smUtil, entry.memUtil) for entry in entries}
            assert read == ({1: (30, 10), 2: (30, 10), 3: (30, 10)} if kind == "C" else {3: (90, 30)})
            with pytest.raises(pynvml.NVMLError_NotFound):
                call(handle, entries[0].timeStamp + 10_000_000)


def test_under_mig_sensors_are_of_the_whole_gpu_and_utilisation_is_of_nobody(source: StateFile) -> None:
    _partition(source, "9")
    with install_driver(source.path), nvml.session():
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        assert pynvml.nvmlDeviceGetPowerUsage(gpu) == 74930
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetUtilizationRates(gpu)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetPowerUsage(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0))


def test_gpm_tells_a_gpu_from_its_instances(source: StateFile) -> None:
    _partition(source, "9,14")
    with install_driver(source.path), nvml.session():
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        assert _gract_and_smact(partial(pynvml.nvmlGpmSampleGet, handle)) == [75.0, None]
        larger, smaller = (
            _gract_and_smact(partial(pynvml.nvmlGpmMigSampleGet, handle, instance.id))
            for instance in source.read().gpus[0].instances
        )
    assert (larger, smaller) == ([None, 50.0], [None, 25.0])


def _gract_and_smact(take: Callable[[object], object]) -> list[float | None]:
    """Return the metrics that GPM computes from two samples."""
    samples = [pynvml.nvmlGpmSampleAlloc() for _ in range(2)]
    for sample in samples:
        take(sample)
        time.sleep(0.11)
    request = pynvml.c_nvmlGpmMetricsGet_t(version=1, numMetrics=2, sample1=samples[0], sample2=samples[1])
    request.metrics[0].metricId = pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL
    request.metrics[1].metricId = pynvml.NVML_GPM_METRIC_SM_UTIL
    answer = pynvml.nvmlGpmMetricsGet(request).metrics[:2]
    return [None if metric.nvmlReturn else metric.value for metric in answer]


@pytest.mark.parametrize(("profile_id", "expected"), [("2", [None, 50.0]), ("0", [None, None])], ids=["3c", "1c"])
def test_gpm_of_a_mig_device_is_that_of_its_instance_if_it_has_all_of_it(
    source: StateFile, profile_id: str, expected: list[float | None]
) -> None:
    assert _smi(source, "-mig", "1") == _smi(source, "mig", "-cgi", "9") == 0
    assert _smi(source, "mig", "-cci", profile_id) == 0
    with install_driver(source.path), nvml.session():
        mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(pynvml.nvmlDeviceGetHandleByIndex(0), 0)
        assert _gract_and_smact(partial(pynvml.nvmlGpmSampleGet, mig)) == expected


def test_nvidia_smi_prints_the_recorded_line(source: StateFile, capsys: pytest.CaptureFixture[str]) -> None:
    columns = ("power.draw", "utilization.gpu", "pstate", "clocks.sm", "temperature.gpu", "clocks_event_reasons.active")
    command, recorded, _ = recording("query_nounits.txt")
    fields = next(word for word in command if word.startswith("--query-gpu=")).removeprefix("--query-gpu=").split(",")
    cells = dict(zip(fields, recorded.splitlines()[-1].split(", "), strict=True))
    assert _smi(source, f"--query-gpu={','.join(columns)}", "--format=csv,noheader,nounits") == 0
    assert capsys.readouterr().out.strip().split(", ") == [cells[column] for column in columns]
    assert _smi(source, "--query-gpu=power.draw,temperature.memory", "--format=csv,noheader") == 0
    assert capsys.readouterr().out == "74.93 W, [N/A]\n", "with its unit, and no reading that the source lacks"


def test_dcgmi_prints_ratios_and_bytes(source: StateFile, capsys: pytest.CaptureFixture[str]) -> None:
    _partition(source, "9,14")
    capsys.readouterr()
    watch = ["dmon", "-e", "1001,1002,1009", "-i", "gpu:0,i:0,i:1", "-c", "1"]
    assert dcgmi.main(["--state-file", str(source.path), *watch]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert rows[0] == ["GPU", "0", "0.750", "N/A", "2097152"]
    assert sorted(row[2:] for row in rows[1:]) == [["N/A", "0.250"], ["N/A", "0.500"]]
    assert dcgmi.main(["--state-file", str(source.path), "profile", "--pause"]) == 0
    capsys.readouterr()
    assert dcgmi.main(["--state-file", str(source.path), *watch]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert {cell for row in rows for cell in row[2:]} == {"N/A"}
