"""The library that pynvml calls: the C functions of libnvidia-ml, with ctypes signatures, on the simulated driver.

Sensors and counters (power, clocks, utilisation, energy, temperature, GPM) come from the machine's sources of readings;
without a source, they are "not supported". Functions that this project does not call are missing, like functions of a
newer driver.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import pynvml

from pipeline.base.domain.mig_table import GiProfile
from pipeline.simulation.machine import codes, queries
from pipeline.simulation.machine.codes import DriverError
from pipeline.simulation.machine.readings import Quantity
from pipeline.simulation.machine.state_file import Gpu, mig_uuid
from pipeline.simulation.nvml.calls import encode_count, fill, number, pointee
from pipeline.simulation.nvml.sensors import MILLI, GpmCalls, SensorCalls, require

_MIB = 2**20
# Single-precision cores per multiprocessor. Source: CUDA C++ Programming Guide, compute capabilities.
_CORES_PER_MULTIPROCESSOR = {(8, 0): 64}
_CORES_PER_LATER_MULTIPROCESSOR = 128
_NOT_IN_MIG = 0xFFFFFFFF  # ids of a process without an instance (source: nvml.h, nvmlProcessInfo_t)


class NvmlLibrary(SensorCalls, GpmCalls):
    """A replacement for `pynvml.nvmlLib`; `_NUMBERS` and `_LISTED_KINDS` have the functions of one form."""

    def __init__(self, state_file: Path) -> None:
        super().__init__(state_file)
        self.functions |= {name: partial(self._fill_numbers, read) for name, read in _NUMBERS.items()}
        self.functions |= {name: partial(self._list_processes, kinds) for name, kinds in _LISTED_KINDS.items()}

    def _fill_numbers(self, read: Read, handle: Any, *arguments: Any) -> None:
        for argument, value in zip(arguments, read(self, handle), strict=True):
            fill(argument, round(value))

    def close_all(self) -> None:
        """Close the sessions that this process left open."""
        while self.num_open:
            self._nvmlShutdown()

    def _nvmlInitWithFlags(self, _flags: int = 0) -> None:
        with self.lock:
            self.clients.open_session()
            self.num_open += 1

    def _nvmlShutdown(self) -> None:
        with self.lock:
            self.clients.close_session()
            self.num_open -= 1

    def _nvmlSystemGetDriverVersion(self, text: Any, _size: Any) -> None:
        text.value = self.driver.state().release.driver_version.encode()

    def _nvmlSystemGetCudaDriverVersion(self, version: Any) -> None:
        fill(version, self.driver.state().release.cuda_version)

    def _nvmlSystemGetProcessName(self, pid: Any, text: Any, _size: Any) -> None:
        names = (p.name for gpu in self.driver.state().gpus for p in gpu.processes if p.pid == number(pid))
        text.value = queries.first(names, codes.NOT_FOUND).encode()

    def _nvmlDeviceGetCount_v2(self, count: Any) -> None:
        fill(count, len(self.driver.state().gpus))

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> None:
        if number(index) >= len(self.driver.state().gpus):
            raise DriverError(codes.INVALID_ARGUMENT)
        self.point(pointee(handle), "gpu", number(index))

    def _nvmlDeviceGetHandleByUUID(self, uuid: Any, handle: Any) -> None:
        for index, gpu in enumerate(self.driver.state().gpus):
            if gpu.uuid.encode() == uuid.value:
                return self.point(pointee(handle), "gpu", index)
            for instance, ci in queries.mig_devices(gpu):
                if mig_uuid(gpu, instance, ci).encode() == uuid.value:
                    return self.point(pointee(handle), "mig", index, instance.id, ci.id)
        raise DriverError(codes.NOT_FOUND)

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: Any, mig: Any) -> None:
        gpu_index, gpu = self.whole_gpu(handle)
        devices = queries.mig_devices(gpu)
        if number(index) >= len(devices):
            raise DriverError(codes.NOT_FOUND)
        instance, ci = devices[number(index)]
        self.point(pointee(mig), "mig", gpu_index, instance.id, ci.id)

    def _nvmlDeviceGetUUID(self, handle: Any, text: Any, _size: Any) -> None:
        is_mig = self.is_mig_device(handle)
        text.value = (mig_uuid(*self.mig_device(handle)) if is_mig else self.whole_gpu(handle)[1].uuid).encode()

    def _nvmlDeviceGetName(self, handle: Any, text: Any, _size: Any) -> None:
        name = queries.model_of(self.gpu(handle)).product
        if self.is_mig_device(handle):
            name += f" MIG {queries.mig_device_name(*self.mig_device(handle))}"
        text.value = name.encode()

    def _nvmlDeviceGetPciInfo_v3(self, handle: Any, info: Any) -> None:
        bus_id = self.gpu(handle).bus_id
        target = pointee(info)
        domain, bus, device = bus_id.split(":")
        target.busId, target.busIdLegacy = bus_id.encode(), bus_id[-12:].encode()
        target.domain, target.bus, target.device = int(domain, 16), int(bus, 16), int(device.split(".")[0], 16)

    def _nvmlDeviceGetNumGpuCores(self, handle: Any, cores: Any) -> None:
        model = queries.model_of(self.gpu(handle))
        if model.num_multiprocessors is None:
            raise DriverError(codes.NOT_SUPPORTED)
        cores_each = _CORES_PER_MULTIPROCESSOR.get(model.compute_capability, _CORES_PER_LATER_MULTIPROCESSOR)
        fill(cores, model.num_multiprocessors * cores_each)

    def _nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> None:
        total_mib, used_mib, reserved_mib = self._memory_mib(handle)
        # Version 1 counts the driver's reserved memory as used.
        _fill_memory(pointee(memory), total_mib, used_mib + reserved_mib)

    def _nvmlDeviceGetMemoryInfo_v2(self, handle: Any, memory: Any) -> None:
        target = pointee(memory)
        if target.version != pynvml.nvmlMemory_v2:
            raise DriverError(codes.VERSION_MISMATCH)
        total_mib, used_mib, reserved_mib = self._memory_mib(handle)
        _fill_memory(target, total_mib, used_mib)
        target.free, target.reserved = target.free - reserved_mib * _MIB, reserved_mib * _MIB

    def _memory_mib(self, handle: Any) -> tuple[int, int, int]:
        """Return the memory of a GPU or MIG device: total, used by processes, and reserved by the driver."""
        if self.is_mig_device(handle):
            gpu, instance, _ = self.mig_device(handle)
            return queries.profile_of(gpu, instance).capacity_mib, queries.used_memory_mib(gpu, instance.id), 0
        gpu = self.whole_gpu(handle)[1]
        return queries.model_of(gpu).capacity_mib, queries.used_memory_mib(gpu), queries.RESERVED_MIB

    def _list_processes(self, kinds: Collection[str], handle: Any, count: Any, array: Any) -> None:
        processes = [process for process in self.gpu(handle).processes if process.kind in kinds]
        if self.is_mig_device(handle) and self.gpu(handle).health.mig_fault != "crosstalk":
            _, instance, ci = self.mig_device(handle)
            place = (instance.id, ci.id)
            processes = [p for p in processes if (p.gpu_instance_id, p.compute_instance_id) == place]
        room = pointee(count).value
        fill(count, len(processes))
        if room < len(processes):
            raise DriverError(codes.INSUFFICIENT_SIZE)
        # The newest process comes first. Source: recorded lists of an H100.
        for info, process in zip(array or (), reversed(processes), strict=False):
            info.pid, info.usedGpuMemory = process.pid, process.memory_mib * _MIB
            is_in_mig = process.gpu_instance_id is not None
            info.gpuInstanceId = process.gpu_instance_id if is_in_mig else _NOT_IN_MIG
            info.computeInstanceId = process.compute_instance_id if is_in_mig else _NOT_IN_MIG

    def _nvmlDeviceGetAttributes_v2(self, handle: Any, attributes: Any) -> None:
        gpu, instance, ci = self.mig_device(handle)
        profile, target = queries.profile_of(gpu, instance), pointee(attributes)
        part = queries.find_ci_profile(profile, ci.profile_id)
        target.multiprocessorCount = encode_count(part.num_multiprocessors)
        target.gpuInstanceSliceCount, target.computeInstanceSliceCount = profile.compute_slices, part.compute_slices
        target.memorySizeMB = profile.capacity_mib // (2 if gpu.health.mig_fault == "small" else 1)

    def _nvmlDeviceGetGpuInstanceProfileInfo(self, handle: Any, enum: Any, info: Any) -> None:
        _fill_profile(pointee(info), self._profile_of_enum(handle, number(enum)))

    def _nvmlDeviceGetGpuInstanceProfileInfoV(self, handle: Any, enum: Any, info: Any) -> None:
        target, profile = pointee(info), self._profile_of_enum(handle, number(enum))
        if target.version != pynvml.nvmlGpuInstanceProfileInfo_v2:
            raise DriverError(codes.VERSION_MISMATCH)
        _fill_profile(target, profile)
        target.name = f"MIG {profile.name}".encode()
        # The driver overwrites the version in the request. Source: H100 80GB, driver 580.159.04.
        target.version = 0

    def _nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        self, handle: Any, profile_id: Any, array: Any, count: Any
    ) -> None:
        gpu = self.whole_gpu(handle)[1]
        profile = queries.find_profile(gpu, number(profile_id))
        is_complete = gpu.health.mig_fault != "unlisted" or len(profile.starts) == 1
        starts = profile.starts if is_complete else profile.starts[:-1]
        room = pointee(count).value
        fill(count, len(starts))
        if array is None:
            return
        if room < len(starts):
            raise DriverError(codes.INSUFFICIENT_SIZE)
        for placement, start in zip(array, starts, strict=False):
            placement.start, placement.size = start, profile.memory_slices

    def _nvmlDeviceGetGpuInstances(self, handle: Any, profile_id: Any, array: Any, count: Any) -> None:
        index, gpu = self.whole_gpu(handle)
        if not gpu.mig_current:
            raise DriverError(codes.NOT_SUPPORTED)
        profile = queries.find_profile(gpu, number(profile_id))
        instances = [instance for instance in queries.sort_as_listed(gpu) if instance.profile_id == profile.id]
        fill(count, len(instances))
        for position, instance in enumerate(instances):
            self.point(array[position], "gi", index, instance.id)

    def _nvmlGpuInstanceGetInfo(self, instance: Any, info: Any) -> None:
        _, index, instance_id = self.meaning(instance, "gi")
        gpu_instance = queries.instance_of(self.driver.state().gpus[index], instance_id)
        target = pointee(info)
        target.id, target.profileId = gpu_instance.id, gpu_instance.profile_id
        target.placement.start, target.placement.size = gpu_instance.start, gpu_instance.size

    def _profile_of_enum(self, handle: Any, enum: int) -> GiProfile:
        _, gpu = self.whole_gpu(handle)
        profiles = (profile for profile in queries.model_of(gpu).profiles if profile.enum == enum)
        return queries.first(profiles, codes.NOT_SUPPORTED if enum < _NUM_PROFILE_ENUMS else codes.INVALID_ARGUMENT)


def _fill_memory(target: Any, total_mib: int, used_mib: int) -> None:
    target.total, target.used = total_mib * _MIB, used_mib * _MIB
    target.free = target.total - target.used


# The first number that driver 580 rejects as a profile. Source: H100 80GB, driver 580.159.04.
_NUM_PROFILE_ENUMS = 17


def _fill_profile(info: Any, profile: GiProfile) -> None:
    info.id, info.isP2pSupported = profile.id, 0
    info.sliceCount, info.instanceCount = profile.compute_slices, profile.max_instances
    info.multiprocessorCount, info.memorySizeMB = encode_count(profile.num_multiprocessors), profile.capacity_mib
    info.copyEngineCount, info.decoderCount = encode_count(profile.num_copy), encode_count(profile.num_decoder)
    info.encoderCount, info.jpegCount = encode_count(profile.num_encoder), encode_count(profile.num_jpeg)
    info.ofaCount = encode_count(profile.num_ofa)


Read = Callable[[NvmlLibrary, Any], Sequence[float]]
"""Reads the numbers that a function writes to its arguments, for a handle."""

_REMAPPED_ROWS = attrgetter(
    "rows_remapped_correctable", "rows_remapped_uncorrectable", "is_remap_pending", "has_remap_failed"
)
_MIG_MODE = attrgetter("mig_current", "mig_pending")
_NUMBERS: dict[str, Read] = {
    "nvmlDeviceGetGpuInstanceId": lambda calls, handle: [calls.mig_device(handle)[1].id],
    "nvmlDeviceGetComputeInstanceId": lambda calls, handle: [calls.mig_device(handle)[2].id],
    "nvmlDeviceGetMaxMigDeviceCount": lambda calls, handle: [_count_mig_devices(calls.whole_gpu(handle)[1])],
    "nvmlDeviceGetCudaComputeCapability": lambda calls, handle: queries.model_of(calls.gpu(handle)).compute_capability,
    "nvmlDeviceGetPersistenceMode": lambda calls, handle: [1],
    "nvmlDeviceGetComputeMode": lambda calls, handle: [calls.gpu(handle).compute_mode],
    "nvmlDeviceGetMigMode": lambda calls, handle: _MIG_MODE(calls.whole_gpu(handle)[1]),
    "nvmlDeviceGetPowerUsage": lambda calls, handle: [calls.read(handle, Quantity.POWER) * MILLI],
    "nvmlDeviceGetTotalEnergyConsumption": lambda calls, handle: [calls.read(handle, Quantity.ENERGY) * MILLI],
    "nvmlDeviceGetCurrentClocksThrottleReasons": lambda calls, handle: [calls.read(handle, Quantity.THROTTLE_REASONS)],
    "nvmlDeviceGetPerformanceState": lambda calls, handle: [calls.read(handle, Quantity.PERFORMANCE_STATE)],
    "nvmlDeviceGetRemappedRows": lambda calls, handle: _REMAPPED_ROWS(calls.gpu(handle).health),
    "nvmlDeviceGetEnforcedPowerLimit": lambda calls, handle: [require(calls.settings(handle).power_limit_w) * MILLI],
    "nvmlDeviceGetEccMode": lambda calls, handle: [calls.settings(handle).is_ecc_on] * 2,
}
_LISTED_KINDS = {
    "nvmlDeviceGetComputeRunningProcesses_v3": ("C", "M+C"),
    "nvmlDeviceGetMPSComputeRunningProcesses_v3": ("M+C",),
    "nvmlDeviceGetGraphicsRunningProcesses_v3": ("G",),
}


def _count_mig_devices(gpu: Gpu) -> int:
    return queries.model_of(gpu).compute_slices if gpu.mig_current else 0
