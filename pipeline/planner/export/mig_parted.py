"""A plan as a configuration of NVIDIA's mig-parted, which MIG manager applies to the nodes of a cluster.

Source of the format: github.com/NVIDIA/mig-parted, api/spec/v1/spec.go (commit 28f9599). It has no
placements: the driver places instances in the order of their profiles.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import yaml

from pipeline.base.errors import ConfigError
from pipeline.planner.deployment import Plan


def text_of(plan: Plan, name: str, source: str, gpus_per_node: int | None) -> str:
    """The configuration in YAML.

    Args:
        plan: its GPUs are those of a node in turn, unless their `id` is an index.
        name: of the configuration; with several nodes, `NAME-1`, `NAME-2`, ...
        source: the file of the plan, for errors.
        gpus_per_node: how many GPUs a node has; all of them are on one if it is not given.

    Raises:
        ConfigError: there is no GPU, or an id is no index of a GPU of the one node.
    """
    gpus = plan.deployment.gpus
    if not gpus:
        raise ConfigError(f"{source}: it has no GPU, and mig-parted needs one")
    if gpus_per_node is not None and gpus_per_node < 1:
        raise ConfigError(f"--gpus-per-node {gpus_per_node}: at least 1")
    per_node = gpus_per_node or len(gpus)
    configs: dict[str, list[dict[str, Any]]] = {}
    for first in range(0, len(gpus), per_node):
        here = gpus[first : first + per_node]
        called = name if per_node >= len(gpus) else f"{name}-{first // per_node + 1}"
        indexes = [_index(gpu.id, number, source) for number, gpu in enumerate(here)]
        if len(set(indexes)) < len(indexes):
            raise ConfigError(f"{source}: the ids of its GPUs name an index twice; {called} needs one for each GPU")
        entries: dict[tuple[tuple[str, int], ...], list[int]] = {}
        for gpu, index in zip(here, indexes, strict=True):
            found = Counter(instance.profile for instance in gpu.instances if instance.profile is not None)
            entries.setdefault(tuple(sorted(found.items())), []).append(index)
        configs[called] = [_entry(dict(profiles), devices) for profiles, devices in entries.items()]
    return yaml.safe_dump({"version": "v1", "mig-configs": configs}, sort_keys=False)


def _index(gpu_id: str | None, number: int, source: str) -> int:
    if gpu_id is None:
        return number
    if not re.fullmatch(r"\d+", gpu_id):
        raise ConfigError(f"{source}: GPU {gpu_id!r} is no index, which mig-parted needs; plan for indexes or none")
    return int(gpu_id)


def _entry(profiles: Mapping[str, int], devices: list[int]) -> dict[str, Any]:
    return {"devices": sorted(devices), "mig-enabled": bool(profiles), "mig-devices": dict(profiles)}
