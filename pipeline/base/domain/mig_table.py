"""MIG profiles of each GPU model (`mig_profiles.json` as typed records), names of MIG devices, and MPS chunks.

Values missing in the public sources are `None`, except `capacity_mib`, the memory of a simulated GPU or instance. It is
estimated from the nominal size, in proportion to the memory slices of an instance. The memory of an instance depends on
the driver, so that a model alone does not determine it: `read_memory_mib`.

A MIG device `3g.40gb` has all compute slices of its GPU instance, `1c.3g.40gb` has one of them.

Static partitions of MPS consist of chunks of multiprocessors. The number of chunks depends on the positions of the
multiprocessors on the chip. Sources: NVIDIA's MPS documentation, release 615 (Static SM Partitioning), with a GPU of 92
multiprocessors as example; public programs for H100s (sgl-project/sglang-omni, `mps/control.py`); the reported chunk of
an L40S (8.9) has four multiprocessors.
"""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.base.system.errors import ConfigError

SIMULATED = "simulated_"
"""Prefix of the choices `gpu=simulated_MODEL`."""
_TABLE = Path(__file__).with_name("mig_profiles.json")
# Kinds of engines that instances share out among themselves, as NVML names them.
ENGINES = ("copy", "decoder", "encoder", "jpeg", "ofa")
# Listings round memory to hundredths of a GiB; every exact figure is a multiple of this.
_MEMORY_UNIT_MIB = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class CiProfile:
    """A compute instance profile of a GPU instance.

    Attributes:
        id: the id used by nvidia-smi, which equals NVML's enumeration.
        name_prefix: prefix of the GPU instance's name, such as `1c.`; empty for all compute slices.
        max_instances: maximum number in one GPU instance.
    """

    id: int
    name_prefix: str
    compute_slices: int
    num_multiprocessors: int | None
    max_instances: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedMemory:
    """Memory of an instance in one listing; `branch` is the driver's, or `None` if the listing does not have it."""

    mib: int
    branch: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GiProfile:
    """A GPU instance profile.

    Attributes:
        id: the id used by nvidia-smi, called profile id by NVML.
        enum: the argument of NVML's profile queries.
        memory_slices: number of memory slices that an instance occupies.
        memory_mib: memory of an instance in one listing.
        listed_memory: memory of an instance in each listing.
        min_branch: the first driver branch with this profile; `None` for every driver that knows the GPU.
        max_instances: maximum number of instances on an empty GPU.
        starts: the possible placement ids of an instance, ascending.
        attributes: `me`, `me.all`, `no-me`, `gfx`.
        ci_profiles: the compute instance profiles; the last one has all compute slices.
    """

    id: int
    enum: int
    name: str
    compute_slices: int
    memory_slices: int
    memory_mib: int | None
    listed_memory: tuple[ListedMemory, ...]
    capacity_mib: int
    num_multiprocessors: int | None
    max_instances: int
    min_branch: int | None
    starts: tuple[int, ...]
    attributes: tuple[str, ...]
    num_copy: int | None
    num_decoder: int | None
    num_encoder: int | None
    num_jpeg: int | None
    num_ofa: int | None
    ci_profiles: tuple[CiProfile, ...]

    @property
    def engines(self) -> tuple[int | None, ...]:
        """Number of engines of each kind, in the order of `ENGINES`; `None` if unknown."""
        return tuple(getattr(self, f"num_{kind}") for kind in ENGINES)

    def is_offered(self, branch: int | None) -> bool:
        """Return whether drivers of a branch have this profile; `None` is a current driver."""
        return branch is None or self.min_branch is None or self.min_branch <= branch

    def read_memory_mib(self, branch: int | None) -> int | None:
        """Return the memory of an instance with a driver branch; `None` for the branch returns `memory_mib`.

        The figure is that of the newest listing up to this branch. If no listing has its branch, it is the smallest
        figure: with any of these drivers, an instance has at least this memory.
        """
        if branch is None:
            return self.memory_mib
        dated = [(listing.branch, listing.mib) for listing in self.listed_memory if listing.branch is not None]
        if older := [row for row in dated if row[0] <= branch]:
            return max(older)[1]
        return min((listing.mib for listing in self.listed_memory), default=self.memory_mib)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One GPU model.

    Attributes:
        name: name for users, such as `h100_80gb`.
        product: name used by the driver.
        memory_slices: number of memory slices of the GPU.
        mode_needs_reset: whether changing MIG mode resets the GPU, which then must have no clients.
        profiles: GPU instance profiles in nvidia-smi's order.
    """

    name: str
    product: str
    architecture: str
    compute_capability: tuple[int, int]
    capacity_mib: int
    compute_slices: int
    memory_slices: int
    num_multiprocessors: int | None
    mode_needs_reset: bool
    profiles: tuple[GiProfile, ...]

    def profile(self, profile_id: int) -> GiProfile:
        """Return the profile with this id; `KeyError` if there is none."""
        return {profile.id: profile for profile in self.profiles}[profile_id]

    def find_profile(self, text: str) -> GiProfile | None:
        """Find a profile as named in nvidia-smi: `19`, `1g.10gb` or `MIG 1g.10gb`; `None` if unknown."""
        name = text.strip().removeprefix("MIG ").strip()
        return next((profile for profile in self.profiles if name in (profile.name, str(profile.id))), None)


@cache
def models() -> dict[str, Model]:
    """Return every model, by name."""
    return {model.name: model for model, _ in _rows()}


@cache
def find(name: str) -> Model:
    """Return the model with this name, which may have the prefix `simulated_`.

    The name may be the name for users (`h100_80gb`), the key of the table (`H100-80GB-SXM`), or the driver's name.

    Raises:
        ConfigError: no model has this name.
    """
    prefix = SIMULATED if name.startswith(SIMULATED) else ""
    plain_name = _plain(name.removeprefix(SIMULATED))
    for model, names in _rows():
        if plain_name in names:
            return model
    near = difflib.get_close_matches(plain_name, models(), n=1)
    did_you_mean = f"did you mean {prefix}{near[0]}? Or " if near else ""
    choices = ", ".join(f"{prefix}{model}" for model in models())
    raise ConfigError(f"GPU model '{name}' is unknown; {did_you_mean}choose one of {choices}")


@cache
def ci_profiles(compute_slices: int) -> tuple[CiProfile, ...]:
    """Return the compute instance profiles of a GPU instance of this size, the largest last; empty if unknown.

    They are the same on every model of the table, except for the multiprocessors, which are `None` here.
    """
    profiles = (profile for model in models().values() for profile in model.profiles)
    alike = next((profile for profile in profiles if profile.compute_slices == compute_slices), None)
    return () if alike is None else tuple(replace(division, num_multiprocessors=None) for division in alike.ci_profiles)


def find_model_name(text: str) -> str:
    """Return the model name for a name, an alias or a driver's name; the text itself if it is unknown."""
    plain_name = _plain(text.removeprefix(SIMULATED))
    return next((model.name for model, names in _rows() if plain_name in names), text)


