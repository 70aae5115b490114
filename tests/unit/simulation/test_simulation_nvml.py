"""The simulated library beneath pynvml, compared with what a real H100 answered, and under the project's own reader."""

from __future__ import annotations

import ast
import ctypes
import json
import subprocess
from collections.abc import Iterator

import pynvml
import pytest

from pipeline.base.system.errors import ConfigError
from pipeline.prepare.device import gpu_reader, nvml
from pipeline.prepare.mig import profiles
from pipeline.simulation.install import install_driver, replace_nvml
from pipeline.simulation.machine import codes, queries
from pipeline.simulation.machine.driver import Clients, Driver
from pipeline.simulation.machine.state_file import Fault, Settings, StateFile
from pipeline.simulation.nvml.library import NvmlLibrary
from tests.conftest import DATA

MIB = 2**20
RECORDING = (DATA / "h100" / "nvml_mps.txt").read_text().splitlines()
# The three processes of the recording, in the order in which they came. Their memory there is from two instants.
PROCESSES = ((538, "python3", 900, "M+C"), (539, "python3", 900, "M+C"), (577, "nvidia-cuda-mps-server", 66, "C"))


@pytest.fixture
def library(state_file: StateFile) -> Iterator[NvmlLibrary]:
    with install_driver(state_file.path) as simulated:
        yield simulated


@pytest.fixture
def handle(library: NvmlLibrary) -> object:
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByIndex(0)


def _partition(state_file: StateFile, *profile_ids: int) -> Driver:
    """GPU 0 in MIG mode, with GPU instances that hold no compute instance."""
    driver = Driver(state_file)
    driver.set_mig_mode(0, is_on=True)
    for profile_id in profile_ids:
        driver.create_gpu_instance(0, profile_id)
    return driver


def _recorded(start: str) -> list[list[str]]:
    """What follows the name in each recorded line that begins with it."""
    return [line.split(" ", 3)[1:] for line in RECORDING if line.startswith(start + " ")]


def _fields(structure: object) -> dict[str, object]:
    names = [field[0] for field in structure._fields_]  # type: ignore[attr-defined]
    values = {name: getattr(structure, name) for name in names}
    return {name: value.decode() if isinstance(value, bytes) else value for name, value in values.items()}


@pytest.mark.parametrize(("enum", "version", "expected"), _recorded("profile"))
def test_profiles_are_the_recorded_ones(handle: object, enum: str, version: str, expected: str) -> None:
    info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, int(enum), version=int(version))
    assert _fields(info) == ast.literal_eval(expected)


def test_other_profiles_are_refused_as_there(handle: object) -> None:
    answers: dict[int, type[Exception] | None] = {}
    for enum in range(19):
        try:
            pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, enum, version=1)
        except pynvml.NVMLError as error:
            answers[enum] = type(error)
    missing = dict.fromkeys((5, 6, 8, *range(10, 17)), pynvml.NVMLError_NotSupported)
    assert answers == {**missing, **dict.fromkeys((17, 18), pynvml.NVMLError_InvalidArgument)}


@pytest.mark.parametrize(("profile_id", "count", "places"), _recorded("nvmlDeviceGetGpuInstancePossiblePlacements"))
def test_placements_are_the_recorded_ones(handle: object, profile_id: str, count: str, places: str) -> None:
    number = ctypes.c_uint(0)
    query = pynvml.nvmlDeviceGetGpuInstancePossiblePlacements
    query(handle, int(profile_id), None, ctypes.byref(number))
    room = (pynvml.c_nvmlGpuInstancePlacement_t * number.value)()
    query(handle, int(profile_id), room, ctypes.byref(number))
    assert number.value == int(count)
    assert [(place.start, place.size) for place in room] == ast.literal_eval(places)


def _capacity(state_file: StateFile, profile_id: int) -> int:
    (gpu,) = state_file.read().gpus
    return queries.remaining_capacity(queries.model_of(gpu), gpu.instances, queries.find_profile(gpu, profile_id))


@pytest.mark.parametrize(("profile_id", "count"), _recorded("nvmlDeviceGetGpuInstanceRemainingCapacity"))
def test_capacities_are_the_recorded_ones(state_file: StateFile, profile_id: str, count: str) -> None:
    assert _capacity(state_file, int(profile_id)) == int(count)


