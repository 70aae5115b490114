"""A source of readings: what NVML, nvidia-smi and dcgmi of a simulated GPU make of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pynvml
import pytest

from pipeline.base.system.factory import Spec
from pipeline.prepare.device import gpu_reader, nvml
from pipeline.simulation import dcgmi
from pipeline.simulation import nvidia_smi as nvidia_smi
from pipeline.simulation.install import install_driver
from pipeline.simulation.machine.readings import Quantity
from pipeline.simulation.machine.state_file import Gpu, GpuInstance, Process, StateFile
from tests.support.recordings import recording

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


class Told:
    """A source that knows of the whole GPU what it is told, and of an instance that SMs are active by its slices."""

    def __init__(self, whole: tuple[tuple[str, float], ...]) -> None:
        self._whole = dict(whole)

    def read(self, quantity: Quantity, gpu: Gpu, instance: GpuInstance | None, t_ns: int) -> float | None:
        assert 0 <= time.monotonic_ns() - t_ns < 10e9
        if instance is not None:
            return instance.size / 8 if quantity is Quantity.SMACT else None
        return self._whole.get(quantity)


@pytest.fixture
def state_file(tmp_path: Path) -> StateFile:
    """An H100 whose source knows what IDLE says, and some of its counters."""
    file = StateFile(tmp_path / "machine.json")
    file.create(["h100_80gb"])
    told = IDLE | {Quantity.GRACT: 0.75, Quantity.PCIE_OUT: 2.0}
    _answer(file, Spec(target=f"{__name__}.Told", options=(("whole", tuple(told.items())),)))
    return file


def _answer(file: StateFile, *sources: Spec) -> None:
    with file.change() as cell:
        cell.state = replace(cell.state, sources=sources)


def _smi(file: StateFile, *arguments: str) -> int:
    return nvidia_smi.main(["--state-file", str(file.path), *arguments])


def _divide(file: StateFile, profiles: str) -> None:
    assert _smi(file, "-mig", "1") == _smi(file, "mig", "-cgi", profiles, "-C") == 0
    with file.change() as cell:
        (gpu,) = cell.state.gpus  # the host engine of DCGM sees an instance a second after it was made
        older = tuple(replace(instance, made_s=instance.made_s - 60) for instance in gpu.instances)
        cell.state = cell.state.replace_gpu(0, replace(gpu, instances=older))


def test_nvml_gives_what_the_source_says_in_its_own_units(state_file: StateFile) -> None:
    with install_driver(state_file.path), nvml.session():
        read = gpu_reader.GpuReader(state_file.read().gpus[0].uuid).quantities()
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


def test_a_reading_that_the_source_lacks_is_not_supported(state_file: StateFile) -> None:
    _answer(state_file, Spec(target=f"{__name__}.Told", options=(("whole", (("power_w", 80.0),)),)))
    with install_driver(state_file.path), nvml.session():
        read = gpu_reader.GpuReader(state_file.read().gpus[0].uuid).quantities()
    assert [name for name in read if "Memory" not in name] == ["nvmlDeviceGetPowerUsage"]


def test_the_first_source_that_knows_a_reading_gives_it(state_file: StateFile) -> None:
    first = Spec(target=f"{__name__}.Told", options=(("whole", (("temperature_c", 55.0),)),))
    _answer(state_file, first, *state_file.read().sources)
    with install_driver(state_file.path), nvml.session():
        read = gpu_reader.GpuReader(state_file.read().gpus[0].uuid).quantities()
    assert (read["nvmlDeviceGetTemperature"], read["nvmlDeviceGetClockInfo(SM)"]) == (55.0, 345.0)


@pytest.mark.parametrize("kind", ["C", "M+C"])
def test_processes_have_equal_utilisation_and_of_mps_only_the_server(state_file: StateFile, kind: str) -> None:
    used = (("utilization_gpu_pct", 90.0), ("utilization_memory_pct", 30.0))
    _answer(state_file, Spec(target=f"{__name__}.Told", options=(("whole", used),)))
    processes = tuple(Process(pid=pid, name="", memory_mib=9, kind=kind) for pid in (1, 2))
    with state_file.change() as cell:
        processes += (Process(pid=3, name="nvidia-cuda-mps-server", memory_mib=9),)
        cell.state = cell.state.replace_gpu(0, replace(cell.state.gpus[0], processes=processes))
    with install_driver(state_file.path), nvml.session():
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        for call in (pynvml.nvmlDeviceGetProcessesUtilizationInfo, pynvml.nvmlDeviceGetProcessUtilization):
            entries = call(handle, 0)
            read = {entry.pid: (entry.smUtil, entry.memUtil) for entry in entries}
            assert read == ({1: (30, 10), 2: (30, 10), 3: (30, 10)} if kind == "C" else {3: (90, 30)})
            with pytest.raises(pynvml.NVMLError_NotFound):
                call(handle, entries[0].timeStamp + 10_000_000)


def test_a_replay_that_an_earlier_version_left_gives_no_reading(state_file: StateFile) -> None:
    left = Spec(target="pipeline.simulation.machine.replay.Replay", options=(("path", "/gone.json"),))
    _answer(state_file, left)
    assert state_file.read().sources == ()


def test_under_mig_sensors_are_of_the_whole_gpu_and_utilisation_is_of_nobody(state_file: StateFile) -> None:
    _divide(state_file, "9")
    with install_driver(state_file.path), nvml.session():
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        assert pynvml.nvmlDeviceGetPowerUsage(gpu) == 74930
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetUtilizationRates(gpu)
        with pytest.raises(pynvml.NVMLError_NotSupported):
            pynvml.nvmlDeviceGetPowerUsage(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0))


def test_gpm_tells_a_gpu_from_its_instances(state_file: StateFile) -> None:
    _divide(state_file, "9,14")
    with install_driver(state_file.path), nvml.session():
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        assert _gract_and_smact(partial(pynvml.nvmlGpmSampleGet, handle)) == [75.0, None]
        larger, smaller = (
            _gract_and_smact(partial(pynvml.nvmlGpmMigSampleGet, handle, instance.id))
            for instance in state_file.read().gpus[0].instances
        )
    assert (larger, smaller) == ([None, 50.0], [None, 25.0])


def _gract_and_smact(take: Callable[[object], object]) -> list[float | None]:
    """What GPM makes of two samples that are taken so."""
    samples = [pynvml.nvmlGpmSampleAlloc() for _ in range(2)]
    for sample in samples:
        take(sample)
        time.sleep(0.11)
    request = pynvml.c_nvmlGpmMetricsGet_t(version=1, numMetrics=2, sample1=samples[0], sample2=samples[1])
    request.metrics[0].metricId = pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL
    request.metrics[1].metricId = pynvml.NVML_GPM_METRIC_SM_UTIL
    answer = pynvml.nvmlGpmMetricsGet(request).metrics[:2]
    return [None if metric.nvmlReturn else metric.value for metric in answer]


@pytest.mark.parametrize(("profile_id", "told"), [("2", [None, 50.0]), ("0", [None, None])], ids=["3c", "1c"])
def test_gpm_of_a_mig_device_is_that_of_its_instance_if_it_has_all_of_it(
    state_file: StateFile, profile_id: str, told: list[float | None]
) -> None:
    assert _smi(state_file, "-mig", "1") == _smi(state_file, "mig", "-cgi", "9") == 0
    assert _smi(state_file, "mig", "-cci", profile_id) == 0
    with install_driver(state_file.path), nvml.session():
        mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(pynvml.nvmlDeviceGetHandleByIndex(0), 0)
        assert _gract_and_smact(partial(pynvml.nvmlGpmSampleGet, mig)) == told


def test_nvidia_smi_prints_the_recorded_line(state_file: StateFile, capsys: pytest.CaptureFixture[str]) -> None:
    columns = ("power.draw", "utilization.gpu", "pstate", "clocks.sm", "temperature.gpu", "clocks_event_reasons.active")
    command, recorded, _ = recording("query_nounits.txt")
    asked = next(word for word in command if word.startswith("--query-gpu=")).removeprefix("--query-gpu=").split(",")
    cells = dict(zip(asked, recorded.splitlines()[-1].split(", "), strict=True))
    assert _smi(state_file, f"--query-gpu={','.join(columns)}", "--format=csv,noheader,nounits") == 0
    assert capsys.readouterr().out.strip().split(", ") == [cells[column] for column in columns]
    assert _smi(state_file, "--query-gpu=power.draw,temperature.memory", "--format=csv,noheader") == 0
    assert capsys.readouterr().out == "74.93 W, [N/A]\n", "with its unit, and no reading that the source lacks"


def test_dcgmi_prints_ratios_and_bytes(state_file: StateFile, capsys: pytest.CaptureFixture[str]) -> None:
    _divide(state_file, "9,14")
    capsys.readouterr()
    watch = ["dmon", "-e", "1001,1002,1009", "-i", "gpu:0,i:0,i:1", "-c", "1"]
    assert dcgmi.main(["--state-file", str(state_file.path), *watch]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert rows[0] == ["GPU", "0", "0.750", "N/A", "2097152"]
    assert sorted(row[2:] for row in rows[1:]) == [["N/A", "0.250"], ["N/A", "0.500"]]
    assert dcgmi.main(["--state-file", str(state_file.path), "profile", "--pause"]) == 0
    capsys.readouterr()
    assert dcgmi.main(["--state-file", str(state_file.path), *watch]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    assert {cell for row in rows for cell in row[2:]} == {"N/A"}
