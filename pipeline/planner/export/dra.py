"""A plan for dynamic resource allocation (DRA): a claim template and a Deployment for each kind of GPU in the plan.

A pod stands for a GPU. Its claim requests an instance for each container, all with the same parent, or one undivided
GPU for all containers. Settings of MPS and of time slices are parameters of NVIDIA's DRA driver.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from pipeline.base.domain import mig_table
from pipeline.base.system.errors import ConfigError
from pipeline.planner.deployment import Plan
from pipeline.planner.export import pods
from pipeline.planner.export.pods import Container, PodSet

INTERVALS = ("Default", "Short", "Medium", "Long")
"""Lengths of a time slice that the driver offers."""

_DRIVER = "gpu.nvidia.com"
_CLAIM, _GPU = "gpu", "gpu"
_TIME_SLICING = "TimeSlicing"


def text_of(plan: Plan, name: str, source: str, images: Mapping[str, str], interval: str | None) -> str:
    """Return the manifests as one stream of YAML; `interval` is the length of the time slices.

    Raises:
        ConfigError: the plan has no service, a service has no image, or no GPU of the plan has time slices.
    """
    manifests = []
    has_time_slices = False
    for pod_set in pods.list_pods(plan, pods.DRA, source):
        template = _make_template(pod_set, name, interval or INTERVALS[0])
        has_time_slices |= _TIME_SLICING in str(template)
        manifests += [template, pods.make_deployment(pod_set, name, _make_pod_spec(pod_set, images))]
    if interval is not None and not has_time_slices:
        raise ConfigError(f"--time-slice {interval}: {source} has no GPU with time slices; remove the option")
    return yaml.safe_dump_all(manifests, sort_keys=False)


def _make_template(pod_set: PodSet, plan: str, interval: str) -> dict[str, Any]:
    if pod_set.mode == "mig":
        requests = [
            _make_request(_name_request(number), "mig.nvidia.com", pod_set.model, container.profile)
            for number, container in enumerate(pod_set.containers)
        ]
        configs = [
            _make_config("MigDeviceConfig", _name_request(number), _share_by_mps([container]))
            for number, container in enumerate(pod_set.containers)
            if container.processes > 1 or container.share_pct is not None
        ]
    else:
        requests = [_make_request(_GPU, "gpu.nvidia.com", pod_set.model, None)]
        configs = []
        if pod_set.mode == "mps":
            configs = [_make_config("GpuConfig", _GPU, _share_by_mps(pod_set.containers))]
        elif sum(container.processes for container in pod_set.containers) > 1:
            sharing = {"strategy": _TIME_SLICING, "timeSlicingConfig": {"interval": interval}}
            configs = [_make_config("GpuConfig", _GPU, sharing)]
    devices: dict[str, Any] = {"requests": requests}
    if len(requests) > 1:
        devices["constraints"] = [{"requests": [], "matchAttribute": "gpu.nvidia.com/parentUUID"}]
    if configs:
        devices["config"] = configs
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": pod_set.label, "labels": {"app.kubernetes.io/part-of": pods.make_label(plan)}},
        "spec": {"spec": {"devices": devices}},
    }


def _make_request(name: str, device_class: str, model: str, profile: str | None) -> dict[str, Any]:
    attributes = f"device.attributes['{_DRIVER}']"
    # Profiles of several models have the same name, so that a request without the model could get another one.
    products = ", ".join(f"'{product}'" for product in mig_table.list_products(model))
    expression = f"{attributes}.productName in [{products}]"
    if profile is not None:
        expression = f"{attributes}.profile == '{profile}' && {expression}"
    exactly = {"deviceClassName": device_class, "selectors": [{"cel": {"expression": expression}}]}
    return {"name": name, "exactly": exactly}


def _name_request(number: int) -> str:
    return f"mig-{number}"


def _share_by_mps(containers: Sequence[Container]) -> dict[str, Any]:
    """Return the settings of an MPS daemon, which limits its clients; each container's variable may limit it further.

    The driver takes whole percentages, and one for all clients.
    """
    shares = [container.share_pct for container in containers]
    settings = {} if None in shares else {"defaultActiveThreadPercentage": math.ceil(max(filter(None, shares)))}
    return {"strategy": "MPS", "mpsConfig": settings}


def _make_config(kind: str, request: str, sharing: dict[str, Any]) -> dict[str, Any]:
    parameters = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind, "sharing": sharing}
    return {"requests": [request], "opaque": {"driver": _DRIVER, "parameters": parameters}}


def _make_pod_spec(pod_set: PodSet, images: Mapping[str, str]) -> dict[str, Any]:
    names: Counter[str] = Counter()
    containers = []
    for number, container in enumerate(pod_set.containers):
        label = pods.make_label(container.service, room=4)
        names[label] += 1
        claim = {"name": _CLAIM, "request": _name_request(number) if pod_set.mode == "mig" else _GPU}
        containers.append(
            pods.make_container(
                container,
                images,
                label if names[label] == 1 else f"{label}-{names[label]}",
                resources={"claims": [claim]},
            )
        )
    claims = [{"name": _CLAIM, "resourceClaimTemplateName": pod_set.label}]
    return {"containers": containers, "resourceClaims": claims}