@pytest.mark.parametrize(
    ("enum", "profile_id", "count", "multiprocessors", "memory_mib", "starts", "size"),
    [
        (0, 19, 7, 16, 9984, [0, 1, 2, 3, 4, 5, 6], 1),
        (1, 14, 3, 32, 20096, [0, 2, 4], 2),
        (2, 9, 2, 60, 40448, [0, 4], 4),
        (3, 5, 1, 64, 40448, [0], 4),
        (4, 0, 1, 132, 81152, [0], 8),
        (7, 20, 1, 16, 9984, [0, 1, 2, 3, 4, 5, 6], 1),
        (9, 15, 4, 26, 20096, [0, 2, 4, 6], 2),
    ],
)
def test_every_profile_has_the_measured_size_places_and_capacity(
    state_file: StateFile,
    handle: object,
    enum: int,
    profile_id: int,
    count: int,
    multiprocessors: int,
    memory_mib: int,
    starts: list[int],
    size: int,
) -> None:
    """What nvidia-smi and NVML told of an H100 80GB HBM3, MIG mode off, beyond what the recording of NVML has."""
    info = pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, enum, version=1)
    reported_values = (info.id, info.instanceCount, info.multiprocessorCount, info.memorySizeMB)
    assert reported_values == (profile_id, count, multiprocessors, memory_mib)
    assert _capacity(state_file, profile_id) == count
    room, number = (pynvml.c_nvmlGpuInstancePlacement_t * 8)(), ctypes.c_uint(8)
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, room, ctypes.byref(number))
    assert [(place.start, place.size) for place in room[: number.value]] == [(start, size) for start in starts]


def test_instances_take_capacity_and_no_possible_placement(state_file: StateFile, handle: object) -> None:
    """Placements are told whether or not they are taken; what is left is the capacity."""
    _partition(state_file, 9)
    capacities = {profile_id: _capacity(state_file, profile_id) for profile_id in (19, 14, 9, 5, 0, 20, 15)}
    assert capacities == {19: 4, 14: 2, 9: 1, 5: 1, 0: 0, 20: 1, 15: 2}
    number = ctypes.c_uint(0)
    pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, 9, None, ctypes.byref(number))
    assert number.value == 2


def test_process_lists_are_the_recorded_ones(state_file: StateFile, handle: object) -> None:
    uuid = state_file.read().gpus[0].uuid
    for pid, name, memory_mib, kind in PROCESSES:
        Clients(state_file).hold(uuid, pid, name, memory_mib, kind, never_ends=True)
    compared = 0
    for line in RECORDING:
        function, _, expected = line.partition(" ")
        if function.endswith("RunningProcesses"):
            entries = getattr(pynvml, f"{function}_v3")(handle)
            assert [(entry.pid, entry.usedGpuMemory) for entry in entries] == ast.literal_eval(expected)
            assert all(entry.gpuInstanceId == 0xFFFFFFFF for entry in entries)
            compared += 1
    assert compared == 3


@pytest.mark.parametrize(
    "function",
    ["nvmlDeviceGetComputeMode", "nvmlDeviceGetPersistenceMode", "nvmlDeviceGetName", "nvmlDeviceGetMaxMigDeviceCount"],
)
def test_plain_answers_are_the_recorded_ones(handle: object, function: str) -> None:
    (line,) = (line for line in RECORDING if line.startswith(function + " "))
    assert str(getattr(pynvml, function)(handle)) == line.partition(" ")[2]


@pytest.mark.parametrize(
    "function", ["nvmlDeviceGetPowerUsage", "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetUtilizationRates"]
)
def test_what_only_hardware_knows_is_not_supported(handle: object, function: str) -> None:
    with pytest.raises(pynvml.NVMLError_NotSupported):
        getattr(pynvml, function)(handle)


