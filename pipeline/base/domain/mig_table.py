"""MIG profiles of each GPU model: the table `mig_profiles.json` as typed records.

Values missing in the public sources are `None`, except `capacity_mib`, the memory of a simulated GPU or instance. It is
estimated from the nominal size, in proportion to the memory slices of an instance.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pipeline.base.system.errors import ConfigError

_TABLE = Path(__file__).with_name("mig_profiles.json")


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
class GiProfile:
    """A GPU instance profile.

    Attributes:
        id: the id used by nvidia-smi, called profile id by NVML.
        enum: the argument of NVML's profile queries.
        memory_slices: number of memory slices that an instance occupies.
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
    capacity_mib: int
    num_multiprocessors: int | None
    max_instances: int
    starts: tuple[int, ...]
    attributes: tuple[str, ...]
    num_copy: int | None
    num_decoder: int | None
    num_encoder: int | None
    num_jpeg: int | None
    num_ofa: int | None
    ci_profiles: tuple[CiProfile, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One GPU model.

    Attributes:
        name: name for users, such as `h100_80gb`.
        product: name used by the driver.
        memory_slices: number of memory slices of the GPU.
        mode_needs_reset: whether changing MIG mode resets the GPU, which then must have no clients.
        profiles: GPU instance profiles in nvidia-smi's order; empty if their placements are unknown.
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
    """Return every model with known placements, by name."""
    return {model.name: model for model, _ in _rows() if model.profiles}


@cache
def find(name: str) -> Model:
    """Return the model with this name, which may have the prefix `simulated_`.

    The name may be the name for users (`h100_80gb`), the key of the table (`H100-80GB-SXM`), or the driver's name.

    Raises:
        ConfigError: no model has this name, or its placements are unknown.
    """
    plain_name = _plain(name.removeprefix("simulated_"))
    choice = f"choose one of {', '.join(models())}"
    for model, names in _rows():
        if plain_name in names:
            if not model.profiles:
                raise ConfigError(f"MIG placements of {model.product} are unknown; {choice}")
            return model
    raise ConfigError(f"GPU model '{name}' is unknown; {choice}")


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
    called = _plain(text.removeprefix("simulated_"))
    return next((model.name for model, names in _rows() if called in names), text)


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
    engines = {"copy": "copy", "decoder": "dec", "encoder": "enc", "jpeg": "jpeg", "ofa": "ofa"}
    share_mib = gpu_capacity_mib * row["memory_slices"] // gpu["memory_slices"]
    divisions = gpu["ci_profiles"]["by_gi_compute_slices"][str(row["compute_slices"])]
    return GiProfile(
        id=row["smi_profile_id"],
        enum=row["nvml_enum"],
        **{key: row[key] for key in ("name", "compute_slices", "memory_slices", "memory_mib", "max_instances")},
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
