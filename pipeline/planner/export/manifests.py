"""A plan as manifests of Kubernetes.

`kubernetes` and `kai` have a Deployment for each service on each kind of instance, with a pod for each instance. `dra`
(dynamic resource allocation) has a claim template and a Deployment for each kind of GPU, and a pod for each GPU with a
container for each instance, because only the devices of one claim can be bound to one GPU, and a claim of a template
belongs to one pod.

The user's container reads the plan from environment variables: `PROCESSES`, `BATCH_SIZE`, and `RATE_PER_S` of each
process. Under `kubernetes` and `kai`, a pod requests its instance or undivided GPU as a resource of NVIDIA's device
plugin with the strategy `mixed`.

Sources: github.com/NVIDIA/k8s-dra-driver-gpu, api/nvidia.com/resource/v1beta1; github.com/kai-scheduler/KAI-Scheduler,
docs/gpu-sharing.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from pipeline.base.domain import mig_table
from pipeline.base.domain.sharing_modes import PlannedAs
from pipeline.base.system.errors import ConfigError
from pipeline.planner.deployment import Instance, Plan
from pipeline.planner.export.experiment import deal_rates

KUBERNETES, DRA, KAI = FORMATS = ("kubernetes", "dra", "kai")
"""The exports with pods."""
INTERVALS = ("Default", "Short", "Medium", "Long")
"""Lengths of a time slice that the DRA driver offers."""
MEMORY, FRACTION = SHARES = ("memory", "fraction")
"""KAI's requests of a part of a GPU: `gpu-memory` in MiB, or `gpu-fraction` of the GPU's memory."""
QUEUE = "default-queue"

_LONGEST = 63  # characters of a label (RFC 1123)
_APP, _PLAN = "app.kubernetes.io/name", "app.kubernetes.io/part-of"
_GPU_CLASS, _MIG_CLASS = "gpu.nvidia.com", "mig.nvidia.com"
_CLAIM = _WHOLE_GPU = "gpu"
_TIME_SLICING = "TimeSlicing"
_QUEUE_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_PIPES = "/tmp/nvidia-mps"  # noqa: S108  # where KAI's guide lets the MPS daemon of the node listen


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOptions:
    """The options of the exports with pods.

    Attributes:
        images: container images by service; "" is for all other services.
        interval: length of the time slices of `dra`; `None` for the default.
        queue: queue of the pods of `kai`.
        share_by: how `kai` requests a part of a GPU, one of `SHARES`.
    """

    images: Mapping[str, str]
    interval: str | None = None
    queue: str = QUEUE
    share_by: str = MEMORY


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
    labels = _make_unique(_name_pods(kind, *key[:3]) for key in counts)
    return [
        PodSet(label=label, replicas=replicas, model=model, mode=mode, containers=containers, is_shared=is_shared)
        for label, ((model, mode, containers, is_shared), replicas) in zip(labels, counts.items(), strict=True)
    ]


def format_pods(plan: Plan, kind: str, name: str, source: str, options: PodOptions) -> str:
    """Return the manifests of an export with pods as one stream of YAML; `name` labels all of them.

    Raises:
        ConfigError: the format cannot express the plan, a service has no image, or an option has no effect or is wrong.
    """
    manifests = []
    for pods in list_pods(plan, kind, source):
        if kind == DRA:
            manifests.append(_make_claim_template(pods, name, options.interval or INTERVALS[0]))
        manifests.append(_make_deployment(pods, kind, name, source, options))
    if options.interval is not None and not any(_TIME_SLICING in str(template) for template in manifests[::2]):
        raise ConfigError(f"--time-slice {options.interval}: {source} has no GPU with time slices; remove the option")
    return yaml.safe_dump_all(manifests, sort_keys=False)


def _name_pods(kind: str, model: str, mode: str, containers: Sequence[Container]) -> str:
    if kind == DRA:
        return "-".join([model, mode, *(container.profile or container.service for container in containers)])
    (container,) = containers
    parts = [container.service, container.profile or "gpu", f"{container.processes}x"]
    return "-".join([*parts, f"b{container.batch}"] if container.batch else parts)


def make_label(text: str, room: int = 0) -> str:
    """Return a valid label that resembles the text, with room for so many more characters."""
    label = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[: _LONGEST - room].strip("-")
    return label or "plan"


def _make_unique(names: Iterable[str]) -> Iterator[str]:
    """Yield a label for each name; equal labels are numbered from the second on."""
    counts: Counter[str] = Counter()
    for label in (make_label(name, room=4) for name in names):
        counts[label] += 1
        yield label if counts[label] == 1 else f"{label}-{counts[label]}"


def _make_deployment(pods: PodSet, kind: str, plan: str, source: str, options: PodOptions) -> dict[str, Any]:
    """Return the Deployment of equal pods."""
    labels = {_APP: pods.label, _PLAN: make_label(plan)}
    annotations: dict[str, str] = {}
    spec: dict[str, Any] = {}
    if kind == KAI:
        if not _QUEUE_NAME.fullmatch(options.queue):
            raise ConfigError(
                f"{pods.label}: {options.queue!r} is not the name of a queue; use letters, digits, '-', '_' and '.'"
            )
        labels["kai.scheduler/queue"] = options.queue
        spec["schedulerName"] = "kai-scheduler"
        annotations = _request_part(pods, source, options.share_by) if pods.is_shared else {}
        if annotations and pods.mode == "mps":
            spec["volumes"] = [{"name": "mps", "hostPath": {"path": _PIPES, "type": "Directory"}}]
    services = [container.service for container in pods.containers]
    names = _make_unique(services) if kind == DRA else map(make_label, services)
    spec["containers"] = [
        _make_container(container, name, options.images) | _request_device(pods, number, kind)
        for number, (container, name) in enumerate(zip(pods.containers, names, strict=True))
    ]
    for container in spec["containers"] if "volumes" in spec else ():
        container["env"].append({"name": "CUDA_MPS_PIPE_DIRECTORY", "value": _PIPES})
        container["volumeMounts"] = [{"name": "mps", "mountPath": _PIPES}]
    if kind == DRA:
        spec["resourceClaims"] = [{"name": _CLAIM, "resourceClaimTemplateName": pods.label}]
    template_metadata = {"labels": {**labels}} | ({"annotations": annotations} if annotations else {})
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": pods.label, "labels": {**labels}},
        "spec": {
            "replicas": pods.replicas,
            "selector": {"matchLabels": {_APP: pods.label}},
            "template": {"metadata": template_metadata, "spec": spec},
        },
    }


def list_variables(service: Container | Instance, rate_per_s: float | None) -> dict[str, str]:
    """Return the environment variables from which a container or job reads the plan."""
    figures = {
        "PROCESSES": service.processes,
        "BATCH_SIZE": service.batch,
        "RATE_PER_S": rate_per_s,
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": service.share_pct,
    }
    return {name: f"{figure:g}" for name, figure in figures.items() if figure is not None}


def _make_container(container: Container, name: str, images: Mapping[str, str]) -> dict[str, Any]:
    """Return a container, which reads the plan from environment variables; ConfigError without an image."""
    image = images.get(container.service, images.get(""))
    if image is None:
        raise ConfigError(
            f"service {container.service} has no image; add --image IMAGE or --image {container.service}=IMAGE"
        )
    env = [{"name": key, "value": text} for key, text in list_variables(container, container.rate_per_s).items()]
    return {"name": name, "image": image, "env": env}


def _request_device(pods: PodSet, number: int, kind: str) -> dict[str, Any]:
    """Return the resources of a container; none if the pod requests a part of a GPU by annotations."""
    if kind == DRA:
        request = _name_request(number) if pods.mode == "mig" else _WHOLE_GPU
        return {"resources": {"claims": [{"name": _CLAIM, "request": request}]}}
    profile = pods.containers[number].profile
    # The device plugin writes `1g.10gb.me` for `1g.10gb+me`.
    resource = "nvidia.com/gpu" if profile is None else f"nvidia.com/mig-{profile.replace('+', '.')}"
    return {} if pods.is_shared else {"resources": {"limits": {resource: "1"}}}


def _request_part(pods: PodSet, source: str, share_by: str) -> dict[str, str]:
    """Return the annotation by which KAI divides a GPU: the memory of the service, or its share of the GPU's memory."""
    (container,) = pods.containers
    if container.share_pct is not None:
        raise ConfigError(
            f"{source}: service {container.service} has share_pct={container.share_pct:g} of a shared GPU, but KAI "
            "divides a GPU by memory only; use --as dra"
        )
    if not container.memory_mib:
        raise ConfigError(
            f"{source}: service {container.service} shares a GPU but has no memory_mib, which KAI needs; plan with a "
            "profile that has memory_mib"
        )
    if share_by == MEMORY:
        return {"gpu-memory": str(math.ceil(container.memory_mib))}
    model = mig_table.models().get(mig_table.find_model_name(pods.model))
    if model is None:
        raise ConfigError(f"{source}: the memory of {pods.model} is unknown; use --share-by memory")
    share = math.ceil(1000 * container.memory_mib / model.capacity_mib) / 1000
    if share >= 1:
        raise ConfigError(
            f"{pods.label}: gpu-fraction is '{share:g}'; write a number between 0 and 1, or request nvidia.com/gpu"
        )
    return {"gpu-fraction": f"{share:g}"}


