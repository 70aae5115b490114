"""MIG profiles of a GPU as records: from the table of known models, or from NVML for a real GPU.

Reads only. A fact that neither the table nor the driver has is `None`. `layouts` decides which instances fit together.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pipeline.base.domain import mig_table
from pipeline.base.domain.records import Device
from pipeline.base.system.errors import ConfigError
from pipeline.prepare.device import nvml
from pipeline.prepare.device.nvml import pynvml

_NAME = re.compile(r"\d+g\.\d+gb(?P<suffix>.*)")
# The fields of NVML's structure for `mig_table.ENGINES`.
_ENGINE_FIELDS = ("copyEngineCount", "decoderCount", "encoderCount", "jpegCount", "ofaCount")
# Larger than the number of memory slices of any GPU (12 on the RTX PRO 6000): one call returns all placements.
_PLACEMENTS_ROOM = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One kind of GPU instance.

    Attributes:
        name: name without the prefix `MIG` of nvidia-smi: `3g.20gb`, `1g.10gb+me`. Its GB are nominal.
        profile_id: id with which the driver creates an instance; not the argument of NVML's profile query.
        compute_slices: number of compute slices of an instance.
        memory_slices: number of memory slices that an instance occupies.
        starts: memory slices at which an instance may begin, in rising order.
        max_instances: largest number of such instances on an empty GPU.
        multiprocessors: number of SMs of an instance.
        memory_mib: memory of an instance in MiB.
        engines: number of engines of an instance, in the order of `mig_table.ENGINES`; `None` if unknown.
    """

    name: str
    profile_id: int
    compute_slices: int
    memory_slices: int
    starts: tuple[int, ...]
    max_instances: int
    multiprocessors: int | None
    memory_mib: int | None
    engines: tuple[int | None, ...]

    @property
    def suffix(self) -> str:
        """Engines in the name: `+me`, `+me.all`, `-me`, `+gfx`; empty for a plain profile."""
        match = _NAME.fullmatch(self.name)
        return "" if match is None else match["suffix"]

    @property
    def size(self) -> tuple[int, int]:
        """Compute slices, then memory slices: the order of profiles by size."""
        return self.compute_slices, self.memory_slices


@dataclass(frozen=True, slots=True, kw_only=True)
class MigGpu:
    """A GPU with its MIG profiles.

    Attributes:
        name: product name of the GPU.
        compute_slices: number of compute slices of the GPU.
        memory_slices: number of memory slices of the GPU.
        multiprocessors: SMs of the GPU with MIG mode off; with MIG mode on, the largest instance may have fewer.
        profiles: MIG profiles, smaller ones first.
        driver_branch: first number of the driver's version; `None` for a current driver.
    """

    name: str
    compute_slices: int
    memory_slices: int
    multiprocessors: int | None
    profiles: tuple[Profile, ...]
    driver_branch: int | None = None

    def ideal_ratio(self, profile: Profile) -> float | None:
        """Return an instance's share of the SMs of the GPU with MIG mode off, from 0 to 1; `None` if unknown.

        This share is the ideal normalised progress of a job that is limited by computing. The number of slices does
        not give this share: on an H100 80GB, a 3g has 60 of 132 SMs, and seven 1g have 112 together.
        """
        if self.multiprocessors is None or profile.multiprocessors is None:
            return None
        return profile.multiprocessors / self.multiprocessors


def load_model(name: str, driver_branch: int | None = None) -> MigGpu:
    """Load a model of the table, with a name that `mig_table.find` accepts; the default driver is a current one.

    The profiles are those of the driver branch, each with its memory under this driver.
    """
    model = mig_table.find(name)
    return MigGpu(
        name=model.product,
        compute_slices=model.compute_slices,
        memory_slices=model.memory_slices,
        multiprocessors=model.num_multiprocessors,
        profiles=_sort([_convert_row(row, driver_branch) for row in model.profiles if row.is_offered(driver_branch)]),
        driver_branch=driver_branch,
    )


def find_gpu(selector: str) -> MigGpu:
    """Find a model of the table for `simulated_MODEL`, else a GPU with MIG on this machine, by index or UUID."""
    return load_model(selector) if selector.startswith(mig_table.SIMULATED) else read_gpu(_choose_device(selector))


def look_up(selector: str) -> tuple[str, MigGpu | None]:
    """Look up a GPU of this machine by index or UUID: its name and MIG profiles; `None` without MIG."""
    device = _choose_device(selector)
    return device.name, _read(device)


