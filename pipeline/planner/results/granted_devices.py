"""The devices that pods got, read from `nvidia-smi -L`, and compared with the pods of an exported plan."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pipeline.base.domain import mig_table
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import format_count
from pipeline.planner.export.manifests import Container, PodSet

_GPU = re.compile(r"GPU +[0-9]+: (?P<model>.+) \(UUID: (?P<uuid>GPU-[^)\s]+)\)")
_MIG = re.compile(r"MIG (?P<profile>\S+) +Device +[0-9]+: \(UUID: (?P<uuid>MIG-[^)\s]+)\)")
_NOTHING = "No devices found"
_UNDIVIDED = "undivided GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedDevice:
    """A device that a pod got; `profile` is `None` for an undivided GPU, whose `uuid` is `gpu_uuid`."""

    model: str
    uuid: str
    gpu_uuid: str
    profile: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A pod's planned and granted devices; without differences it got what was planned."""

    pod: str
    planned: str
    granted: str
    differences: tuple[str, ...]


def read_listing(text: str, source: str) -> tuple[GrantedDevice, ...]:
    """Return the devices in the output of `nvidia-smi -L`; one that is listed for several containers occurs again.

    Raises:
        ConfigError: a line is not of this output, or there is no line.
    """
    lines = [
        (number, line.strip())
        for number, line in enumerate(text.splitlines(), start=1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not lines:
        raise ConfigError(f"{source}: is empty; write the output of `nvidia-smi -L` to it")
    gpus: list[tuple[re.Match[str], list[re.Match[str]]]] = []
    for number, line in lines:
        if gpu := _GPU.fullmatch(line):
            gpus.append((gpu, []))
        elif gpus and (instance := _MIG.fullmatch(line)):
            gpus[-1][1].append(instance)
        elif not line.startswith(_NOTHING):
            raise ConfigError(
                f"{source} row {number}: not a line of `nvidia-smi -L`: {line[:80]!r}; write its output only"
            )
    devices: list[GrantedDevice] = []
    for gpu, instances in gpus:
        for match in instances or [gpu]:
            profile = match["profile"] if instances else None
            devices.append(GrantedDevice(model=gpu["model"], uuid=match["uuid"], gpu_uuid=gpu["uuid"], profile=profile))
    return tuple(devices)


def compare(
    pod_sets: Sequence[PodSet], listings: Mapping[str, Sequence[GrantedDevice]], *, are_all_listed: bool
) -> tuple[list[Comparison], list[str]]:
    """Return the comparison of each pod, and the pods of the plan that are missing or too many.

    Args:
        pod_sets: the pods of the plan.
        listings: devices by name of the pod.
        are_all_listed: whether a planned pod without a listing is missing.

    Raises:
        ConfigError: a name does not begin with the label of a planned pod.
    """
    planned = {pod: _find_set(pod_sets, pod) for pod in listings}
    users: dict[str, list[str]] = defaultdict(list)
    for pod, devices in listings.items():
        for uuid in {device.uuid for device in devices}:
            users[uuid].append(pod)
    comparisons = []
    for pod, pod_set in planned.items():
        devices = listings[pod]
        differences = [*_list_differences(pod_set, devices), *_list_conflicts(pod, planned, listings, users)]
        wanted_kinds = [container.profile for container in _list_planned(pod_set)]
        comparisons.append(
            Comparison(
                pod=pod,
                planned=f"{_describe(wanted_kinds)} of {pod_set.model}",
                granted=_describe([device.profile for device in _without_repeats(devices)]),
                differences=tuple(differences),
            )
        )
    counts = Counter(pod_set.label for pod_set in planned.values())
    faults = [
        f"{pod_set.label}: {format_count(counts[pod_set.label], 'pod')}, planned {pod_set.replicas}"
        for pod_set in pod_sets
        if counts[pod_set.label] > pod_set.replicas or (are_all_listed and counts[pod_set.label] < pod_set.replicas)
    ]
    return comparisons, faults


def _find_set(pod_sets: Sequence[PodSet], pod: str) -> PodSet:
    fitting = [pod_set for pod_set in pod_sets if pod == pod_set.label or pod.startswith(f"{pod_set.label}-")]
    if not fitting:
        labels = ", ".join(pod_set.label for pod_set in pod_sets)
        raise ConfigError(f"pod {pod}: the plan has no such pod; its name must begin with one of {labels}")
    return max(fitting, key=lambda pod_set: len(pod_set.label))


def _list_planned(pod_set: PodSet) -> Sequence[Container]:
    """Return the containers that have a device to themselves; those of an undivided GPU share it."""
    return pod_set.containers if pod_set.mode == "mig" else pod_set.containers[:1]


def _without_repeats(devices: Sequence[GrantedDevice]) -> list[GrantedDevice]:
    return list({device.uuid: device for device in devices}.values())


def _describe(kinds: Sequence[str | None]) -> str:
    counts = Counter(_UNDIVIDED if kind is None else kind for kind in kinds)
    return ", ".join(kind if count == 1 else f"{count}x {kind}" for kind, count in counts.items()) or "nothing"


def _list_differences(pod_set: PodSet, devices: Sequence[GrantedDevice]) -> Iterator[str]:
    granted = _without_repeats(devices)
    kinds = Counter(container.profile for container in _list_planned(pod_set))
    granted_kinds = Counter(device.profile for device in granted)
    if absent := kinds - granted_kinds:
        yield f"did not get {_describe([*absent.elements()])}"
    if surplus := granted_kinds - kinds:
        yield f"got {_describe([*surplus.elements()])} that was not planned"
    for model in sorted({device.model for device in granted}):
        # Old drivers leave out the manufacturer.
        names = {mig_table.find_model_name(name) for name in (model, f"NVIDIA {model}")}
        if mig_table.find_model_name(pod_set.model) not in names:
            yield f"GPU is {model}, planned {pod_set.model}"
    gpus = {device.gpu_uuid for device in granted}
    if len(gpus) > 1:
        yield f"devices are on {len(gpus)} GPUs, planned on one"
    listed = Counter(device.uuid for device in devices if device.profile is not None)
    for uuid, count in listed.items():
        if count > 1:
            yield f"{count} containers got the same instance {uuid}"


def _list_conflicts(
    pod: str,
    planned: Mapping[str, PodSet],
    listings: Mapping[str, Sequence[GrantedDevice]],
    users: Mapping[str, Sequence[str]],
) -> Iterator[str]:
    """Yield the devices of a pod that other pods got too, except where the plan shares them."""
    for device in _without_repeats(listings[pod]):
        sharers = [
            user
            for user in users[device.uuid]
            if user != pod and not (device.profile is None and planned[user].is_shared and planned[pod].is_shared)
        ]
        if sharers:
            kind = "GPU" if device.profile is None else "instance"
            yield f"got the same {kind} as {', '.join(sharers)}: {device.uuid}"
    undivided = {device.uuid for device in listings[pod] if device.profile is None}
    for user, devices in listings.items():
        if user != pod and any(device.profile and device.gpu_uuid in undivided for device in devices):
            yield f"got the GPU on which {user} has an instance"