def list_products(text: str) -> tuple[str, ...]:
    """Return the driver's names of the GPUs of a model, or the text itself for an unknown model."""
    name = find_model_name(text)
    table = json.loads(_TABLE.read_text(encoding="utf-8"))["gpus"]
    return next((tuple(row["product"]) for key, row in table.items() if find_model_name(key) == name), (text,))


@cache
def _rows() -> tuple[tuple[Model, tuple[str, ...]], ...]:
    table = json.loads(_TABLE.read_text(encoding="utf-8"))["gpus"]
    return tuple(
        (_model(key, row), (_plain(key), *row["aliases"], *map(_plain, row["product"]))) for key, row in table.items()
    )


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def _model(key: str, row: dict[str, Any]) -> Model:
    major, minor = row["compute_capability"].split(".")
    capacity_mib = row["memory_mib_total"] or row["memory_gb"] * 1024
    return Model(
        # The first alias is the common name of the usual variant, such as h100_80gb for the SXM variant.
        name=next(iter(row["aliases"]), _plain(key)),
        product=row["product"][0],
        **{key: row[key] for key in ("architecture", "compute_slices", "memory_slices")},
        compute_capability=(int(major), int(minor)),
        capacity_mib=capacity_mib,
        num_multiprocessors=row["sm_total"],
        mode_needs_reset=row["mig_mode_needs_reset"],
        profiles=tuple(_profile(row, capacity_mib, profile) for profile in row["gi_profiles"]),
    )


