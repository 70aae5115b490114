"""A plan as a configuration of NVIDIA's mig-parted, which MIG manager applies to the nodes of a cluster.

Source of the format: github.com/NVIDIA/mig-parted, api/spec/v1/spec.go (commit 28f9599). The format has no
placements; the driver places instances in the order of their profiles.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import yaml

from pipeline.base.system.errors import ConfigError
from pipeline.planner.deployment import Gpu, Plan


def text_of(plan: Plan, name: str, source: str, gpus_per_node: int | None) -> str:
    """Return the configuration in YAML; with `gpus_per_node`, one configuration per node: `NAME-1`, `NAME-2`, ...

    Raises:
        ConfigError: the plan has no GPU, or the ids are not unique indexes.
    """
    gpus = plan.deployment.gpus
    if not gpus:
        raise ConfigError(f"{source}: has no GPU; export a plan with GPUs")
    if gpus_per_node is not None and gpus_per_node < 1:
        raise ConfigError(f"--gpus-per-node {gpus_per_node}: must be at least 1; write the number of GPUs of a node")
    indexes = _indexes(gpus, source)
    per_node = gpus_per_node or max(indexes) + 1
    nodes: dict[int, dict[tuple[tuple[str, int], ...], list[int]]] = defaultdict(dict)
    for index, gpu in sorted(zip(indexes, gpus, strict=True), key=lambda pair: pair[0]):
        node, device = divmod(index, per_node)
        counts = Counter(instance.profile for instance in gpu.instances if instance.profile is not None)
        nodes[node].setdefault(tuple(sorted(counts.items())), []).append(device)
    configs = {
        name if max(indexes) < per_node else f"{name}-{node + 1}": [
            {"devices": sorted(devices), "mig-enabled": bool(profiles), "mig-devices": dict(profiles)}
            for profiles, devices in layouts.items()
        ]
        for node, layouts in nodes.items()
    }
    return yaml.safe_dump({"version": "v1", "mig-configs": configs}, sort_keys=False)


def _indexes(gpus: Sequence[Gpu], source: str) -> list[int]:
    """Return the index of each GPU: its id, or the lowest unused index."""
    for gpu in gpus:
        if gpu.id is not None and not re.fullmatch(r"[0-9]{1,9}", gpu.id):
            raise ConfigError(
                f"{source}: id {gpu.id!r} is not a GPU index, which mig-parted needs; use indexes as ids in the plan, "
                "or no ids"
            )
    indexes = [int(gpu.id) for gpu in gpus if gpu.id is not None]
    if len(set(indexes)) < len(indexes):
        raise ConfigError(f"{source}: two GPUs have the same index; use a different index for each GPU")
    free = (number for number in itertools.count() if number not in indexes)
    return [next(free) if gpu.id is None else int(gpu.id) for gpu in gpus]