def _make_claim_template(pods: PodSet, plan: str, interval: str) -> dict[str, Any]:
    """Return the claim of a GPU: an instance for each container, all on one GPU, or one undivided GPU for all."""
    configs: list[dict[str, Any]] = []
    if pods.mode == "mig":
        requests = [
            _make_request(_name_request(number), _MIG_CLASS, pods.model, container.profile)
            for number, container in enumerate(pods.containers)
        ]
        for number, container in enumerate(pods.containers):
            if container.processes > 1 or container.share_pct is not None:
                configs.append(_make_config("MigDeviceConfig", _name_request(number), _share_by_mps([container])))
    else:
        requests = [_make_request(_WHOLE_GPU, _GPU_CLASS, pods.model, None)]
        if pods.mode == "mps":
            configs.append(_make_config("GpuConfig", _WHOLE_GPU, _share_by_mps(pods.containers)))
        elif sum(container.processes for container in pods.containers) > 1:
            sharing = {"strategy": _TIME_SLICING, "timeSlicingConfig": {"interval": interval}}
            configs.append(_make_config("GpuConfig", _WHOLE_GPU, sharing))
    devices: dict[str, Any] = {"requests": requests}
    if len(requests) > 1:
        devices["constraints"] = [{"requests": [], "matchAttribute": f"{_GPU_CLASS}/parentUUID"}]
    if configs:
        devices["config"] = configs
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": pods.label, "labels": {_PLAN: make_label(plan)}},
        "spec": {"spec": {"devices": devices}},
    }


