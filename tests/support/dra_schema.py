"""Checks of resource claim templates: the types of `resource.k8s.io/v1` and of the parameters of NVIDIA's DRA driver.

Only the fields that the planner writes, and those of the driver's parameters, are known. The API server does not check
opaque parameters, so that without these checks an error appears only when a pod of the claim starts. Sources: the
documentation of `resource.k8s.io/v1`, and github.com/NVIDIA/k8s-dra-driver-gpu, api/nvidia.com/resource/v1beta1
(`sharing.go`, `validate.go`) and cmd/gpu-kubelet-plugin/deviceinfo.go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.base.domain import mig_table
from pipeline.base.system.errors import ConfigError
from pipeline.planner import input_files
from pipeline.prepare.mig import layouts, profiles

API_VERSION, PARAMETERS_VERSION = "resource.k8s.io/v1", "resource.nvidia.com/v1beta1"
DRIVER = "gpu.nvidia.com"
GPU_CLASS, MIG_CLASS = "gpu.nvidia.com", "mig.nvidia.com"
GPU_CONFIG, MIG_CONFIG = "GpuConfig", "MigDeviceConfig"
MPS, TIME_SLICING = "MPS", "TimeSlicing"
SAME_GPU = "gpu.nvidia.com/parentUUID"
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_MOST_REQUESTS = 32  # of a claim, in resource.k8s.io/v1
_QUANTITY = re.compile(r"([0-9]+)(Ki|Mi|Gi|Ti|k|M|G|T|)")
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_UNITS |= {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_PROFILE = re.compile(r"\.profile == '([^']*)'")
_PRODUCTS = re.compile(r"\.productName in \[([^]]*)\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cel:
    """An expression in the Common Expression Language."""

    expression: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """A condition on a device."""

    cel: Cel


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactRequest:
    """The device class, the conditions and the number of the requested devices."""

    deviceClassName: Literal["gpu.nvidia.com", "mig.nvidia.com"]
    selectors: tuple[Selector, ...] = ()
    allocationMode: Literal["ExactCount", "All"] = "ExactCount"
    count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """A named request, which containers and configurations refer to."""

    name: str
    exactly: ExactRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConstraint:
    """An attribute that the devices of these requests (of all requests, if none is listed) have in common."""

    matchAttribute: str
    requests: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSlicingConfig:
    """The length of a time slice."""

    interval: Literal["Default", "Short", "Medium", "Long"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MpsConfig:
    """The settings of the driver's MPS control daemon."""

    defaultActiveThreadPercentage: int | None = None
    defaultPinnedDeviceMemoryLimit: str | None = None
    defaultPerDevicePinnedMemoryLimit: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """The way in which containers share a device."""

    strategy: Literal["MPS", "TimeSlicing"]
    timeSlicingConfig: TimeSlicingConfig | None = None
    mpsConfig: MpsConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """The driver's own configuration of a device."""

    apiVersion: Literal["resource.nvidia.com/v1beta1"]
    kind: Literal["GpuConfig", "MigDeviceConfig"]
    sharing: Sharing | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Opaque:
    """Parameters that Kubernetes hands to the driver unread."""

    driver: Literal["gpu.nvidia.com"]
    parameters: Parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """The configuration of the devices of these requests (of all requests, if none is listed)."""

    opaque: Opaque
    requests: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceClaim:
    """The requests of a claim."""

    requests: tuple[DeviceRequest, ...]
    constraints: tuple[DeviceConstraint, ...] = ()
    config: tuple[DeviceConfig, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimSpec:
    """The spec of a claim."""

    devices: DeviceClaim


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSpec:
    """The spec of a template, which contains that of its claims."""

    spec: ClaimSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """The name and labels of an object."""

    name: str
    labels: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceClaimTemplate:
    """The template from which each pod gets its claim."""

    apiVersion: Literal["resource.k8s.io/v1"]
    kind: Literal["ResourceClaimTemplate"]
    metadata: Metadata
    spec: TemplateSpec


def check_template(raw: object, where: str) -> ResourceClaimTemplate:
    """Return a claim template as a record; ConfigError names the path of the first invalid field."""
    template = input_files.decode(ResourceClaimTemplate, raw, where)
    devices, path = template.spec.spec.devices, f"{where}: spec.spec.devices"
    _check_name(template.metadata.name, f"{where}: metadata.name")
    classes = {request.name: request.exactly.deviceClassName for request in devices.requests}
    if not 0 < len(devices.requests) <= _MOST_REQUESTS or len(classes) < len(devices.requests):
        raise ConfigError(
            f"{path}.requests: must be 1 to {_MOST_REQUESTS} requests with different names; rename or remove some"
        )
    for number, request in enumerate(devices.requests):
        _check_name(request.name, f"{path}.requests[{number}].name")
        if request.exactly.count == 0 or (request.exactly.allocationMode == "All" and request.exactly.count):
            raise ConfigError(f"{path}.requests[{number}].exactly.count: needs ExactCount and at least 1; remove it")
    for number, constraint in enumerate(devices.constraints):
        _check_references(constraint.requests, classes, f"{path}.constraints[{number}].requests")
        if constraint.matchAttribute != SAME_GPU:
            raise ConfigError(
                f"{path}.constraints[{number}].matchAttribute: must be {SAME_GPU}, not {constraint.matchAttribute}; "
                "correct it"
            )
    for number, config in enumerate(devices.config):
        _check_references(config.requests, classes, f"{path}.config[{number}].requests")
        used: set[str] = {classes[name] for name in config.requests or classes}
        _check_parameters(config.opaque.parameters, used, f"{path}.config[{number}].opaque.parameters")
    _check_profiles(devices, path)
    return template


def check_pod(spec: Mapping[str, Any], template: ResourceClaimTemplate, where: str) -> None:
    """Raise ConfigError unless each container uses a request of the template through a claim of the pod."""
    claims = {claim["name"]: claim.get("resourceClaimTemplateName") for claim in spec.get("resourceClaims", ())}
    names = {request.name for request in template.spec.spec.devices.requests}
    used = set()
    for container in spec["containers"]:
        for claim in container.get("resources", {}).get("claims", ()):
            if claims.get(claim["name"]) != template.metadata.name:
                raise ConfigError(
                    f"{where}: container {container['name']} uses claim {claim['name']}, which is not in "
                    f"resourceClaims with template {template.metadata.name}; correct one of them"
                )
            used.add(claim.get("request"))
    if used != names:
        raise ConfigError(
            f"{where}: containers use the requests {', '.join(sorted(map(str, used))) or 'none'}, the template has "
            f"{', '.join(sorted(names))}; use each request"
        )


def _check_name(name: str, where: str) -> None:
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{where}: must have only a-z, 0-9 and '-', and at most 63 characters, not {name!r}; rename it"
        )


