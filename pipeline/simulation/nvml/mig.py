"""The MIG functions of the library beneath pynvml: mode, profiles, GPU instances, compute instances."""

from __future__ import annotations

import ctypes
from typing import Any

import pynvml

from pipeline.base.mig_table import CiProfile, GiProfile
from pipeline.simulation.machine import codes, placement, queries
from pipeline.simulation.machine.codes import DriverError
from pipeline.simulation.machine.state import Gpu, GpuInstance
from pipeline.simulation.nvml.calls import Calls, answers, fill, known, list_placements, number, pointee

# The first number that driver 580 does not take for a profile. Source: H100 80GB, driver 580.159.04.
_NUM_PROFILE_ENUMS = 17


class MigCalls(Calls):
    """What NVML offers on MIG."""

    @answers("nvmlDeviceGetMigMode")
    def _mig_mode(self, handle: Any, current: Any, pending: Any) -> None:
        _, gpu = self.whole_gpu(handle)
        fill(current, int(gpu.mig_current))
        fill(pending, int(gpu.mig_pending))

    @answers("nvmlDeviceSetMigMode")
    def _set_mig_mode(self, handle: Any, mode: Any, status: Any) -> None:
        fill(status, self.driver.set_mig_mode(self.whole_gpu(handle)[0], is_on=bool(number(mode))))

    @answers("nvmlDeviceGetGpuInstanceProfileInfo")
    def _profile_info(self, handle: Any, enum: Any, info: Any) -> None:
        _fill_profile(pointee(info), self._profile_of_enum(handle, number(enum)))

    @answers("nvmlDeviceGetGpuInstanceProfileInfoV")
    def _profile_info_v2(self, handle: Any, enum: Any, info: Any) -> None:
        _fill_profile_v2(pointee(info), self._profile_of_enum(handle, number(enum)))

    @answers("nvmlDeviceGetGpuInstanceProfileInfoByIdV")
    def _profile_info_by_id(self, handle: Any, profile_id: Any, info: Any) -> None:
        _fill_profile_v2(pointee(info), self._profile(handle, profile_id)[1])

    @answers("nvmlDeviceGetGpuInstancePossiblePlacements_v2")
    def _possible_placements(self, handle: Any, profile_id: Any, array: Any, count: Any) -> None:
        _, profile = self._profile(handle, profile_id)
        places = [(start, profile.memory_slices) for start in profile.starts]
        list_placements(places, array, count, pynvml.c_nvmlGpuInstancePlacement_t)

    @answers("nvmlDeviceGetGpuInstanceRemainingCapacity")
    def _remaining_capacity(self, handle: Any, profile_id: Any, count: Any) -> None:
        gpu, profile = self._profile(handle, profile_id)
        fill(count, placement.remaining_capacity(queries.model_of(gpu), gpu.instances, profile))

    @answers("nvmlDeviceCreateGpuInstance")
    def _create_instance(self, handle: Any, profile_id: Any, instance: Any) -> None:
        index, _ = self.whole_gpu(handle)
        made = self.driver.create_gpu_instance(index, number(profile_id))
        self.point(instance, "gi", index, made.id)

    @answers("nvmlDeviceCreateGpuInstanceWithPlacement")
    def _create_instance_at(self, handle: Any, profile_id: Any, place: Any, instance: Any) -> None:
        index, _ = self.whole_gpu(handle)
        made = self.driver.create_gpu_instance(index, number(profile_id), pointee(place).start)
        self.point(instance, "gi", index, made.id)

    @answers("nvmlGpuInstanceDestroy")
    def _destroy_instance(self, instance: Any) -> None:
        _, index, instance_id = self.meaning(instance, "gi")
        self.driver.destroy_gpu_instance(index, instance_id)

    @answers("nvmlDeviceGetGpuInstances")
    def _instances(self, handle: Any, profile_id: Any, array: Any, count: Any) -> None:
        index, gpu = self.whole_gpu(handle)
        found = [("gi", index, i.id) for i in queries.listed(gpu) if i.profile_id == number(profile_id)]
        self.list_handles(found, array, count)

    @answers("nvmlDeviceGetGpuInstanceById")
    def _instance_by_id(self, handle: Any, instance_id: Any, instance: Any) -> None:
        index, gpu = self.whole_gpu(handle)
        self.point(instance, "gi", index, queries.instance_of(gpu, number(instance_id)).id)

    @answers("nvmlGpuInstanceGetInfo")
    def _instance_info(self, instance: Any, info: Any) -> None:
        _, found = self._gpu_instance(instance)
        target = pointee(info)
        target.id, target.profileId = found.id, found.profile_id
        target.placement.start, target.placement.size = found.start, found.size
        target.device = ctypes.pointer(self.structure(("gpu", self.meaning(instance, "gi")[1])))

    @answers("nvmlGpuInstanceGetComputeInstanceProfileInfo")
    def _division_info(self, instance: Any, enum: Any, _engine: Any, info: Any) -> None:
        _fill_division(pointee(info), *self._division_of_enum(instance, number(enum)))

    @answers("nvmlGpuInstanceGetComputeInstanceProfileInfoV")
    def _division_info_v2(self, instance: Any, enum: Any, _engine: Any, info: Any) -> None:
        target = pointee(info)
        profile, division = self._division_of_enum(instance, number(enum))
        if target.version != pynvml.nvmlComputeInstanceProfileInfo_v2:
            raise DriverError(codes.VERSION_MISMATCH)
        _fill_division(target, profile, division)
        target.name = f"MIG {division.name_prefix}{profile.name}".encode()

    @answers("nvmlGpuInstanceGetComputeInstanceRemainingCapacity")
    def _remaining_divisions(self, instance: Any, profile_id: Any, count: Any) -> None:
        gpu, found = self._gpu_instance(instance)
        profile = queries.profile_of(gpu, found)
        division = queries.division_of(profile, number(profile_id))
        fill(count, placement.remaining_ci_capacity(profile, found.compute_instances, division))

    @answers("nvmlGpuInstanceGetComputeInstancePossiblePlacements")
    def _possible_divisions(self, instance: Any, profile_id: Any, array: Any, count: Any) -> None:
        profile = queries.profile_of(*self._gpu_instance(instance))
        division = queries.division_of(profile, number(profile_id))
        places = [(start, division.compute_slices) for start in placement.ci_starts(profile, division)]
        list_placements(places, array, count, pynvml.c_nvmlComputeInstancePlacement_t)

    @answers("nvmlGpuInstanceCreateComputeInstance")
    def _create_division(self, instance: Any, profile_id: Any, division: Any) -> None:
        _, index, instance_id = self.meaning(instance, "gi")
        made = self.driver.create_compute_instance(index, instance_id, number(profile_id))
        self.point(division, "ci", index, instance_id, made.id)

    @answers("nvmlGpuInstanceCreateComputeInstanceWithPlacement")
    def _create_division_at(self, instance: Any, profile_id: Any, place: Any, division: Any) -> None:
        _, index, instance_id = self.meaning(instance, "gi")
        start = pointee(place).start
        made = self.driver.create_compute_instance(index, instance_id, number(profile_id), start)
        self.point(division, "ci", index, instance_id, made.id)

    @answers("nvmlComputeInstanceDestroy")
    def _destroy_division(self, division: Any) -> None:
        _, index, instance_id, division_id = self.meaning(division, "ci")
        self.driver.destroy_compute_instance(index, instance_id, division_id)

    @answers("nvmlGpuInstanceGetComputeInstances")
    def _divisions(self, instance: Any, profile_id: Any, array: Any, count: Any) -> None:
        _, index, instance_id = self.meaning(instance, "gi")
        _, found = self._gpu_instance(instance)
        divisions = [d for d in found.compute_instances if d.profile_id == number(profile_id)]
        handles = [("ci", index, instance_id, division.id) for division in divisions]
        self.list_handles(handles, array, count)

    @answers("nvmlGpuInstanceGetComputeInstanceById")
    def _division_by_id(self, instance: Any, division_id: Any, division: Any) -> None:
        _, index, instance_id = self.meaning(instance, "gi")
        _, found = self._gpu_instance(instance)
        if all(other.id != number(division_id) for other in found.compute_instances):
            raise DriverError(codes.NOT_FOUND)
        self.point(division, "ci", index, instance_id, number(division_id))

    @answers("nvmlComputeInstanceGetInfo_v2")
    def _division_info_of(self, division: Any, info: Any) -> None:
        _, index, instance_id, division_id = self.meaning(division, "ci")
        instance = queries.instance_of(self.driver.state().gpus[index], instance_id)
        for found in instance.compute_instances:
            if found.id == division_id:
                target = pointee(info)
                target.id, target.profileId = found.id, found.profile_id
                target.placement.start, target.placement.size = found.start, found.size
                target.device = ctypes.pointer(self.structure(("mig", index, instance_id, division_id)))
                target.gpuInstance = ctypes.pointer(self.structure(("gi", index, instance_id)))
                return
        raise DriverError(codes.NOT_FOUND)

    def _gpu_instance(self, handle: Any) -> tuple[Gpu, GpuInstance]:
        _, index, instance_id = self.meaning(handle, "gi")
        gpu = self.driver.state().gpus[index]
        return gpu, queries.instance_of(gpu, instance_id)

    def _profile(self, handle: Any, profile_id: Any) -> tuple[Gpu, GiProfile]:
        _, gpu = self.whole_gpu(handle)
        for profile in queries.model_of(gpu).profiles:
            if profile.id == number(profile_id):
                return gpu, profile
        raise DriverError(codes.INVALID_ARGUMENT)

    def _profile_of_enum(self, handle: Any, enum: int) -> GiProfile:
        _, gpu = self.whole_gpu(handle)
        for profile in queries.model_of(gpu).profiles:
            if profile.enum == enum:
                return profile
        raise DriverError(codes.NOT_SUPPORTED if enum < _NUM_PROFILE_ENUMS else codes.INVALID_ARGUMENT)

    def _division_of_enum(self, handle: Any, enum: int) -> tuple[GiProfile, CiProfile]:
        profile = queries.profile_of(*self._gpu_instance(handle))
        for division in profile.ci_profiles:
            if division.id == enum:
                return profile, division
        is_known = enum < pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT
        raise DriverError(codes.NOT_SUPPORTED if is_known else codes.INVALID_ARGUMENT)


