"""Questions about the GPUs of a state that several of its readers ask. What is not there is a DriverError. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from pipeline.base.domain.mig_table import CiProfile, GiProfile, Model, find
from pipeline.simulation.machine.codes import INVALID_ARGUMENT, NOT_FOUND, DriverError
from pipeline.simulation.machine.state import ComputeInstance, Gpu, GpuInstance

T = TypeVar("T")

# What the driver keeps of a GPU's memory for itself. Source: H100 80GB, driver 580.159.04; taken for every model.
RESERVED_MIB = 480


def first(found: Iterable[T], code: int) -> T:
    """The first of what was found, else a DriverError with this code."""
    for each in found:
        return each
    raise DriverError(code)


def model_of(gpu: Gpu) -> Model:
    """The model that a GPU is of."""
    return find(gpu.model)


def profile_of(gpu: Gpu, instance: GpuInstance) -> GiProfile:
    """The profile that a GPU instance has."""
    return model_of(gpu).profile(instance.profile_id)


def find_profile(gpu: Gpu, profile_id: int) -> GiProfile:
    """The profile of the GPU's model that has this id."""
    return first((each for each in model_of(gpu).profiles if each.id == profile_id), INVALID_ARGUMENT)


def find_ci_profile(profile: GiProfile, ci_profile_id: int) -> CiProfile:
    """The way to divide a GPU instance that has this id."""
    return first((each for each in profile.ci_profiles if each.id == ci_profile_id), INVALID_ARGUMENT)


def mig_devices(gpu: Gpu) -> list[tuple[GpuInstance, ComputeInstance]]:
    """What can be computed on under MIG, in the order of NVML's MIG device indices: by the two ids."""
    pairs = [(instance, ci) for instance in gpu.instances for ci in instance.compute_instances]
    return sorted(pairs, key=lambda pair: (pair[0].id, pair[1].id))


def mig_device_name(gpu: Gpu, instance: GpuInstance, ci: ComputeInstance) -> str:
    """What a MIG device is called: by its GPU instance, and before it the part that it has if it has not all of it."""
    profile = profile_of(gpu, instance)
    return find_ci_profile(profile, ci.profile_id).name_prefix + profile.name


def listed(gpu: Gpu) -> list[GpuInstance]:
    """The GPU instances in the order in which nvidia-smi lists them: by profile, then by id."""
    return sorted(gpu.instances, key=lambda instance: (profile_of(gpu, instance).enum, instance.id))


def instance_of(gpu: Gpu, instance_id: int) -> GpuInstance:
    """The GPU instance with this id."""
    return first((each for each in gpu.instances if each.id == instance_id), NOT_FOUND)


def memory_capacity_mib(gpu: Gpu, instance_id: int | None) -> int:
    """What processes can have of the memory of a GPU, or of one of its GPU instances, in MiB."""
    if instance_id is None:
        return model_of(gpu).capacity_mib - RESERVED_MIB
    return profile_of(gpu, instance_of(gpu, instance_id)).capacity_mib


def used_memory_mib(gpu: Gpu, instance_id: int | None = None) -> int:
    """What processes have of the memory of a GPU, or of one of its GPU instances, in MiB."""
    return sum(p.memory_mib for p in gpu.processes if instance_id is None or p.gpu_instance_id == instance_id)
