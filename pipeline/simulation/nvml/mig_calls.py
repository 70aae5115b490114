"""The MIG functions of the library that pynvml calls: they read the mode, profiles and GPU instances."""

from __future__ import annotations

from typing import Any

import pynvml

from pipeline.base.domain.mig_table import GiProfile
from pipeline.simulation.machine import codes, queries
from pipeline.simulation.machine.codes import DriverError
from pipeline.simulation.nvml.calls import Calls, encode_count, fill, number, pointee

# The first number that driver 580 rejects as a profile. Source: H100 80GB, driver 580.159.04.
_NUM_PROFILE_ENUMS = 17


class MigCalls(Calls):
    """The functions of MIG."""

    def _nvmlDeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> None:
        _, gpu = self.whole_gpu(handle)
        fill(current, int(gpu.mig_current))
        fill(pending, int(gpu.mig_pending))

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


def _fill_profile(info: Any, profile: GiProfile) -> None:
    info.id, info.isP2pSupported = profile.id, 0
    info.sliceCount, info.instanceCount = profile.compute_slices, profile.max_instances
    info.multiprocessorCount, info.memorySizeMB = encode_count(profile.num_multiprocessors), profile.capacity_mib
    info.copyEngineCount, info.decoderCount = encode_count(profile.num_copy), encode_count(profile.num_decoder)
    info.encoderCount, info.jpegCount = encode_count(profile.num_encoder), encode_count(profile.num_jpeg)
    info.ofaCount = encode_count(profile.num_ofa)
