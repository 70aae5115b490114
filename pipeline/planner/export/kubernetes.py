"""A plan as Kubernetes manifests: a Deployment for each service on each kind of instance, with a pod per instance.

A pod requests its instance as a resource of NVIDIA's device plugin under the strategy `mixed`:
`nvidia.com/mig-3g.40gb`, or `nvidia.com/gpu` for an undivided GPU. The user's container reads the plan from environment
variables: `PROCESSES`, `BATCH_SIZE`, and `RATE_PER_S` of each process.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import yaml

from pipeline.base.system.errors import ConfigError
from pipeline.planner.deployment import Plan
from pipeline.planner.export.experiment import deal_rates

_LONGEST = 63  # characters of a label (RFC 1123)
_APP, _PLAN = "app.kubernetes.io/name", "app.kubernetes.io/part-of"


class _Kind(NamedTuple):
    """The properties that equal pods share."""

    service: str
    profile: str | None
    processes: int
    batch: int | None
    share_pct: float | None
    rate_per_s: float | None


def text_of(plan: Plan, name: str, source: str, images: Mapping[str, str]) -> str:
    """Return the manifests as one stream of YAML; `images` are by service; "" is for all other services.

    Raises:
        ConfigError: the plan has no service, a service has no image, or an undivided GPU has several services.
    """
    rates = deal_rates(plan)
    pods: Counter[_Kind] = Counter()
    for number, gpu in enumerate(plan.deployment.gpus):
        if gpu.mode != "mig" and len(gpu.instances) > 1:
            raise ConfigError(
                f"{source}: gpus[{number}] has {len(gpu.instances)} services but no MIG instances, which Kubernetes "
                "cannot express; plan with MIG"
            )
        for position, instance in enumerate(gpu.instances):
            rate = rates.get((number, position))
            pods[
                _Kind(instance.service, instance.profile, instance.processes, instance.batch, instance.share_pct, rate)
            ] += 1
    if not pods:
        raise ConfigError(f"{source}: the plan has no service on any GPU; export another plan")
    names: Counter[str] = Counter()
    manifests = []
    for kind, replicas in pods.items():
        image = images.get(kind.service, images.get(""))
        if image is None:
            raise ConfigError(f"service {kind.service} has no image; add --image IMAGE or --image {kind.service}=IMAGE")
        words = [kind.service, kind.profile or "gpu", f"{kind.processes}x", *([f"b{kind.batch}"] if kind.batch else [])]
        label = _label("-".join(words), room=4)
        names[label] += 1
        label = label if names[label] == 1 else f"{label}-{names[label]}"
        manifests.append(_deployment(kind, replicas, label, _label(name), image))
    return yaml.safe_dump_all(manifests, sort_keys=False)


def _label(text: str, room: int = 0) -> str:
    label = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[: _LONGEST - room].strip("-")
    return label or "plan"


def _deployment(kind: _Kind, replicas: int, label: str, plan: str, image: str) -> dict[str, Any]:
    # The device plugin writes `1g.10gb.me` for `1g.10gb+me`.
    resource = "nvidia.com/gpu" if kind.profile is None else f"nvidia.com/mig-{kind.profile.replace('+', '.')}"
    variables = {
        "PROCESSES": kind.processes,
        "BATCH_SIZE": kind.batch,
        "RATE_PER_S": kind.rate_per_s,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": kind.share_pct,
    }
    labels = {_APP: label, _PLAN: plan}
    container = {
        "name": _label(kind.service),
        "image": image,
        "env": [{"name": key, "value": f"{figure:g}"} for key, figure in variables.items() if figure is not None],
        "resources": {"limits": {resource: "1"}},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": label, "labels": {**labels}},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {_APP: label}},
            "template": {"metadata": {"labels": {**labels}}, "spec": {"containers": [container]}},
        },
    }