def _check_references(requests: Sequence[str], known: Mapping[str, str], where: str) -> None:
    if unknown := [name for name in requests if name not in known]:
        raise ConfigError(f"{where}: no request is called {unknown[0]!r}; choose from {', '.join(known)}")


def _check_parameters(parameters: Parameters, classes: set[str], where: str) -> None:
    device_class = MIG_CLASS if parameters.kind == MIG_CONFIG else GPU_CLASS
    if classes != {device_class}:
        raise ConfigError(f"{where}.kind: {parameters.kind} is for devices of {device_class} only; use the other kind")
    sharing = parameters.sharing
    if sharing is None:
        return
    if sharing.strategy == MPS and sharing.timeSlicingConfig is not None:
        raise ConfigError(f"{where}.sharing.timeSlicingConfig: does not apply to strategy {MPS}; remove it")
    if sharing.strategy == TIME_SLICING and sharing.mpsConfig is not None:
        raise ConfigError(f"{where}.sharing.mpsConfig: does not apply to strategy {TIME_SLICING}; remove it")
    if parameters.kind == MIG_CONFIG and sharing.timeSlicingConfig is not None:
        raise ConfigError(f"{where}.sharing.timeSlicingConfig: {MIG_CONFIG} has no such field; remove it")
    mps = sharing.mpsConfig or MpsConfig()
    if (mps.defaultActiveThreadPercentage or 0) > 100:
        raise ConfigError(
            f"{where}.sharing.mpsConfig.defaultActiveThreadPercentage: must be at most 100, not "
            f"{mps.defaultActiveThreadPercentage}; write 100 for no limit"
        )
    for limit in (mps.defaultPinnedDeviceMemoryLimit, *(mps.defaultPerDevicePinnedMemoryLimit or {}).values()):
        quantity = None if limit is None else _QUANTITY.fullmatch(limit)
        if limit is not None and (quantity is None or int(quantity[1]) * _UNITS[quantity[2]] < 2**20):
            raise ConfigError(f"{where}.sharing.mpsConfig: memory limit {limit!r} is not at least 1Mi; write e.g. 10Gi")


def _check_profiles(devices: DeviceClaim, where: str) -> None:
    """Check that each model has the requested profiles, and that those of one GPU fit together."""
    by_product: dict[str, dict[str, str]] = {}
    for number, request in enumerate(devices.requests):
        expression = " && ".join(selector.cel.expression for selector in request.exactly.selectors)
        path = f"{where}.requests[{number}]"
        profile, products = _PROFILE.search(expression), _PRODUCTS.search(expression)
        if (profile is not None) != (request.exactly.deviceClassName == MIG_CLASS):
            raise ConfigError(f"{path}: a request of {MIG_CLASS}, and no other, selects a profile; correct its class")
        for product in re.findall(r"'([^']+)'", products[1]) if products is not None and profile is not None else ():
            try:
                layouts.resolve(profiles.load_model(product), profile[1] if profile else "")
            except ConfigError as error:
                raise ConfigError(f"{path}: {error}") from error
            by_product.setdefault(mig_table.find_model_name(product), {})[request.name] = profile[1] if profile else ""
    for constraint in devices.constraints:
        for product, requested in by_product.items():
            names = [requested[name] for name in constraint.requests or requested if name in requested]
            model = profiles.load_model(product)
            try:
                layouts.plan_layout(model, [layouts.resolve(model, name) for name in names])
            except ConfigError as error:
                raise ConfigError(f"{where}.requests: {error}") from error
