"""Reading NVML, against a stand-in for the C library that holds the values of a real H100."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pynvml
import pytest

from pipeline.base.system.errors import ConfigError
from pipeline.gpu import status
from pipeline.prepare.device import gpu_reader, nvml
from pipeline.prepare.device.device_choice import choose, find_device
from pipeline.prepare.device.gpu_reader import GpuProcess
from pipeline.simulation.machine.state_file import ComputeInstance, GpuInstance, Process
from pipeline.simulation.nvml.calls import fill
from tests.support.nvml_library import MIB, OTHER_UUID, PROCESSES, UUID, NvmlLibrary, installed, report_utilization


@pytest.fixture
def library(tmp_path: Path) -> Iterator[NvmlLibrary]:
    with installed(NvmlLibrary(tmp_path)) as stand_in:
        yield stand_in


@pytest.fixture
def two_gpus(tmp_path: Path) -> Iterator[NvmlLibrary]:
    with installed(NvmlLibrary(tmp_path, OTHER_UUID)) as stand_in:
        yield stand_in


def _make_pci(tmp_path: Path, vendor: str, kind: str) -> Path:
    device = tmp_path / "0000:00:06.0"
    device.mkdir()
    (device / "vendor").write_text(vendor + "\n")
    (device / "class").write_text(kind + "\n")
    return tmp_path


def test_a_device_tells_what_identifies_it(library: NvmlLibrary) -> None:
    (device,) = nvml.list_devices()
    assert (device.kind, device.uuid, device.name, device.index) == ("nvidia", UUID, "NVIDIA H100 80GB HBM3", 0)
    assert (device.memory_mib, device.mig_enabled) == (81559, False)
    assert device.facts.as_texts() == {
        "driver_version": "580.159.04",
        "cuda_version": "13.0",
        "pci_bus_id": "00000000:00:06.0",
        "compute_capability": "9.0",
        "multiprocessors": "132",
        "persistence_mode": "enabled",
        "compute_mode": "default",
        "power_limit_w": "650",
        "ecc_mode": "enabled",
        "graphics_clock_setting_mhz": "1980",
        "memory_clock_setting_mhz": "2619",
        "mig_mode_current": "disabled",
        "mig_mode_pending": "disabled",
    }


def test_details_that_the_gpu_does_not_offer_are_absent(library: NvmlLibrary) -> None:
    library.fail(
        nvmlDeviceGetMigMode=pynvml.NVML_ERROR_NOT_SUPPORTED,
        nvmlDeviceGetNumGpuCores=pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        nvmlDeviceGetMemoryInfo=pynvml.NVML_ERROR_NO_PERMISSION,
        nvmlDeviceGetEccMode=pynvml.NVML_ERROR_NOT_SUPPORTED,
    )
    (device,) = nvml.list_devices()
    assert device.memory_mib is None
    assert not device.mig_enabled
    assert not {"mig_mode_current", "mig_mode_pending", "multiprocessors", "ecc_mode"} & device.facts.as_texts().keys()


def test_the_state_is_read_again_and_the_other_details_stay(library: NvmlLibrary) -> None:
    (before,) = nvml.list_devices()
    library.functions["nvmlDeviceGetEnforcedPowerLimit"] = lambda _handle, limit: fill(limit, 500_000)
    library.fail(
        nvmlDeviceGetApplicationsClock=pynvml.NVML_ERROR_DEPRECATED,
        nvmlDeviceGetEccMode=pynvml.NVML_ERROR_NOT_SUPPORTED,
    )
    after = nvml.refresh_state(before).facts.as_texts()
    gone = {"graphics_clock_setting_mhz", "memory_clock_setting_mhz", "ecc_mode"}
    assert before.facts.as_texts().keys() - after.keys() == gone
    remaining_facts = {key: value for key, value in before.facts.as_texts().items() if key not in gone}
    assert after == remaining_facts | {"power_limit_w": "500"}
    library.fail(nvmlDeviceGetEnforcedPowerLimit=pynvml.NVML_ERROR_GPU_IS_LOST)
    with pytest.raises(nvml.NvmlError, match="the power limit"):
        nvml.refresh_state(before)


def test_a_pending_mig_mode_is_told_apart_from_a_current_one(library: NvmlLibrary) -> None:
    library.change(mig_pending=True)
    (device,) = nvml.list_devices()
    details = device.facts.as_texts()
    assert (device.mig_enabled, details["mig_mode_current"], details["mig_mode_pending"]) == (
        False,
        "disabled",
        "enabled",
    )


@pytest.mark.parametrize("selector", ["1", OTHER_UUID, "GPU-1119"])
def test_a_gpu_is_found_by_index_uuid_or_unique_prefix(two_gpus: NvmlLibrary, selector: str) -> None:
    assert choose("gpu.device", selector, nvml.list_devices()).uuid == OTHER_UUID


@pytest.mark.parametrize("selector", ["2", "GPU-111", "GPU-2", "", "nonsense"])
def test_a_selector_that_is_not_one_gpu_is_refused_with_what_there_is(two_gpus: NvmlLibrary, selector: str) -> None:
    with pytest.raises(ConfigError, match=UUID):
        choose("gpu.device", selector, nvml.list_devices())


@pytest.mark.parametrize(
    "code", [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_UNKNOWN]
)
def test_a_gpu_that_does_not_respond_leaves_the_others_usable(
    two_gpus: NvmlLibrary,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    code: int,
) -> None:
    for variable in ("CUDA_VISIBLE_DEVICES", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS"):
        monkeypatch.delenv(variable, raising=False)
    by_index = two_gpus.functions["nvmlDeviceGetHandleByIndex_v2"]
    two_gpus.functions["nvmlDeviceGetHandleByIndex_v2"] = lambda index, handle: (
        by_index(index, handle) if index.value else code
    )
    assert [(device.index, device.uuid) for device in nvml.list_devices()] == [(1, OTHER_UUID)]
    assert find_device(None, needs_gpu=True).uuid == OTHER_UUID
    assert "left out: GPU 0 does not respond" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"gpu\.device=0: GPU 0 does not respond .*nvidia-smi -r -i 0"):
        find_device("0", needs_gpu=True)
    text = status.status(None, tmp_path, None).text
    assert OTHER_UUID in text
    assert re.search(r"^GPU 0 does not respond .*reset it", text, re.MULTILINE)


def test_a_gpu_that_this_process_may_not_use_is_not_said_to_be_lost(two_gpus: NvmlLibrary) -> None:
    by_index = two_gpus.functions["nvmlDeviceGetHandleByIndex_v2"]
    two_gpus.functions["nvmlDeviceGetHandleByIndex_v2"] = lambda index, handle: (
        by_index(index, handle) if index.value else pynvml.NVML_ERROR_NO_PERMISSION
    )
    assert [device.index for device in nvml.list_devices()] == [1]
    assert nvml.list_unusable() == {}
    with pytest.raises(ConfigError, match="matches 0 GPUs, not one; choose from 1: "):
        find_device("0", needs_gpu=True)


def test_a_machine_whose_only_gpu_is_lost_is_no_machine_without_a_gpu(
    library: NvmlLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    library.fail(nvmlDeviceGetUUID=pynvml.NVML_ERROR_UNKNOWN)
    assert nvml.list_devices() == ()
    with pytest.raises(ConfigError, match=r"GPU 0 does not respond \(Unknown Error\).* or use gpu=cpu"):
        find_device(None, needs_gpu=False)


def test_without_the_library_there_is_no_gpu(library: NvmlLibrary) -> None:
    library.fail(nvmlInitWithFlags=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    assert nvml.list_devices() == ()
    with pytest.raises(ConfigError, match="no NVIDIA driver"), nvml.session():
        pass


def test_a_driver_without_any_gpu_is_no_gpu(library: NvmlLibrary) -> None:
    library.remove_gpus()
    assert nvml.list_devices() == ()


@pytest.mark.parametrize(("vendor", "kind"), [("0x8086", "0x030000"), ("0x10de", "0x040300")])
def test_an_unloaded_driver_without_an_nvidia_gpu_is_no_gpu(
    library: NvmlLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vendor: str, kind: str
) -> None:
    library.fail(nvmlInitWithFlags=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    monkeypatch.setattr(nvml, "_PCI_DEVICES", _make_pci(tmp_path, vendor, kind))
    assert nvml.list_devices() == ()


def test_an_unloaded_driver_beside_an_nvidia_gpu_is_an_error(
    library: NvmlLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.fail(nvmlInitWithFlags=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    monkeypatch.setattr(nvml, "_PCI_DEVICES", _make_pci(tmp_path, "0x10de", "0x030200"))
    with pytest.raises(ConfigError, match="modprobe nvidia"):
        nvml.list_devices()


@pytest.mark.parametrize(
    ("code", "remedy"),
    [(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "restart the machine"), (pynvml.NVML_ERROR_UNKNOWN, "nvidia-smi")],
)
def test_a_broken_driver_is_an_error_with_its_remedy(library: NvmlLibrary, code: int, remedy: str) -> None:
    library.fail(nvmlInitWithFlags=code)
    with pytest.raises(ConfigError, match=remedy):
        nvml.list_devices()


def test_sessions_nest(library: NvmlLibrary) -> None:
    with nvml.session():
        with nvml.session():
            assert library.num_open == 2
        assert library.num_open == 1
        assert nvml.list_devices()
        assert library.num_open == 1


def test_a_session_ends_with_an_error_of_its_body(library: NvmlLibrary) -> None:
    with pytest.raises(KeyError), nvml.session():
        raise KeyError
    assert library.num_open == 0


def test_a_client_of_mps_counts_once_and_names_are_those_of_programs(library: NvmlLibrary) -> None:
    assert gpu_reader.list_processes(UUID) == (
        GpuProcess(pid=538, name="python3", memory_mib=744.0, kind="mps"),
        GpuProcess(pid=539, name="python3", memory_mib=744.0, kind="mps"),
        GpuProcess(pid=577, name="nvidia-cuda-mps-server", memory_mib=66.0, kind="compute"),
    )


def test_memory_that_the_driver_does_not_tell_is_none(library: NvmlLibrary) -> None:
    library.hide_memory(of=os.getpid())
    process = Process(pid=os.getpid(), name="unknown to the driver", memory_mib=7)
    library.change(processes=(process, Process(pid=1, name="unknown as well", memory_mib=5, kind="G")))
    library.fail(nvmlSystemGetProcessName=pynvml.NVML_ERROR_NOT_FOUND)
    first, second = gpu_reader.list_processes(UUID)
    assert (first.pid, first.kind, first.memory_mib) == (1, "graphics", 5.0)
    assert (second.kind, second.memory_mib) == ("compute", None)
    assert second.name == Path("/proc/self/comm").read_text().strip(), "the driver knows no name: /proc does"


def test_a_process_that_nobody_can_name_has_no_name(library: NvmlLibrary) -> None:
    library.change(processes=(Process(pid=2**22 + 1, name="unknown to the driver", memory_mib=1),))
    library.fail(nvmlSystemGetProcessName=pynvml.NVML_ERROR_NOT_FOUND)
    assert [process.name for process in gpu_reader.list_processes(UUID)] == [None]


def test_an_old_driver_without_the_mps_list_still_lists_processes(library: NvmlLibrary) -> None:
    library.fail(nvmlDeviceGetMPSComputeRunningProcesses_v3=pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    assert {process.kind for process in gpu_reader.list_processes(UUID)} == {"compute"}


def test_a_list_of_processes_that_cannot_be_had_is_never_empty(library: NvmlLibrary) -> None:
    library.fail(nvmlDeviceGetComputeRunningProcesses_v3=pynvml.NVML_ERROR_NOT_SUPPORTED)
    with pytest.raises(nvml.NvmlError, match="compute processes"):
        gpu_reader.list_processes(UUID)


def test_under_mig_the_processes_are_those_of_the_mig_devices_whatever_their_index(library: NvmlLibrary) -> None:
    part = ComputeInstance(id=0, profile_id=0, start=0, size=1)
    instance = GpuInstance(id=9, profile_id=19, start=0, size=1, compute_instances=(part,))
    inside = Process(pid=700, name="python3", memory_mib=10, gpu_instance_id=9, compute_instance_id=0)
    library.change(mig_current=True, mig_pending=True, instances=(instance,), processes=(inside,))
    by_index = library.functions["nvmlDeviceGetMigDeviceHandleByIndex"]
    library.functions["nvmlDeviceGetMigDeviceHandleByIndex"] = lambda handle, index, mig: (
        by_index(handle, 0, mig) if index.value == 2 else pynvml.NVML_ERROR_NOT_FOUND
    )
    assert [(process.pid, process.memory_mib) for process in gpu_reader.list_processes(UUID)] == [(700, 10.0)]


def test_one_reading_holds_every_quantity_in_the_units_of_nvml(library: NvmlLibrary) -> None:
    with nvml.session():
        reading = gpu_reader.GpuReader(UUID).quantities()
    assert reading["nvmlDeviceGetMemoryInfo_v2.used"] == 1554 * MIB, "without the 480 MiB that the driver reserves"
    assert reading["nvmlDeviceGetPowerUsage"] == 581023
    assert reading["nvmlDeviceGetTotalEnergyConsumption"] == 5637754
    assert reading["nvmlDeviceGetClockInfo(SM)"] == 345
    assert reading["nvmlDeviceGetClockInfo(MEM)"] == 2619
    assert reading["nvmlDeviceGetTemperature"] == 42
    assert reading["nvmlDeviceGetUtilizationRates.gpu"] == 100
    assert reading["nvmlDeviceGetUtilizationRates.memory"] == 15
    assert reading["nvmlDeviceGetCurrentClocksThrottleReasons"] == 4
    assert reading["nvmlDeviceGetPerformanceState"] == 0


@pytest.mark.parametrize(
    "code", [pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_NO_PERMISSION]
)
def test_a_quantity_that_is_not_offered_is_absent(library: NvmlLibrary, code: int) -> None:
    library.fail(nvmlDeviceGetUtilizationRates=code, nvmlDeviceGetMemoryInfo_v2=code)
    library.functions["nvmlDeviceGetPerformanceState"] = lambda _, state: fill(state, pynvml.NVML_PSTATE_UNKNOWN)
    with nvml.session():
        reading = gpu_reader.GpuReader(UUID).quantities()
    assert not [name for name in reading if "Utilization" in name or "Memory" in name or "PerformanceState" in name]
    assert "nvmlDeviceGetPowerUsage" in reading


def test_a_gpu_that_is_lost_is_an_error(library: NvmlLibrary) -> None:
    with nvml.session():
        reader = gpu_reader.GpuReader(UUID)
        library.fail(nvmlDeviceGetPowerUsage=pynvml.NVML_ERROR_GPU_IS_LOST)
        with pytest.raises(nvml.NvmlError, match="GPU is lost"):
            reader.quantities()


def test_a_uuid_that_no_gpu_has_is_an_error(library: NvmlLibrary) -> None:
    with nvml.session(), pytest.raises(nvml.NvmlError, match="GPU-0"):
        gpu_reader.GpuReader("GPU-0")


def test_memory_of_processes_is_by_pid_and_none_where_unknown(library: NvmlLibrary) -> None:
    library.change(processes=(*PROCESSES, Process(pid=999, name="python3", memory_mib=7)))
    library.hide_memory(of=999)
    with nvml.session():
        assert gpu_reader.GpuReader(UUID).process_memory_bytes() == {
            577: 66 * MIB,
            538: 744 * MIB,
            539: 744 * MIB,
            999: None,
        }


def test_a_process_on_several_mig_devices_has_the_memory_of_all(
    library: NvmlLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = {"first": [SimpleNamespace(pid=42, usedGpuMemory=3)], "second": [SimpleNamespace(pid=42, usedGpuMemory=1)]}
    for kind in ("Graphics", "Compute", "MPSCompute"):
        monkeypatch.setattr(pynvml, f"nvmlDeviceGet{kind}RunningProcesses_v3", used.__getitem__)
    with nvml.session():
        reader = gpu_reader.GpuReader(UUID)
        reader._process_handles = list(used)
        assert reader.process_memory_bytes() == {42: 4}
        assert reader.listed_processes() == {42: ("mps", 4)}


@pytest.mark.parametrize("lacks", [(), ("nvmlDeviceGetProcessesUtilizationInfo",)])
def test_utilisation_is_that_since_the_last_reading(library: NvmlLibrary, lacks: tuple[str, ...]) -> None:
    """The first reading and old samples are left out, and so is a structure that the driver did not fill."""
    samples = {0: [(538, 100, 90, 9)], 100: [(538, 100, 90, 9), (538, 200, 60, 8), (538, 300, 50, 2), (539, 300, 0, 0)]}
    report_utilization(library, lambda since_us: samples.get(since_us, [(538, 300, 50, 2), (577, 400, 4294967295, 0)]))
    for name in lacks:
        library.functions[name] = lambda *_: pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
    with nvml.session():
        reader = gpu_reader.GpuReader(UUID)
        readings = [reader.process_utilization() for _ in range(3)]
    assert readings == [{}, {538: (55, 5), 539: (0, 0)}, {}]


@pytest.mark.parametrize("code", [pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND])
def test_utilisation_that_was_not_sampled_yet_is_missing_for_this_reading_only(library: NvmlLibrary, code: int) -> None:
    """A driver without a sample returns "not found", or success with no sample."""
    library.fail(nvmlDeviceGetProcessesUtilizationInfo=code)
    with nvml.session():
        reader = gpu_reader.GpuReader(UUID)
        assert reader.process_utilization() == {}
        report_utilization(library, lambda since_us: [(577, since_us + 1, 62, 9)])
        assert reader.process_utilization() == {577: (62, 9)}


def test_a_lost_gpu_is_an_error_of_utilisation(library: NvmlLibrary) -> None:
    library.fail(nvmlDeviceGetProcessesUtilizationInfo=pynvml.NVML_ERROR_GPU_IS_LOST)
    with nvml.session(), pytest.raises(nvml.NvmlError, match="lost"):
        gpu_reader.GpuReader(UUID).process_utilization()