def _choose_device(selector: str) -> Device:
    from pipeline.prepare.device.device_choice import choose  # imported here because it imports Hydra

    devices = nvml.list_devices()
    if not devices:
        raise ConfigError(
            "this machine has no NVIDIA GPU or no driver; install a driver, or use a model: --gpu simulated_a100_40gb"
        )
    return choose("--gpu", selector, devices)


def read_gpu(device: Device) -> MigGpu:
    """Read the MIG profiles of a GPU from NVML, with MIG mode on or off; ConfigError if NVML lists no profile."""
    gpu = _read(device)
    if gpu is None:
        raise ConfigError(f"{device.name} ({device.uuid}) has no MIG profile; choose another GPU")
    return gpu


def _read(device: Device) -> MigGpu | None:
    with nvml.session():
        profiles = _sort(_read_profiles(device))
    if not profiles:
        return None
    branch = device.facts.driver_branch
    assert branch is not None
    return MigGpu(
        name=device.name,
        compute_slices=max(profile.compute_slices for profile in profiles),
        memory_slices=max(start + profile.memory_slices for profile in profiles for start in profile.starts),
        multiprocessors=device.facts.multiprocessors,
        profiles=profiles,
        driver_branch=branch,
    )


def _sort(profiles: list[Profile]) -> tuple[Profile, ...]:
    return tuple(sorted(profiles, key=lambda profile: (profile.size, profile.name)))


def _convert_row(profile: mig_table.GiProfile, driver_branch: int | None) -> Profile:
    return Profile(
        name=profile.name,
        profile_id=profile.id,
        compute_slices=profile.compute_slices,
        memory_slices=profile.memory_slices,
        starts=profile.starts,
        max_instances=profile.max_instances,
        multiprocessors=profile.num_multiprocessors,
        memory_mib=profile.read_memory_mib(driver_branch),
        engines=profile.engines,
    )


def list_offered(handle: object, **version: int) -> Iterator[Any]:
    """Yield NVML's structure, in the requested version, for each MIG profile of a GPU handle."""
    for query in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        # NotSupported: this GPU has no such profile. InvalidArgument: the driver does not support the query.
        with suppress(pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
            yield pynvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, query, **version)


def _read_profiles(device: Device) -> list[Profile]:
    with nvml.translate_errors(f"the MIG profiles of {device.name}"):
        handle = pynvml.nvmlDeviceGetHandleByUUID(device.uuid)
        try:
            infos = list(list_offered(handle, version=2))
        except pynvml.NVMLError_FunctionNotFound as error:
            raise ConfigError("this NVIDIA driver is too old to list MIG profiles; install a newer driver") from error
    return [_convert_info(info, _read_placements(device, handle, info.id)) for info in infos]


def _convert_info(info: Any, placements: list[tuple[int, int]]) -> Profile:
    name = info.name.decode() if isinstance(info.name, bytes) else info.name
    return Profile(
        name=name.removeprefix("MIG "),
        profile_id=info.id,
        compute_slices=info.sliceCount,
        memory_slices=placements[0][1],
        starts=tuple(sorted(start for start, _ in placements)),
        max_instances=info.instanceCount,
        multiprocessors=nvml.count_multiprocessors(info),
        memory_mib=info.memorySizeMB,
        engines=tuple(nvml.decode_count(getattr(info, field)) for field in _ENGINE_FIELDS),
    )


def _read_placements(device: Device, handle: object, profile_id: int) -> list[tuple[int, int]]:
    """Read start and size of each possible placement, independent of the GPU's current instances."""
    count = ctypes.c_uint(_PLACEMENTS_ROOM)
    room = (pynvml.c_nvmlGpuInstancePlacement_t * _PLACEMENTS_ROOM)()
    with nvml.translate_errors(f"the MIG placements of {device.name}"):
        try:
            pynvml.nvmlDeviceGetGpuInstancePossiblePlacements(handle, profile_id, room, ctypes.byref(count))
        except pynvml.NVMLError_NoPermission as error:
            raise ConfigError(
                f"the driver shows the MIG placements of {device.name} to administrators only; run as root"
            ) from error
    placements = [(placement.start, placement.size) for placement in room[: count.value]]
    if len({size for _, size in placements}) != 1:
        raise nvml.NvmlError(
            f"NVML reports placements of different sizes for MIG profile {profile_id} of {device.name}: {placements}"
        )
    return placements
