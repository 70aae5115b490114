"""MIG state of a GPU, read through NVML: mode, GPU instances, MIG devices and their processes.

Reads only. NVML is open in this process only while a function runs, because on Ampere GPUs the MIG mode cannot be
switched while any process has NVML open.
"""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.base.system import study_cache
from pipeline.base.system.command_parser import choose_remedy
from pipeline.base.system.errors import SharingError
from pipeline.prepare.device import nvml
from pipeline.prepare.device.nvml import pynvml
from pipeline.prepare.mig import profiles


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuInstance:
    """An existing GPU instance.

    Attributes:
        gi_id: id of the GPU instance.
        profile_id: id of its profile, which nvidia-smi prints as `Profile ID`.
        start: its first memory slice.
    """

    gi_id: int
    profile_id: int
    start: int

    def __str__(self) -> str:
        return f"{self.gi_id} (profile {self.profile_id} at {self.start})"


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDevice:
    """A compute instance in a GPU instance, on which a job can run; `multiprocessors` is `None` if not reported."""

    uuid: str
    gi_id: int
    ci_id: int
    compute_slices: int
    multiprocessors: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MigState:
    """State of MIG on a GPU.

    Attributes:
        is_on: whether MIG mode is on.
        is_pending_on: whether MIG mode will be on after the next reset of the GPU.
        instances: GPU instances in the order of their starts; `None` if NVML shows them to administrators only.
        devices: MIG devices in NVML's order.
    """

    is_on: bool
    is_pending_on: bool
    instances: tuple[GpuInstance, ...] | None = ()
    devices: tuple[MigDevice, ...] = ()

    @property
    def is_settled(self) -> bool:
        return self.is_on == self.is_pending_on


def read_state(uuid: str) -> MigState:
    """Read mode, instances and MIG devices of the GPU with this UUID.

    Raises:
        SharingError: the GPU has no MIG.
        NvmlError: the GPU does not respond.
    """
    with nvml.session(), nvml.translate_errors(f"the MIG state of {uuid}"):
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        try:
            current, pending = pynvml.nvmlDeviceGetMigMode(handle)
        except pynvml.NVMLError_NotSupported as error:
            remedy = choose_remedy("gpu.device, or scenario=mps", "--gpu")
            raise SharingError(f"{uuid} does not support MIG; choose another GPU with {remedy}") from error
        return MigState(
            is_on=bool(current),
            is_pending_on=bool(pending),
            instances=_list_instances(uuid, handle) if current else (),
            devices=_list_devices(handle) if current else (),
        )


def list_processes_on(device_uuid: str) -> frozenset[int]:
    """List the processes on a MIG device by their PIDs on the host; NvmlError if NVML cannot list them."""
    with nvml.session(), nvml.translate_errors(f"the processes on {device_uuid}"):
        handle = pynvml.nvmlDeviceGetHandleByUUID(device_uuid)
        pids = {process.pid for process in pynvml.nvmlDeviceGetComputeRunningProcesses_v3(handle)}
        try:
            clients = {process.pid for process in pynvml.nvmlDeviceGetMPSComputeRunningProcesses_v3(handle)}
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
            clients = set()
        return frozenset(pids | clients)


@study_cache.cache_for_study
def _list_profiles(uuid: str) -> tuple[tuple[int, int], ...]:
    """List id and largest number of instances of each profile; cached, because this query needs most of the calls."""
    handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
    return tuple((profile.id, profile.instanceCount) for profile in profiles.list_offered(handle))


def _list_instances(uuid: str, handle: object) -> tuple[GpuInstance, ...] | None:
    instances = []
    try:
        for profile_id, most in _list_profiles(uuid):
            room, count = (pynvml.c_nvmlGpuInstance_t * most)(), pynvml.c_uint(most)
            pynvml.nvmlDeviceGetGpuInstances(handle, profile_id, room, pynvml.byref(count))
            for info in map(pynvml.nvmlGpuInstanceGetInfo, room[: count.value]):
                instances.append(GpuInstance(gi_id=info.id, profile_id=info.profileId, start=info.placement.start))
    except pynvml.NVMLError_NoPermission:
        return None
    return tuple(sorted(instances, key=lambda instance: instance.start))


def _list_devices(handle: object) -> tuple[MigDevice, ...]:
    return tuple(
        MigDevice(
            uuid=pynvml.nvmlDeviceGetUUID(device),
            gi_id=pynvml.nvmlDeviceGetGpuInstanceId(device),
            ci_id=pynvml.nvmlDeviceGetComputeInstanceId(device),
            compute_slices=attributes.computeInstanceSliceCount,
            multiprocessors=nvml.count_multiprocessors(attributes),
        )
        for device in nvml.list_mig_handles(handle)
        for attributes in [pynvml.nvmlDeviceGetAttributes_v2(device)]
    )
