"""The pods of a plan: sets of equal pods, with a label each, as the exports for Kubernetes write them.

`kubernetes` and `kai` have a pod for each instance. `dra` has a pod for each GPU with a container for each instance,
because only the devices of one claim can be bound to one GPU, and a claim of a template belongs to one pod.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.base.domain.sharing_modes import PlannedAs
from pipeline.base.system.errors import ConfigError
from pipeline.planner.deployment import Plan
from pipeline.planner.export.experiment import deal_rates

KUBERNETES, DRA, KAI = FORMATS = ("kubernetes", "dra", "kai")
"""The exports with pods."""
_LONGEST = 63  # characters of a label (RFC 1123)
_APP, _PLAN = "app.kubernetes.io/name", "app.kubernetes.io/part-of"


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """A service on an instance or an undivided GPU; `rate_per_s` is that of each process."""

    service: str
    profile: str | None
    processes: int
    batch: int | None
    share_pct: float | None
    rate_per_s: float | None
    memory_mib: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSet:
    """Equal pods.

    Attributes:
        label: name of the Deployment; the names of its pods begin with it.
        model: GPU model of the plan.
        mode: sharing mode of the GPU.
        is_shared: whether other pods of the plan use the same undivided GPU.
    """

    label: str
    replicas: int
    model: str
    mode: PlannedAs
    containers: tuple[Container, ...]
    is_shared: bool


def list_pods(plan: Plan, kind: str, source: str) -> list[PodSet]:
    """Return the sets of equal pods in the plan's order, with unique labels.

    Raises:
        ConfigError: the plan has no service, or services share a GPU in a way that the format lacks.
    """
    counts: Counter[tuple[str, PlannedAs, tuple[Container, ...], bool]] = Counter()
    rates = deal_rates(plan)
    for number, gpu in enumerate(plan.deployment.gpus):
        is_shared = gpu.mode != "mig" and len(gpu.instances) > 1
        if is_shared and kind == KUBERNETES:
            raise ConfigError(
                f"{source}: gpus[{number}] has {len(gpu.instances)} services but no MIG instances, which Kubernetes "
                "cannot express; plan with MIG, or use --as dra or --as kai"
            )
        containers = [
            Container(
                service=instance.service,
                profile=instance.profile,
                processes=instance.processes,
                batch=instance.batch,
                share_pct=instance.share_pct,
                rate_per_s=rates.get((number, position)),
                # Only the pods of KAI request memory; elsewhere, pods that differ in it alone are equal.
                memory_mib=instance.memory_mib if kind == KAI and is_shared else None,
            )
            for position, instance in enumerate(gpu.instances)
        ]
        if kind == DRA:
            counts.update([(gpu.model, gpu.mode, tuple(containers), False)] if containers else [])
        else:
            counts.update((gpu.model, gpu.mode, (container,), is_shared) for container in containers)
    if not counts:
        raise ConfigError(f"{source}: the plan has no service on any GPU; export another plan")
    labels = _name_pods([*counts], kind)
    return [
        PodSet(label=label, replicas=replicas, model=model, mode=mode, containers=containers, is_shared=is_shared)
        for label, ((model, mode, containers, is_shared), replicas) in zip(labels, counts.items(), strict=True)
    ]


def _name_pods(sets: list[tuple[str, PlannedAs, tuple[Container, ...], bool]], kind: str) -> Iterator[str]:
    names: Counter[str] = Counter()
    for model, mode, containers, _ in sets:
        if kind == DRA:
            words = [model, mode, *(container.profile or container.service for container in containers)]
        else:
            (container,) = containers
            words = [container.service, container.profile or "gpu", f"{container.processes}x"]
            words += [f"b{container.batch}"] if container.batch else []
        label = make_label("-".join(words), room=4)
        names[label] += 1
        yield label if names[label] == 1 else f"{label}-{names[label]}"


def make_label(text: str, room: int = 0) -> str:
    """Return a valid label that resembles the text, with room for so many more characters."""
    label = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[: _LONGEST - room].strip("-")
    return label or "plan"


def make_container(container: Container, images: Mapping[str, str], name: str = "", **keys: Any) -> dict[str, Any]:
    """Return a container, which reads the plan from environment variables; ConfigError without an image."""
    image = images.get(container.service, images.get(""))
    if image is None:
        raise ConfigError(
            f"service {container.service} has no image; add --image IMAGE or --image {container.service}=IMAGE"
        )
    variables = {
        "PROCESSES": container.processes,
        "BATCH_SIZE": container.batch,
        "RATE_PER_S": container.rate_per_s,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": container.share_pct,
    }
    return {
        "name": name or make_label(container.service),
        "image": image,
        "env": [{"name": key, "value": f"{figure:g}"} for key, figure in variables.items() if figure is not None],
        **keys,
    }


def make_deployment(
    pods: PodSet,
    plan: str,
    spec: dict[str, Any],
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the Deployment of equal pods with this pod spec; `plan` labels all of them."""
    common = {_APP: pods.label, _PLAN: make_label(plan), **(labels or {})}
    metadata: dict[str, Any] = {"labels": {**common}}
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": pods.label, "labels": {**common}},
        "spec": {
            "replicas": pods.replicas,
            "selector": {"matchLabels": {_APP: pods.label}},
            "template": {"metadata": metadata, "spec": spec},
        },
    }
