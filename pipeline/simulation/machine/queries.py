"""Pure functions of the state of a machine: queries, and the driver's placement rules.

A missing object raises `DriverError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


# For each number of memory slices, the order in which the driver tries the starts if no start is requested, on GPUs
# with eight memory slices. Source: terminal transcripts of A100 and H100: 1g starts at 6, 4, 5, 0, 1, 2, 3; 2g at 4,
# then 0, and at 2 if a 1g is at 0; 3g at 4, then 0. No transcript has a 1g with two memory slices; this project assumes
# that its order also begins at the end.
_PREFERRED_STARTS = {1: (6, 4, 5, 0, 1, 2, 3), 2: (6, 4, 0, 2), 4: (4, 0)}
_PREFERENCE_AXIS = 8


def free_starts(model: Model, instances: Sequence[GpuInstance], profile: GiProfile) -> tuple[int, ...]:
    """Return the possible starts of an instance of the profile, in the driver's order of preference.

    The result is empty if another limit is reached: compute slices, the profile's number of instances, or media
    engines.
    """
    present = [model.profile(instance.profile_id) for instance in instances]
    if (
        sum(other.compute_slices for other in present) + profile.compute_slices > model.compute_slices
        or sum(other.id == profile.id for other in present) >= profile.max_instances
        or _lacks_engines(model, [*present, profile])
    ):
        return ()
    used_slices = {unit for instance in instances for unit in range(instance.start, instance.start + instance.size)}
    return tuple(
        start
        for start in _order_starts(model, profile)
        if used_slices.isdisjoint(range(start, start + profile.memory_slices))
    )


def remaining_capacity(model: Model, instances: Sequence[GpuInstance], profile: GiProfile) -> int:
    """Return the number of further instances of the profile that fit."""
    starts = sorted(free_starts(model, instances, profile))
    # All intervals have equal width, so choosing the leftmost interval that fits each time gives the largest number.
    num_places, end = 0, 0
    for start in starts:
        if start >= end:
            num_places, end = num_places + 1, start + profile.memory_slices
    present = [model.profile(instance.profile_id) for instance in instances]
    num_slices = model.compute_slices - sum(other.compute_slices for other in present)
    num_left = profile.max_instances - sum(other.id == profile.id for other in present)
    return min(num_places, num_slices // profile.compute_slices, num_left)


def gpu_instance_id(model: Model, index: int, start: int, size: int) -> int:
    """Return the id of an instance: the number of its placement's node in a binary tree over the memory slices.

    On GPUs with eight memory slices, drivers begin with the left half (0:1 is 7, 6:1 is 13) or with the right half (4:4
    is 1, 0:4 is 2, 0:1 is 11), also on two GPUs of one machine (NVIDIA/DCGM#138), so that an id of one GPU has no
    meaning on another. Here the first GPU begins as in most transcripts of its architecture, with the right half on
    Ampere, and the next one differently. A30 and RTX PRO 6000 begin with the left half in every transcript.
    """
    num_nodes = model.memory_slices // size
    node = start // size
    is_turned = model.memory_slices == _PREFERENCE_AXIS and (model.architecture == "Ampere") == (index % 2 == 0)
    if num_nodes > 1 and is_turned:
        node = (node + num_nodes // 2) % num_nodes
    return num_nodes - 1 + node


def free_ci_starts(profile: GiProfile, present: Sequence[ComputeInstance], ci_profile: CiProfile) -> tuple[int, ...]:
    """Return the possible starts of a compute instance in a GPU instance of this profile, the preferred start first.

    A compute instance may start at any slice from which it fits. No transcript lists the starts, but in one transcript
    a 2c follows a 1c in a 3g, so 0 is not the only start.
    """
    if sum(other.profile_id == ci_profile.id for other in present) >= ci_profile.max_instances:
        return ()
    used_slices = {unit for other in present for unit in range(other.start, other.start + other.size)}
    width = ci_profile.compute_slices
    starts = range(profile.compute_slices - width + 1)
    free = [start for start in starts if used_slices.isdisjoint(range(start, start + width))]
    # Multiples of the instance's width come first, so that as many instances as possible fit.
    return tuple(sorted(free, key=lambda start: (start % width != 0, start)))


def remaining_ci_capacity(profile: GiProfile, present: Sequence[ComputeInstance], ci_profile: CiProfile) -> int:
    """Return the number of further compute instances of a profile that fit in a GPU instance."""
    grown = list(present)
    while free := free_ci_starts(profile, grown, ci_profile):
        new = ComputeInstance(id=-1, profile_id=ci_profile.id, start=free[0], size=ci_profile.compute_slices)
        grown.append(new)
    return len(grown) - len(present)


def _lacks_engines(model: Model, profiles: Sequence[GiProfile]) -> bool:
    """Return whether instances need more engines of a kind than the largest instance has."""
    available = max(model.profiles, key=lambda profile: (profile.compute_slices, profile.memory_slices)).engines
    required = (sum(count or 0 for count in counts) for counts in zip(*(p.engines for p in profiles), strict=True))
    return any(most is not None and count > most for most, count in zip(available, required, strict=True))


def _order_starts(model: Model, profile: GiProfile) -> tuple[int, ...]:
    if model.memory_slices != _PREFERENCE_AXIS:
        return profile.starts
    preferred = _PREFERRED_STARTS.get(profile.memory_slices, profile.starts)
    return tuple(start for start in preferred if start in profile.starts)