def test_the_project_sees_the_device_as_it_sees_a_real_one(state_file: StateFile, library: NvmlLibrary) -> None:
    (device,) = nvml.list_devices()
    assert (device.name, device.memory_mib, device.mig_enabled) == ("NVIDIA H100 80GB HBM3", 81559, False)
    assert device.uuid == state_file.read().gpus[0].uuid
    assert device.facts.as_texts() == {
        "driver_version": "580.159.04",
        "cuda_version": "13.0",
        "pci_bus_id": "00000000:00:06.0",
        "compute_capability": "9.0",
        "multiprocessors": "132",
        "ecc_mode": "enabled",
        "persistence_mode": "enabled",
        "compute_mode": "default",
        "mig_mode_current": "disabled",
        "mig_mode_pending": "disabled",
    }
    with nvml.session():
        quantities = gpu_reader.GpuReader(device.uuid).quantities()
    assert set(quantities) == {f"nvmlDeviceGetMemoryInfo_v2.{name}" for name in ("total", "reserved", "free", "used")}
    assert library.num_open == 0


def test_what_the_file_says_was_set_is_the_state_of_the_device(state_file: StateFile, library: NvmlLibrary) -> None:
    text = json.loads(state_file.path.read_text())
    text["gpus"][0]["settings"] = {"power_limit_w": 500, "graphics_clock_mhz": 1410, "is_ecc_on": False}
    state_file.path.write_text(json.dumps(text | {"branch": "590"}))
    (device,) = nvml.list_devices()
    details = device.facts.as_texts()
    assert details["driver_version"] == "590.48.01" and "memory_clock_setting_mhz" not in details
    assert (details["power_limit_w"], details["graphics_clock_setting_mhz"], details["ecc_mode"]) == (
        *("500", "1410", "disabled"),
    )
    assert nvml.refresh_state(device) == device
    text["gpus"][0]["settings"] = {"power_limit_w": "500"}
    state_file.path.write_text(json.dumps(text))
    with pytest.raises(ConfigError, match='power_limit_w must be a whole number, not "500"'):
        state_file.read()
    text["gpus"][0]["settings"] = {"power_limit_w": 500, "is_ecc_on": False}
    state_file.path.write_text(json.dumps(text | {"boot": "an earlier one"}))
    assert state_file.read().gpus[0].settings == Settings(is_ecc_on=False)  # a restart keeps ECC alone


@pytest.mark.parametrize("name", ["a100_40gb", "rtxpro6000_96gb"])
def test_profiles_read_through_nvml_are_those_of_the_table(state_file: StateFile, name: str) -> None:
    state_file.create([name])
    with install_driver(state_file.path):
        assert profiles.find_gpu("0").profiles == profiles.load_model(name).profiles


def test_mig_devices_from_making_to_destroying(state_file: StateFile, handle: object) -> None:
    driver = _partition(state_file, 9)
    assert pynvml.nvmlDeviceGetMigMode(handle) == [1, 1]
    assert pynvml.nvmlDeviceGetMaxMigDeviceCount(handle) == 7
    count, room = ctypes.c_uint(7), (pynvml.c_nvmlGpuInstance_t * 7)()
    pynvml.nvmlDeviceGetGpuInstances(handle, 9, room, ctypes.byref(count))
    info = pynvml.nvmlGpuInstanceGetInfo(room[0])
    assert (info.id, info.profileId, info.placement.start, info.placement.size) == (2, 9, 4, 4)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0)
    driver.create_compute_instance(0, 2)

    mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0)
    uuid = pynvml.nvmlDeviceGetUUID(mig)
    assert uuid.startswith("MIG-")
    assert pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByUUID(uuid)) == uuid
    assert pynvml.nvmlDeviceGetName(mig) == "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    assert (pynvml.nvmlDeviceGetGpuInstanceId(mig), pynvml.nvmlDeviceGetComputeInstanceId(mig)) == (2, 0)
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 1)

    with subprocess.Popen(["sleep", "60"]) as process:
        Clients(state_file).hold(uuid, process.pid, "sleep", 500)
        (entry,) = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(mig)
        assert (entry.pid, entry.gpuInstanceId, entry.computeInstanceId) == (process.pid, 2, 0)
        assert entry.usedGpuMemory == 500 * MIB
        assert gpu_reader.list_processes(pynvml.nvmlDeviceGetUUID(handle))[0].memory_mib == 500
        process.kill()
    driver.destroy_compute_instance(0, 2, 0)
    driver.destroy_gpu_instance(0, 2)
    for gone in (lambda: pynvml.nvmlDeviceGetUUID(mig), lambda: pynvml.nvmlGpuInstanceGetInfo(room[0])):
        with pytest.raises(pynvml.NVMLError_NotFound):
            gone()