def _profile(gpu: dict[str, Any], gpu_capacity_mib: int, row: dict[str, Any]) -> GiProfile:
    engines = dict(zip(ENGINES, ("copy", "dec", "enc", "jpeg", "ofa"), strict=True))
    share_mib = gpu_capacity_mib * row["memory_slices"] // gpu["memory_slices"]
    divisions = gpu["ci_profiles"]["by_gi_compute_slices"][str(row["compute_slices"])]
    return GiProfile(
        id=row["smi_profile_id"],
        enum=row["nvml_enum"],
        **{key: row[key] for key in ("name", "compute_slices", "memory_slices", "memory_mib", "max_instances")},
        listed_memory=tuple(
            ListedMemory(
                mib=round(listing["gib"] * 1024 / _MEMORY_UNIT_MIB) * _MEMORY_UNIT_MIB, branch=listing.get("branch")
            )
            for listing in row["memory_gib"]
        ),
        min_branch=row.get("min_branch"),
        capacity_mib=row["memory_mib"] or share_mib,
        num_multiprocessors=row["sm"],
        starts=tuple(sorted(placement["start"] for placement in row["placements"])),
        attributes=tuple(row["attributes"]),
        **{f"num_{name}": row["engines"][key] for name, key in engines.items()},
        ci_profiles=tuple(
            CiProfile(
                id=division["smi_profile_id"],
                name_prefix=division["name_prefix"],
                compute_slices=division["compute_slices"],
                # The table has one figure per number of compute slices, but 1g.10gb and 1g.20gb of an H100 differ, so
                # the profile with all compute slices has the figure of the GPU instance.
                num_multiprocessors=row["sm"] if division["is_default"] else division["sm"],
                max_instances=division["max_instances"],
            )
            for division in divisions
        ),
    )


_DEVICE_NAME = re.compile(r"(?P<slices>\d+)c\.(?P<profile>.+)")


def name_device(profile: str, slices: int | None) -> str:
    """Return `1c.3g.40gb` for one compute slice of a `3g.40gb`; without slices, the profile itself."""
    return profile if slices is None else f"{slices}c.{profile}"


def split_name(name: str) -> tuple[str, int | None]:
    """Split a name into GPU instance profile and number of compute slices; `None` for all slices."""
    part = _DEVICE_NAME.fullmatch(name)
    return (name, None) if part is None else (part["profile"], int(part["slices"]))


def format_division(profile: str, parts: list[str]) -> str:
    """Format a GPU instance with its compute instances: `3g.40gb(1c+2c)`; the profile alone if not partitioned."""
    return f"{profile}({'+'.join(parts)})" if parts else profile


_CHUNK_SIZES = (((9, 0), 8), ((8, 0), 4))  # by lowest compute capability
_REPORTED_CHUNKS = {(8, 132): 15, (8, 92): 10}  # number of chunks by size and number of multiprocessors


def find_chunk_size(compute_capability: tuple[int, ...]) -> int | None:
    """Return the number of multiprocessors in a chunk; `None` before Ampere, which has no static partitions."""
    return next((size for since, size in _CHUNK_SIZES if compute_capability >= since), None)


def count_chunks(size: int, multiprocessors: int) -> int:
    """Return the reported number of chunks on a GPU; if none was reported, the upper limit."""
    return _REPORTED_CHUNKS.get((size, multiprocessors), multiprocessors // size)
