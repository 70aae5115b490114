"""A plan as the configuration of nodes with GPUs: for NVIDIA's mig-parted, or for Slurm, with the jobs to submit.

A training plan may have several groups for a GPU, one after another. The GPU then needs the instances of all of them,
because neither program changes instances between jobs; Slurm's jobs of a group wait for those of the group before.

Sources: github.com/NVIDIA/mig-parted, api/spec/v1/spec.go (commit 28f9599), whose format has no placements (the driver
places instances in the order of their profiles). github.com/SchedMD/slurm, doc/html/gres.shtml (commit 01cec7fa): a
type is a part of the name that NVML reports, such as `nvidia_a100_3g.20gb`; `mps` counts per cents of a GPU, and
`shard` jobs that share one.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import yaml

from pipeline.base.domain import mig_table
from pipeline.base.system.errors import ConfigError
from pipeline.planner.deployment import GROUPS_PER_GPU, Gpu, Plan, mig_gpu
from pipeline.planner.export.experiment import deal_rates
from pipeline.planner.export.manifests import list_variables, make_label
from pipeline.prepare.mig import layouts

_GPU, _MPS, _SHARD = "gpu", "mps", "shard"
_WHOLE = 100
"""The `mps` of a GPU."""


@dataclass(frozen=True, slots=True)
class NodeGpu:
    """A GPU of a node: its index, and its groups with their positions in the plan."""

    index: int
    groups: tuple[tuple[int, Gpu], ...]

    def count_profiles(self, source: str) -> Counter[str]:
        """Return the instances that suffice for every group; ConfigError if the GPU cannot have them at one time."""
        gpus = [gpu for _, gpu in self.groups]
        counts = [Counter(instance.profile for instance in gpu.instances if instance.profile) for gpu in gpus]
        needed = functools.reduce(operator.or_, counts)
        if needed and len(gpus) > 1:
            mig = mig_gpu(gpus[0])
            profiles = [layouts.resolve(mig, profile) for profile in needed.elements()]
            if any(gpu.mode != "mig" for gpu in gpus) or layouts.place(mig, profiles) is None:
                raise ConfigError(
                    f"{source}: GPU {self.index} changes its MIG layout between groups; plan with --modes mps_percent"
                )
        return needed


def format_mig_parted(plan: Plan, name: str, source: str, gpus_per_node: int | None) -> str:
    """Return mig-parted's configuration in YAML; with `gpus_per_node`, one for each node: `NAME-1`, `NAME-2`, ...

    Raises:
        ConfigError: the plan has no GPU, the ids are not unique indexes, or a GPU needs several layouts.
    """
    configs = {}
    for node, gpus in _list_nodes(plan, name, source, gpus_per_node).items():
        devices: dict[tuple[tuple[str, int], ...], list[int]] = defaultdict(list)
        for gpu in gpus:
            devices[tuple(sorted(gpu.count_profiles(source).items()))].append(gpu.index)
        configs[node] = [
            {"devices": indexes, "mig-enabled": bool(profiles), "mig-devices": dict(profiles)}
            for profiles, indexes in devices.items()
        ]
    return yaml.safe_dump({"version": "v1", "mig-configs": configs}, sort_keys=False)


def format_slurm(plan: Plan, name: str, source: str, gpus_per_node: int | None) -> str:
    """Return a shell script that submits the jobs of a plan, with the lines of Slurm's configuration as comments.

    Raises:
        ConfigError: `format_mig_parted` would raise it, or Slurm has no resource for a share of a GPU.
    """
    rates, kinds = deal_rates(plan), {_GPU}
    lines: list[str] = []
    commands: list[str] = []
    for node, gpus in _list_nodes(plan, name, source, gpus_per_node).items():
        total: Counter[str] = Counter()
        node_lines = ["AutoDetect=nvml"]
        for gpu in gpus:
            groups = [[*_list_requests(number, group, rates, source)] for number, group in gpu.groups]
            profiles = gpu.count_profiles(source) or {_name_type(gpu.groups[0][1]): 1}
            total.update({f"{_GPU}:{profile}": count for profile, count in profiles.items()})
            for kind, minimum in ((_MPS, _WHOLE), (_SHARD, 0)):
                requested = max(sum(request.count for request in group if request.kind == kind) for group in groups)
                if kind == _MPS and requested > _WHOLE:
                    raise ConfigError(
                        f"{source}: the MPS shares of GPU {gpu.index} sum to {requested} %, but Slurm grants {_WHOLE}; "
                        "use --as dra"
                    )
                if requested:
                    kinds.add(kind)
                    total[kind] += max(requested, minimum)
                    node_lines.append(f"Name={kind} Count={max(requested, minimum)} File=/dev/nvidia{gpu.index}")
            commands += _submit(groups)
        gres = ",".join(f"{kind}:{count}" for kind, count in total.items())
        lines += [f"# slurm.conf: NodeName={node} Gres={gres}"]
        lines += [f"# gres.conf: NodeName={node} {line}" for line in node_lines]
    return "\n".join([f"# slurm.conf: GresTypes={','.join(sorted(kinds))}", *lines, *commands, ""])


def _list_nodes(plan: Plan, name: str, source: str, gpus_per_node: int | None) -> dict[str, list[NodeGpu]]:
    """Return the GPUs of each node in the order of their indexes."""
    numbered = enumerate(plan.deployment.gpus)
    lengths = plan.details.get(GROUPS_PER_GPU) or [1] * len(plan.deployment.gpus)
    gpu_groups = [groups for length in lengths if (groups := tuple(itertools.islice(numbered, length)))]
    if not gpu_groups:
        raise ConfigError(f"{source}: has no GPU; export a plan with GPUs")
    if gpus_per_node is not None and gpus_per_node < 1:
        raise ConfigError(f"--gpus-per-node {gpus_per_node}: must be at least 1; write the number of GPUs of a node")
    indexes = _list_indexes([groups[0][1] for groups in gpu_groups], source)
    per_node = gpus_per_node or max(indexes) + 1
    nodes: dict[str, list[NodeGpu]] = defaultdict(list)
    for index, groups in sorted(zip(indexes, gpu_groups, strict=True), key=operator.itemgetter(0)):
        node, device = divmod(index, per_node)
        nodes[name if max(indexes) < per_node else f"{name}-{node + 1}"].append(NodeGpu(device, groups))
    return nodes


def _list_indexes(gpus: Sequence[Gpu], source: str) -> list[int]:
    """Return the index of each GPU: its id, or the lowest unused index."""
    for gpu in gpus:
        if gpu.id is not None and not re.fullmatch(r"[0-9]{1,9}", gpu.id):
            raise ConfigError(
                f"{source}: id {gpu.id!r} is not a GPU index, which this format needs; use indexes as ids in the plan, "
                "or no ids"
            )
    indexes = [int(gpu.id) for gpu in gpus if gpu.id is not None]
    if len(set(indexes)) < len(indexes):
        raise ConfigError(f"{source}: two GPUs have the same index; use a different index for each GPU")
    free = (number for number in itertools.count() if number not in indexes)
    return [next(free) if gpu.id is None else int(gpu.id) for gpu in gpus]


def _name_type(gpu: Gpu) -> str:
    """Return the name that Slurm detects for an undivided GPU."""
    return re.sub(r"\s+", "_", mig_table.list_products(gpu.model)[0].lower())


@dataclass(frozen=True, slots=True)
class Request:
    """A job's request of a kind of resource, with the words of its command."""

    kind: str
    count: int
    words: tuple[str, ...]