def test_instances_are_listed_by_profile(state_file: StateFile, handle: object) -> None:
    _partition(state_file, 14, 19, 19)
    count = ctypes.c_uint(7)
    room = (pynvml.c_nvmlGpuInstance_t * 7)()
    pynvml.nvmlDeviceGetGpuInstances(handle, 19, room, ctypes.byref(count))
    starts = [pynvml.nvmlGpuInstanceGetInfo(room[position]).placement.start for position in range(count.value)]
    assert starts == [0, 6]


def test_instances_are_refused_with_mig_off_and_of_an_unknown_profile(state_file: StateFile, handle: object) -> None:
    count, room = ctypes.c_uint(7), (pynvml.c_nvmlGpuInstance_t * 7)()
    with pytest.raises(pynvml.NVMLError_NotSupported):
        pynvml.nvmlDeviceGetGpuInstances(handle, 9, room, ctypes.byref(count))
    _partition(state_file)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetGpuInstances(handle, 77, room, ctypes.byref(count))


@pytest.mark.parametrize("version", [None, pynvml.nvmlMemory_v2])
def test_memory_of_a_mig_device_is_that_of_its_instance(
    state_file: StateFile, handle: object, version: int | None
) -> None:
    _partition(state_file, 9).create_compute_instance(0, 2)
    mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0)
    Clients(state_file).hold(pynvml.nvmlDeviceGetUUID(mig), 538, "python3", 900, never_ends=True)
    memory = pynvml.nvmlDeviceGetMemoryInfo(mig, version)
    assert [memory.total, memory.used, memory.free] == [mib * MIB for mib in (40448, 900, 39548)]


def test_a_field_has_its_type(handle: object) -> None:
    (value,) = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    assert (value.nvmlReturn, value.valueType, value.value.uiVal) == (0, pynvml.NVML_VALUE_TYPE_UNSIGNED_INT, 0)


def test_nothing_answers_before_the_first_session(library: NvmlLibrary) -> None:
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetCount()
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetCount() == 1


def test_a_session_that_was_left_open_is_closed_at_the_end(state_file: StateFile) -> None:
    with install_driver(state_file.path):
        pynvml.nvmlInit()
        pynvml.nvmlInit()
        (session,) = state_file.read().sessions
        assert session.num_open == 2
    assert state_file.read().sessions == ()


def test_pynvml_is_afterwards_as_it_was(state_file: StateFile) -> None:
    before = pynvml.nvmlLib, dict(pynvml._nvmlGetFunctionPointer_cache)
    with pytest.raises(RuntimeError), install_driver(state_file.path):
        pynvml.nvmlInit()
        raise RuntimeError
    assert (pynvml.nvmlLib, pynvml._nvmlGetFunctionPointer_cache) == before


def test_reads_fail_as_injected(state_file: StateFile) -> None:
    state_file.create(["h100_80gb"], [Fault(function="nvmlDeviceGetUUID", code=codes.RESET_REQUIRED)])
    with install_driver(state_file.path):
        assert "GPU requires restart" in nvml.list_unusable()[0]
        assert len(nvml.list_devices()) == 1


def test_a_version_that_is_not_asked_right_is_refused(handle: object, library: NvmlLibrary) -> None:
    memory = pynvml.c_nvmlMemory_v2_t(version=1)
    assert library.nvmlDeviceGetMemoryInfo_v2(handle, ctypes.byref(memory)) == codes.VERSION_MISMATCH
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        pynvml.nvmlDeviceGetSerial(handle)


