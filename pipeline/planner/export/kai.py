"""A plan as pods of the KAI scheduler: a Deployment for each service on each kind of instance or part of a GPU.

A MIG instance or an undivided GPU is a resource of NVIDIA's device plugin. Services that share an undivided GPU request
their peak memory, by the annotation `gpu-memory` or `gpu-fraction`; KAI divides a GPU by memory only. Source:
github.com/kai-scheduler/KAI-Scheduler, docs/gpu-sharing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import yaml

from pipeline.base.domain import mig_table
from pipeline.base.system.errors import ConfigError
from pipeline.planner.deployment import Plan
from pipeline.planner.export import pods
from pipeline.planner.export.kubernetes import name_resource
from pipeline.planner.export.pods import PodSet

MEMORY, FRACTION = SHARES = ("memory", "fraction")
"""Requests of a part of a GPU: `gpu-memory` in MiB, or `gpu-fraction` of the GPU's memory."""
QUEUE = "default-queue"
_QUEUE_LABEL, _SCHEDULER = "kai.scheduler/queue", "kai-scheduler"
_PIPES = "/tmp/nvidia-mps"  # noqa: S108  # where KAI's guide lets the MPS daemon of the node listen
_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_MEMORY, _FRACTION, _DEVICES = "gpu-memory", "gpu-fraction", "gpu-fraction-num-devices"
_WHOLE_NUMBER = re.compile(r"0*[1-9][0-9]*")
_DECIMAL = re.compile(r"[0-9]+(\.[0-9]*)?|\.[0-9]+")


def text_of(plan: Plan, name: str, source: str, images: Mapping[str, str], queue: str, share_by: str) -> str:
    """Return the manifests as one stream of YAML; `share_by` is one of `SHARES`.

    Raises:
        ConfigError: KAI cannot express the plan, or a service has no image or no measured memory.
    """
    manifests = []
    for pod_set in pods.list_pods(plan, pods.KAI, source):
        manifest = _make_deployment(pod_set, name, source, images, queue, share_by)
        check_pod(manifest["spec"]["template"], pod_set.label)
        manifests.append(manifest)
    return yaml.safe_dump_all(manifests, sort_keys=False)


def check_pod(template: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError if KAI would refuse the queue, the scheduler or the annotations of a pod template."""
    metadata, spec = template["metadata"], template["spec"]
    queue, notes = metadata.get("labels", {}).get(_QUEUE_LABEL), metadata.get("annotations", {})
    if not isinstance(queue, str) or not _LABEL.fullmatch(queue):
        raise ConfigError(f"{where}: {queue!r} is not the name of a queue; use letters, digits, '-', '_' and '.'")
    if spec.get("schedulerName") != _SCHEDULER:
        raise ConfigError(f"{where}: schedulerName is {spec.get('schedulerName')!r}; write {_SCHEDULER}")
    if wrong := [key for key, text in notes.items() if not isinstance(text, str)]:
        raise ConfigError(f"{where}: annotation {wrong[0]} is not a text; write it in quotes")
    if _MEMORY in notes and _FRACTION in notes:
        raise ConfigError(f"{where}: has {_MEMORY} and {_FRACTION}; write one of them")
    if _MEMORY in notes and not _WHOLE_NUMBER.fullmatch(notes[_MEMORY]):
        raise ConfigError(f"{where}: {_MEMORY} is {notes[_MEMORY]!r}; write a whole number of MiB above 0")
    if _FRACTION in notes and not (_DECIMAL.fullmatch(notes[_FRACTION]) and 0 < float(notes[_FRACTION]) < 1):
        raise ConfigError(
            f"{where}: {_FRACTION} is {notes[_FRACTION]!r}; write a number between 0 and 1, or request nvidia.com/gpu"
        )
    has_part = _MEMORY in notes or _FRACTION in notes
    if _DEVICES in notes and not (has_part and _WHOLE_NUMBER.fullmatch(notes[_DEVICES])):
        raise ConfigError(f"{where}: {_DEVICES} needs {_MEMORY} or {_FRACTION}, and a whole number above 0; correct it")
    devices = [
        resource
        for container in spec["containers"]
        for resource in container.get("resources", {}).get("limits", {})
        if resource.startswith("nvidia.com/")
    ]
    if has_part and devices:
        raise ConfigError(f"{where}: requests {devices[0]} and a part of a GPU; remove one of them")
    if not has_part and not devices:
        raise ConfigError(f"{where}: requests no GPU; add a limit or {_MEMORY}")


def _make_deployment(
    pod_set: PodSet, plan: str, source: str, images: Mapping[str, str], queue: str, share_by: str
) -> dict[str, Any]:
    (container,) = pod_set.containers
    spec: dict[str, Any] = {"schedulerName": _SCHEDULER}
    labels = {_QUEUE_LABEL: queue}
    if not pod_set.is_shared:
        resources = {"limits": {name_resource(container.profile): "1"}}
        spec["containers"] = [pods.make_container(container, images, resources=resources)]
        return pods.make_deployment(pod_set, plan, spec, labels)
    if container.share_pct is not None:
        raise ConfigError(
            f"{source}: service {container.service} has share_pct={container.share_pct:g} of a shared GPU, but KAI "
            "divides a GPU by memory only; use --as dra"
        )
    made_container = pods.make_container(container, images)
    if pod_set.mode == "mps":
        made_container["env"].append({"name": "CUDA_MPS_PIPE_DIRECTORY", "value": _PIPES})
        made_container["volumeMounts"] = [{"name": "mps", "mountPath": _PIPES}]
        spec["volumes"] = [{"name": "mps", "hostPath": {"path": _PIPES, "type": "Directory"}}]
    spec["containers"] = [made_container]
    return pods.make_deployment(pod_set, plan, spec, labels, _request_part(pod_set, source, share_by))


def _request_part(pod_set: PodSet, source: str, share_by: str) -> dict[str, str]:
    (container,) = pod_set.containers
    if container.memory_mib is None:
        raise ConfigError(
            f"{source}: service {container.service} shares a GPU but has no memory_mib, which KAI needs; plan with a "
            "profile that has memory_mib"
        )
    if share_by == MEMORY:
        return {_MEMORY: str(math.ceil(container.memory_mib))}
    model = mig_table.models().get(mig_table.find_model_name(pod_set.model))
    if model is None:
        raise ConfigError(f"{source}: the memory of {pod_set.model} is unknown; use --share-by memory")
    return {_FRACTION: f"{math.ceil(1000 * container.memory_mib / model.capacity_mib) / 1000:g}"}