def _name_request(number: int) -> str:
    return f"mig-{number}"


def _make_request(name: str, device_class: str, model: str, profile: str | None) -> dict[str, Any]:
    attributes = f"device.attributes['{_GPU_CLASS}']"
    # Profiles of several models have the same name, so that a request without the model could get another one.
    products = ", ".join(f"'{product}'" for product in mig_table.list_products(model))
    expression = f"{attributes}.productName in [{products}]"
    if profile is not None:
        expression = f"{attributes}.profile == '{profile}' && {expression}"
    exactly = {"deviceClassName": device_class, "selectors": [{"cel": {"expression": expression}}]}
    return {"name": name, "exactly": exactly}


def _share_by_mps(containers: Sequence[Container]) -> dict[str, Any]:
    """Return the settings of an MPS daemon, which limits its clients; each container's variable may limit it further.

    The driver takes whole percentages, and one for all clients.
    """
    shares = [container.share_pct for container in containers]
    settings = {} if None in shares else {"defaultActiveThreadPercentage": math.ceil(max(filter(None, shares)))}
    return {"strategy": "MPS", "mpsConfig": settings}


def _make_config(kind: str, request: str, sharing: dict[str, Any]) -> dict[str, Any]:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, "sharing": sharing}
    return {"requests": [request], "opaque": {"driver": _GPU_CLASS, "parameters": parameters}}
