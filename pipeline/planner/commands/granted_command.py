"""`python -m pipeline.planner granted`: the GPUs that each pod got, compared with the exported plan."""

from __future__ import annotations

import argparse
import dataclasses
import socket
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from pipeline.base.domain.records import Device
from pipeline.base.system.command_parser import CommandAnswer
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import align_table, format_count
from pipeline.planner import input_files
from pipeline.planner.export import pods
from pipeline.planner.profile_table import SIMULATED
from pipeline.planner.results import granted_devices
from pipeline.planner.results.granted_devices import Comparison, GrantedDevice
from pipeline.planner.training import training_plan
from pipeline.prepare.device import nvml

_STDIN = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the plan, its export and the listings."""
    parser.add_argument("plan", type=Path, help="plan of `serve` or `train`, in JSON")
    parser.add_argument(
        "listings",
        nargs="*",
        metavar="[POD=]FILE",
        help="output of `nvidia-smi -L` in POD (default: the name of the file without its ending), - for stdin; repeat "
        "POD for its other containers. Without files, NVML is asked in the pod that runs this command",
    )
    parser.add_argument(
        "--as", dest="kind", default=pods.DRA, choices=pods.FORMATS, help="export that made the pods (default dra)"
    )
    parser.add_argument("--pod", help="name of the pod that runs this command (default: its host name)")


def answer(arguments: argparse.Namespace) -> CommandAnswer:
    """Compare plan and pods; status 1 if a pod got other devices than planned, or is missing."""
    if arguments.pod is not None and arguments.listings:
        raise ConfigError("--pod has no effect with listings; write POD=FILE")
    plan, _ = training_plan.read(arguments.plan)
    pod_sets = pods.list_pods(plan, arguments.kind, arguments.plan.name)
    if arguments.listings:
        listings = _read_listings(arguments.listings)
    else:
        listings = {arguments.pod or socket.gethostname(): tuple(_ask_nvml())}
    comparisons, faults = granted_devices.compare(pod_sets, listings, are_all_listed=bool(arguments.listings))
    is_as_planned = not faults and not any(comparison.differences for comparison in comparisons)
    data = {
        "as_planned": is_as_planned,
        "pods": [dataclasses.asdict(comparison) for comparison in comparisons],
        "faults": faults,
        "is_simulated": plan.is_simulated,
    }
    lines = [*_describe(comparisons), *faults]
    lines.append(
        f"as planned: {format_count(len(comparisons), 'pod')}" if is_as_planned else "pods differ from the plan"
    )
    if plan.is_simulated:
        lines.append(f"planned: {SIMULATED}")
    return CommandAnswer(data=data, text="\n".join(lines), status=0 if is_as_planned else 1)


def _describe(comparisons: list[Comparison]) -> Iterator[str]:
    yield from align_table(
        [
            ["pod", "planned", "granted", ""],
            *(
                [comparison.pod, comparison.planned, comparison.granted, "differs" if comparison.differences else "ok"]
                for comparison in comparisons
            ),
        ],
        left_columns=(0, 1, 2, 3),
    )
    for comparison in comparisons:
        yield from (f"{comparison.pod}: {difference}" for difference in comparison.differences)


def _read_listings(words: list[str]) -> dict[str, tuple[GrantedDevice, ...]]:
    listings: dict[str, list[GrantedDevice]] = defaultdict(list)
    for word in words:
        pod, has_pod, name = word.partition("=")
        if not has_pod:
            pod, name = Path(word).stem, word
        if not pod or not name or (name == _STDIN and not has_pod):
            raise ConfigError(f"{word}: no pod or no file is named; write POD=FILE, or POD=- for stdin")
        text = sys.stdin.read() if name == _STDIN else input_files.read(Path(name))
        listings[pod] += granted_devices.read_listing(text, name if name != _STDIN else "stdin")
    return {pod: tuple(devices) for pod, devices in listings.items()}


def _ask_nvml() -> Iterator[GrantedDevice]:
    devices = nvml.list_devices()
    if not devices:
        raise ConfigError("this machine has no NVIDIA GPU or no driver; name files with the output of `nvidia-smi -L`")
    for gpu in devices:
        instances = nvml.list_mig_devices(gpu)
        for device in instances or [gpu]:
            profile = _read_profile(device) if instances else None
            yield GrantedDevice(model=gpu.name, uuid=device.uuid, gpu_uuid=gpu.uuid, profile=profile)


def _read_profile(device: Device) -> str:
    profile = device.name.rpartition(" MIG ")[2]
    if "," in profile:  # made up from attributes, because the driver returned the name of the GPU
        raise ConfigError(
            f"NVML does not name the MIG profile of {device.uuid}; name a file with the output of `nvidia-smi -L`"
        )
    return profile