def test_processes_are_told_apart_by_compute_instance(state_file: StateFile, handle: object) -> None:
    driver = _partition(state_file, 9)
    for _ in range(2):
        driver.create_compute_instance(0, 2, 0)
    first, second = (pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index) for index in (0, 1))
    assert pynvml.nvmlDeviceGetName(first).endswith(" MIG 1c.3g.40gb")
    assert pynvml.nvmlDeviceGetComputeInstanceId(second) == 1
    with subprocess.Popen(["sleep", "60"]) as process:
        Clients(state_file).hold(pynvml.nvmlDeviceGetUUID(second), process.pid, "sleep", 500)
        assert pynvml.nvmlDeviceGetComputeRunningProcesses_v3(first) == []
        (entry,) = pynvml.nvmlDeviceGetComputeRunningProcesses_v3(second)
        assert (entry.pid, entry.gpuInstanceId, entry.computeInstanceId) == (process.pid, 2, 1)
        process.kill()


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        ("nvmlDeviceSetMigMode", (1,)),
        ("nvmlDeviceSetComputeMode", (3,)),
        ("nvmlDeviceCreateGpuInstance", (9,)),
        ("nvmlDeviceGetArchitecture", ()),
        ("nvmlDeviceGetGpuInstanceRemainingCapacity", (9,)),
        ("nvmlDeviceGetGpuInstanceById", (2,)),
    ],
)
def test_what_the_project_does_not_ask_nvml_for_is_not_found(
    state_file: StateFile, handle: object, function: str, arguments: tuple[int, ...]
) -> None:
    """Nothing is written through NVML; nvidia-smi does that."""
    before = state_file.read()
    with pytest.raises(pynvml.NVMLError_FunctionNotFound):
        getattr(pynvml, function)(handle, *arguments)
    assert state_file.read() == before


def test_placements_are_refused_without_a_profile_or_room(handle: object) -> None:
    count, room = ctypes.c_uint(1), (pynvml.c_nvmlGpuInstancePlacement_t * 1)()
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, 77, room, ctypes.byref(count))
    with pytest.raises(pynvml.NVMLError_InsufficientSize):
        pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, 9, room, ctypes.byref(count))


def test_a_device_is_found_by_every_name_it_has(state_file: StateFile) -> None:
    first, second = state_file.create(["h100_80gb", "a100_40gb"]).gpus
    with install_driver(state_file.path):
        pynvml.nvmlInit()
        by_names = pynvml.nvmlDeviceGetHandleByUUID(second.uuid), pynvml.nvmlDeviceGetHandleByIndex(1)
        for handle in by_names:
            assert pynvml.nvmlDeviceGetUUID(handle) == second.uuid
            assert pynvml.nvmlDeviceGetPciInfo(handle).device == 7
        Driver(state_file).set_compute_mode(1, 3)
        assert [pynvml.nvmlDeviceGetComputeMode(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in (0, 1)] == [0, 3]
        for unknown in (
            lambda: pynvml.nvmlDeviceGetHandleByUUID("GPU-0"),
            lambda: pynvml.nvmlSystemGetProcessName(1),
        ):
            with pytest.raises(pynvml.NVMLError_NotFound):
                unknown()
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceGetHandleByIndex(2)
    assert first.uuid != second.uuid


def test_a_fault_of_one_gpu_spares_the_other(state_file: StateFile) -> None:
    fault = Fault(function="nvmlDeviceGetMigMode", code=codes.NOT_SUPPORTED, times=None, gpu=1)
    state_file.create(["h100_80gb", "h100_80gb"], [fault])
    with install_driver(state_file.path):
        modes = [device.facts.as_texts().get("mig_mode_current") for device in nvml.list_devices()]
    assert modes == ["disabled", None]


def test_a_handle_of_the_wrong_kind_is_an_invalid_argument(state_file: StateFile, handle: object) -> None:
    _partition(state_file, 9).create_compute_instance(0, 2)
    mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, 0)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetMigMode(mig)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetGpuInstanceId(handle)
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceGetName(pynvml.c_nvmlDevice_t())


class _Library:
    """Counts the devices of a machine, for `nvmlDeviceGetCount`."""

    def __init__(self, count: int) -> None:
        self.nvmlDeviceGetCount_v2 = lambda pointer: setattr(pointer._obj, "value", count) or 0


def test_nvml_is_answered_by_another_library_and_then_as_before() -> None:
    with replace_nvml(_Library(3)):
        assert pynvml.nvmlDeviceGetCount() == 3
        with replace_nvml(_Library(5)):
            assert pynvml.nvmlDeviceGetCount() == 5
        assert pynvml.nvmlDeviceGetCount() == 3