def _list_requests(number: int, gpu: Gpu, rates: Mapping[tuple[int, int], float], source: str) -> Iterator[Request]:
    """Yield the jobs of a group: one per instance or service, or one per process with an MPS share."""
    for position, instance in enumerate(gpu.instances):
        kind, type_name, count, copies, job = _GPU, instance.profile or _name_type(gpu), 1, 1, instance
        if "+" in type_name:
            raise ConfigError(
                f"{source}: Slurm does not tell {type_name} from {type_name.partition('+')[0]}; plan without it"
            )
        if instance.profile is None and instance.share_pct is not None:
            kind, type_name, count = _MPS, "", max(1, math.floor(instance.share_pct))
            copies, job = instance.processes, replace(instance, processes=1, share_pct=None)  # Slurm sets the share
        elif instance.profile is None and len(gpu.instances) > 1:
            if gpu.mode == "mps":
                raise ConfigError(
                    f"{source}: {instance.service} shares a GPU under MPS without share_pct, which Slurm needs; plan "
                    "with --modes mps_percent, or use --as dra"
                )
            kind, type_name = _SHARD, ""
        variables = list_variables(job, rates.get((number, position)))
        label = make_label(instance.service)
        words = (
            f"--job-name={label}",
            f"--gres={':'.join(filter(None, (kind, type_name, str(count))))}",
            f"--export={','.join(['ALL', *(f'{name}={text}' for name, text in variables.items())])}",
            f"{label}.sh",
        )
        yield from itertools.repeat(Request(kind, count, words), copies)


def _submit(groups: Sequence[Sequence[Request]]) -> Iterator[str]:
    """Yield the commands for a GPU; the jobs of a group begin when those of the group before have ended."""
    for turn, group in enumerate(groups):
        if len(groups) == 1:
            yield from (shlex.join(["sbatch", *request.words]) for request in group)
            continue
        yield "previous=$jobs jobs=" if turn else "jobs="
        option = " --dependency=afterany$previous" if turn else ""
        yield from (f"jobs=$jobs:$(sbatch --parsable{option} {shlex.join(request.words)})" for request in group)
