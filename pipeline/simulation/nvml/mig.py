"""The MIG functions of the library beneath pynvml: mode, profiles, GPU instances and compute instances, for reading."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml

from pipeline.base.mig_table import CiProfile, GiProfile
from pipeline.simulation.machine import codes, placement, queries
from pipeline.simulation.machine.codes import DriverError
from pipeline.simulation.machine.state import Gpu, GpuInstance
from pipeline.simulation.nvml.calls import Calls, answers, fill, fill_shared_engines, known, number, pointee

# The first number that driver 580 does not take for a profile. Source: H100 80GB, driver 580.159.04.
_NUM_PROFILE_ENUMS = 17


class MigCalls(Calls):
    """What NVML offers on MIG."""

    @answers("nvmlDeviceGetMigMode")
    def _mig_mode(self, handle: Any, current: Any, pending: Any) -> None:
        _, gpu = self.whole_gpu(handle)
        fill(current, int(gpu.mig_current))
        fill(pending, int(gpu.mig_pending))

    @answers("nvmlDeviceGetGpuInstanceProfileInfo")
    def _profile_info(self, handle: Any, enum: Any, info: Any) -> None:
        _fill_profile(pointee(info), self._profile_of_enum(handle, number(enum)))

    @answers("nvmlDeviceGetGpuInstanceProfileInfoV")
    def _profile_info_v2(self, handle: Any, enum: Any, info: Any) -> None:
        target, profile = pointee(info), self._profile_of_enum(handle, number(enum))
        if target.version != pynvml.nvmlGpuInstanceProfileInfo_v2:
            raise DriverError(codes.VERSION_MISMATCH)
        _fill_profile(target, profile)
        target.name = f"MIG {profile.name}".encode()
        target.version = (
            0  # Source: H100 80GB, driver 580.159.04: it does not leave the version that it was asked with.
        )

    @answers("nvmlDeviceGetGpuInstancePossiblePlacements_v2")
    def _possible_placements(self, handle: Any, profile_id: Any, array: Any, count: Any) -> None:
        profile = queries.find_profile(self.whole_gpu(handle)[1], number(profile_id))
        room = pointee(count).value
        fill(count, len(profile.starts))
        if array is None:
            return
        if room < len(profile.starts):
            raise DriverError(codes.INSUFFICIENT_SIZE)
        for entry, start in zip(array, profile.starts, strict=False):
            entry.start, entry.size = start, profile.memory_slices

    @answers("nvmlDeviceGetGpuInstanceRemainingCapacity")
    def _remaining_capacity(self, handle: Any, profile_id: Any, count: Any) -> None:
        _, gpu = self.whole_gpu(handle)
        profile = queries.find_profile(gpu, number(profile_id))
        fill(count, placement.remaining_capacity(queries.model_of(gpu), gpu.instances, profile))

    @answers("nvmlDeviceGetGpuInstances")
    def _instances(self, handle: Any, profile_id: Any, array: Any, count: Any) -> None:
        index, gpu = self.whole_gpu(handle)
        found = [each for each in queries.listed(gpu) if each.profile_id == number(profile_id)]
        self.list_handles([("gi", index, each.id) for each in found], array, count)

    @answers("nvmlGpuInstanceGetInfo")
    def _instance_info(self, instance: Any, info: Any) -> None:
        _, found = self._gpu_instance(instance)
        target = pointee(info)
        target.id, target.profileId = found.id, found.profile_id
        target.placement.start, target.placement.size = found.start, found.size

    @answers("nvmlGpuInstanceGetComputeInstanceProfileInfo")
    def _ci_profile_info(self, instance: Any, enum: Any, _engine: Any, info: Any) -> None:
        _fill_ci_profile(pointee(info), *self._ci_profile_of_enum(instance, number(enum)))

    @answers("nvmlGpuInstanceGetComputeInstanceProfileInfoV")
    def _ci_profile_info_v2(self, instance: Any, enum: Any, _engine: Any, info: Any) -> None:
        target, (profile, ci_profile) = pointee(info), self._ci_profile_of_enum(instance, number(enum))
        if target.version != pynvml.nvmlComputeInstanceProfileInfo_v2:
            raise DriverError(codes.VERSION_MISMATCH)
        _fill_ci_profile(target, profile, ci_profile)
        target.name = f"MIG {ci_profile.name_prefix}{profile.name}".encode()

    @answers("nvmlGpuInstanceGetComputeInstanceRemainingCapacity")
    def _remaining_ci_capacity(self, instance: Any, profile_id: Any, count: Any) -> None:
        gpu, found = self._gpu_instance(instance)
        profile = queries.profile_of(gpu, found)
        ci_profile = queries.find_ci_profile(profile, number(profile_id))
        fill(count, placement.remaining_ci_capacity(profile, found.compute_instances, ci_profile))

    @answers("nvmlGpuInstanceGetComputeInstances")
    def _compute_instances(self, instance: Any, profile_id: Any, array: Any, count: Any) -> None:
        _, index, instance_id = self.meaning(instance, "gi")
        _, found = self._gpu_instance(instance)
        cis = [ci for ci in found.compute_instances if ci.profile_id == number(profile_id)]
        self.list_handles([("ci", index, instance_id, ci.id) for ci in cis], array, count)

    @answers("nvmlComputeInstanceGetInfo_v2")
    def _compute_instance_info(self, handle: Any, info: Any) -> None:
        _, index, instance_id, ci_id = self.meaning(handle, "ci")
        instance = queries.instance_of(self.driver.state().gpus[index], instance_id)
        found = next((ci for ci in instance.compute_instances if ci.id == ci_id), None)
        if found is None:
            raise DriverError(codes.NOT_FOUND)
        target = pointee(info)
        target.id, target.profileId = found.id, found.profile_id
        target.placement.start, target.placement.size = found.start, found.size
        target.device = ctypes.pointer(self.structure(("mig", index, instance_id, ci_id)))
        target.gpuInstance = ctypes.pointer(self.structure(("gi", index, instance_id)))

    def _gpu_instance(self, handle: Any) -> tuple[Gpu, GpuInstance]:
        _, index, instance_id = self.meaning(handle, "gi")
        gpu = self.driver.state().gpus[index]
        return gpu, queries.instance_of(gpu, instance_id)

    def _profile_of_enum(self, handle: Any, enum: int) -> GiProfile:
        _, gpu = self.whole_gpu(handle)
        for profile in queries.model_of(gpu).profiles:
            if profile.enum == enum:
                return profile
        raise DriverError(codes.NOT_SUPPORTED if enum < _NUM_PROFILE_ENUMS else codes.INVALID_ARGUMENT)

    def _ci_profile_of_enum(self, handle: Any, enum: int) -> tuple[GiProfile, CiProfile]:
        profile = queries.profile_of(*self._gpu_instance(handle))
        for ci_profile in profile.ci_profiles:
            if ci_profile.id == enum:
                return profile, ci_profile
        is_known = enum < pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT
        raise DriverError(codes.NOT_SUPPORTED if is_known else codes.INVALID_ARGUMENT)


def _fill_profile(info: Any, profile: GiProfile) -> None:
    info.id, info.isP2pSupported = profile.id, 0
    info.sliceCount, info.instanceCount = profile.compute_slices, profile.max_instances
    info.multiprocessorCount, info.memorySizeMB = known(profile.num_multiprocessors), profile.capacity_mib
    info.copyEngineCount, info.decoderCount = known(profile.num_copy), known(profile.num_decoder)
    info.encoderCount, info.jpegCount = known(profile.num_encoder), known(profile.num_jpeg)
    info.ofaCount = known(profile.num_ofa)


def _fill_ci_profile(info: Any, profile: GiProfile, ci_profile: CiProfile) -> None:
    info.id, info.sliceCount, info.instanceCount = ci_profile.id, ci_profile.compute_slices, ci_profile.max_instances
    info.multiprocessorCount = known(ci_profile.num_multiprocessors)
    fill_shared_engines(info, profile)
