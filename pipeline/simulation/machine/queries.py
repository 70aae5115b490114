"""Pure functions that query the state of a machine. A missing object raises `DriverError`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from pipeline.base.domain.mig_table import CiProfile, GiProfile, Model, find
from pipeline.simulation.machine.codes import INVALID_ARGUMENT, NOT_FOUND, DriverError
from pipeline.simulation.machine.state_file import ComputeInstance, Gpu, GpuInstance

T = TypeVar("T")

# Memory that the driver reserves. Source: H100 80GB, driver 580.159.04; used for every model.
RESERVED_MIB = 480


def first(candidates: Iterable[T], code: int) -> T:
    """Return the first candidate; raise a `DriverError` with this code if there is none."""
    for candidate in candidates:
        return candidate
    raise DriverError(code)


def model_of(gpu: Gpu) -> Model:
    """Return the model of a GPU."""
    return find(gpu.model)


def profile_of(gpu: Gpu, instance: GpuInstance) -> GiProfile:
    """Return the profile of a GPU instance."""
    return model_of(gpu).profile(instance.profile_id)


def find_profile(gpu: Gpu, profile_id: int) -> GiProfile:
    """Return the profile of the GPU's model with this id."""
    return first((profile for profile in model_of(gpu).profiles if profile.id == profile_id), INVALID_ARGUMENT)


def find_ci_profile(profile: GiProfile, ci_profile_id: int) -> CiProfile:
    """Return the compute instance profile with this id."""
    return first((ci_profile for ci_profile in profile.ci_profiles if ci_profile.id == ci_profile_id), INVALID_ARGUMENT)


def mig_devices(gpu: Gpu) -> list[tuple[GpuInstance, ComputeInstance]]:
    """Return the MIG devices in the order of NVML's indices: by GPU instance id, then by compute instance id."""
    pairs = [(instance, ci) for instance in gpu.instances for ci in instance.compute_instances]
    return sorted(pairs, key=lambda pair: (pair[0].id, pair[1].id))


def mig_device_name(gpu: Gpu, instance: GpuInstance, ci: ComputeInstance) -> str:
    """Return the name of a MIG device: its GPU instance's profile, with a prefix for a partial compute instance."""
    profile = profile_of(gpu, instance)
    return find_ci_profile(profile, ci.profile_id).name_prefix + profile.name


def sort_as_listed(gpu: Gpu) -> list[GpuInstance]:
    """Return the GPU instances in nvidia-smi's order: by profile, then by id."""
    return sorted(gpu.instances, key=lambda instance: (profile_of(gpu, instance).enum, instance.id))


def instance_of(gpu: Gpu, instance_id: int) -> GpuInstance:
    """Return the GPU instance with this id."""
    return first((instance for instance in gpu.instances if instance.id == instance_id), NOT_FOUND)


def memory_capacity_mib(gpu: Gpu, instance_id: int | None) -> int:
    """Return the memory of a GPU or GPU instance that is available to processes."""
    if instance_id is None:
        return model_of(gpu).capacity_mib - RESERVED_MIB
    return profile_of(gpu, instance_of(gpu, instance_id)).capacity_mib


def used_memory_mib(gpu: Gpu, instance_id: int | None = None) -> int:
    """Return the memory of a GPU or GPU instance that processes use."""
    return sum(p.memory_mib for p in gpu.processes if instance_id is None or p.gpu_instance_id == instance_id)