def _fill_profile(info: Any, profile: GiProfile) -> None:
    info.id, info.isP2pSupported = profile.id, 0
    info.sliceCount, info.instanceCount = profile.compute_slices, profile.max_instances
    info.multiprocessorCount, info.memorySizeMB = known(profile.num_multiprocessors), profile.capacity_mib
    info.copyEngineCount, info.decoderCount = known(profile.num_copy), known(profile.num_decoder)
    info.encoderCount, info.jpegCount = known(profile.num_encoder), known(profile.num_jpeg)
    info.ofaCount = known(profile.num_ofa)


def _fill_profile_v2(info: Any, profile: GiProfile) -> None:
    if info.version != pynvml.nvmlGpuInstanceProfileInfo_v2:
        raise DriverError(codes.VERSION_MISMATCH)
    _fill_profile(info, profile)
    info.name = f"MIG {profile.name}".encode()
    info.version = 0  # Source: H100 80GB, driver 580.159.04: it does not leave the version that it was asked with.


def _fill_division(info: Any, profile: GiProfile, division: CiProfile) -> None:
    info.id, info.sliceCount, info.instanceCount = division.id, division.compute_slices, division.max_instances
    info.multiprocessorCount = known(division.num_multiprocessors)
    info.sharedCopyEngineCount, info.sharedDecoderCount = known(profile.num_copy), known(profile.num_decoder)
    info.sharedEncoderCount, info.sharedJpegCount = known(profile.num_encoder), known(profile.num_jpeg)
    info.sharedOfaCount = known(profile.num_ofa)
