"""The commands that carry a plan to other programs: `export`, `granted` (the devices that pods got) and `draw`."""

from __future__ import annotations

import argparse
import dataclasses
import re
import socket
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.base.domain import mig_table
from pipeline.base.domain.records import Device
from pipeline.base.system.command_parser import CommandAnswer
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.words import align_table, format_count
from pipeline.importer import experiment_file
from pipeline.planner import deployment, input_files, pictures
from pipeline.planner.deployment import Plan
from pipeline.planner.export import experiment, manifests, nodes
from pipeline.planner.export.manifests import DRA, FORMATS, KAI, PodOptions
from pipeline.planner.profile_table import SIMULATED
from pipeline.planner.results import granted_devices
from pipeline.planner.results.granted_devices import Comparison, GrantedDevice
from pipeline.planner.training import schedule
from pipeline.planner.transition import transition_steps
from pipeline.prepare.device import nvml
from pipeline.report.figures.drawing import Sketch, draw

_EXPERIMENT = "experiment"
_NODES = {"mig-parted": nodes.format_mig_parted, "slurm": nodes.format_slurm}
"""The exports with nodes."""
_STDIN = "-"


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the plan, the format, and the path of the export."""
    parser.add_argument("plan", type=Path, help="plan of `serve` or `train`, in JSON")
    parser.add_argument("--as", dest="kind", required=True, choices=[_EXPERIMENT, *_NODES, *FORMATS])
    parser.add_argument("--name", help="name of the export (default: the name of the plan's file)")
    parser.add_argument(
        "--out",
        metavar="PATH",
        help="experiment: write PATH/experiment/NAME.yaml (default conf); other formats: the file to write (default -: "
        "print)",
    )
    parser.add_argument("--force", action="store_true", help="replace an existing file")
    parser.add_argument("--gpu", metavar="MODEL", help="export only the GPUs of MODEL")
    parser.add_argument(
        "--workload",
        action="append",
        default=[],
        metavar="SERVICE=WORKLOAD",
        help="experiment: the file of conf/workload for a service with another name; may be repeated",
    )
    parser.add_argument(
        "--gpus-per-node", type=int, metavar="N", help="mig-parted, slurm: number of GPUs of a node (default: all)"
    )
    parser.add_argument(
        "--image",
        action="append",
        default=[],
        metavar="[SERVICE=]IMAGE",
        help="kubernetes, dra, kai: container image of all services, or of SERVICE; may be repeated",
    )
    parser.add_argument(
        "--time-slice",
        choices=manifests.INTERVALS,
        help="dra: time slice of GPUs that several processes share without MPS (default Default)",
    )
    parser.add_argument("--queue", help=f"kai: queue of the pods (default {manifests.QUEUE})")
    parser.add_argument(
        "--share-by",
        choices=manifests.SHARES,
        help="kai: request a part of a shared GPU by its memory in MiB, or as a fraction (default memory)",
    )


def answer_export(arguments: argparse.Namespace) -> CommandAnswer:
    """Write or print the export."""
    plan, _ = schedule.read_plan(arguments.plan)
    name = arguments.name or re.sub(r"\W", "_", arguments.plan.stem)
    if not experiment_file.NAME.fullmatch(name):
        raise ConfigError(
            f"--name {name}: must begin with a letter and have only letters, digits and _; choose another name"
        )
    if arguments.gpu is not None:
        plan = _select_model(plan, arguments.gpu, str(arguments.plan))
    text = _export(plan, name, arguments)
    data: dict[str, Any] = {"as": arguments.kind, "name": name, "content": text, "file": None, "run": None}
    if arguments.out == "-" or (arguments.out is None and arguments.kind != _EXPERIMENT):
        return CommandAnswer(data=data, text=text.rstrip("\n"))
    if arguments.kind == _EXPERIMENT:
        folder = Path(arguments.out) if arguments.out else None
        command = experiment_file.write(text, name, folder, replace=arguments.force)
        run = command.partition(": ")[2]
        window_s = experiment.rehearsal_s(plan)
        rehearse = f"{run} +rehearse=tiny" + (f" window.seconds={window_s}" if window_s > 1 else "")
        few = list(experiment.find_without_p99(plan))
        lines = [command, f"rehearse it: {rehearse}"]
        if few:
            lines.append(
                f"too few requests for a p99 of {', '.join(few)}: `check` compares the mean latency with the objective"
            )
        return CommandAnswer(data=data | {"run": run, "rehearse": rehearse, "without_p99": few}, text="\n".join(lines))
    path = Path(arguments.out)
    if path.exists() and not arguments.force:
        raise ConfigError(f"{path} exists; choose another --out, or add --force to replace the file")
    input_files.write(path, text)
    return CommandAnswer(data=data | {"file": str(path)}, text=f"written: {path}")


def _select_model(plan: Plan, model: str, origin: str) -> Plan:
    names = {gpu.model for gpu in plan.deployment.gpus}
    name_in_plan = next(
        (name for name in names if mig_table.find_model_name(name) == mig_table.find_model_name(model)), None
    )
    if name_in_plan is None:
        raise ConfigError(f"--gpu {model}: {origin} has no such GPU; choose among {', '.join(sorted(names)) or 'none'}")
    return experiment.select_model(plan, name_in_plan)


def _export(plan: Plan, name: str, arguments: argparse.Namespace) -> str:
    source = arguments.plan.name
    for option, option_kind in (("time_slice", DRA), ("queue", KAI), ("share_by", KAI)):
        if getattr(arguments, option) is not None and arguments.kind != option_kind:
            raise ConfigError(
                f"--{option.replace('_', '-')} has no effect with --as {arguments.kind}; use --as {option_kind}"
            )
    services = {instance.service for gpu in plan.deployment.gpus for instance in gpu.instances}
    if arguments.kind == _EXPERIMENT:
        workloads = _split_by_service("--workload", arguments.workload, needs_service=True)
        _refuse_unknown("--workload", workloads, services, source)
        return experiment.text_of(plan, name, source, workloads)
    if arguments.kind in _NODES:
        text = _NODES[arguments.kind](plan, name, source, arguments.gpus_per_node)
    else:
        images = _split_by_service("--image", arguments.image, needs_service=False)
        _refuse_unknown("--image", images, services, source)
        if spaced := [image for image in images.values() if image.split() != [image]]:
            raise ConfigError(f"--image {spaced[0]!r} contains a space; write NAME:TAG of the image")
        options = PodOptions(
            images=images,
            interval=arguments.time_slice,
            queue=arguments.queue or manifests.QUEUE,
            share_by=arguments.share_by or manifests.MEMORY,
        )
        text = manifests.format_pods(plan, arguments.kind, name, source, options)
    return f"# {SIMULATED}\n{text}" if plan.is_simulated else text


def _refuse_unknown(flag: str, by_service: Collection[str], services: Collection[str], source: str) -> None:
    if unknown := sorted({*by_service} - {*services, ""}):
        raise ConfigError(f"{flag} {unknown[0]}=...: {source} has no service {unknown[0]}; check the name")


def _split_by_service(flag: str, arguments: Sequence[str], *, needs_service: bool) -> dict[str, str]:
    """Split SERVICE=VALUE arguments; the value under the empty name is for all other services."""
    by_service: dict[str, str] = {}
    for word in arguments:
        service, has_service, argument = word.partition("=")
        if not has_service:
            service, argument = "", word
        if not argument or (needs_service and not service):
            raise ConfigError(f"{flag} {word}: not of the form SERVICE=VALUE; write both parts")
        by_service[service] = argument
    return by_service


def add_granted_arguments(parser: argparse.ArgumentParser) -> None:
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
        "--as", dest="kind", default=DRA, choices=FORMATS, help="export that made the pods (default dra)"
    )
    parser.add_argument("--pod", help="name of the pod that runs this command (default: its host name)")


def answer_granted(arguments: argparse.Namespace) -> CommandAnswer:
    """Compare plan and pods; status 1 if a pod got other devices than planned, or is missing."""
    if arguments.pod is not None and arguments.listings:
        raise ConfigError("--pod has no effect with listings; write POD=FILE")
    plan, _ = schedule.read_plan(arguments.plan)
    pod_sets = manifests.list_pods(plan, arguments.kind, arguments.plan.name)
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
    lines = [*_describe_granted(comparisons), *faults]
    lines.append(
        f"as planned: {format_count(len(comparisons), 'pod')}" if is_as_planned else "pods differ from the plan"
    )
    if plan.is_simulated:
        lines.append(f"planned: {SIMULATED}")
    return CommandAnswer(data=data, text="\n".join(lines), status=0 if is_as_planned else 1)


def _describe_granted(comparisons: list[Comparison]) -> Iterator[str]:
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


def add_draw_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the files and the folder of the pictures."""
    parser.add_argument(
        "files",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="a plan (drawn by slices), the steps of a transition (a timeline), or the output of `compare --json` "
        "(GPUs by load)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder for FILE.svg, FILE.pdf, and FILE-column.pdf in a column's width",
    )


def answer_draw(arguments: argparse.Namespace) -> CommandAnswer:
    """Draw all pictures, then write them."""
    names = [re.sub(r"[^A-Za-z0-9_.-]+", "-", path.stem) for path in arguments.files]
    if len(set(names)) < len(names):
        raise ConfigError(f"two files would be drawn as {max(names, key=names.count)}.svg; draw one file at a time")
    sketched = [_sketch_file(path, name) for path, name in zip(arguments.files, names, strict=True)]
    drawn = [
        draw(sketch, name, is_simulated=is_simulated, has_columns=True)
        for (sketch, is_simulated), name in zip(sketched, names, strict=True)
    ]
    rows = []
    for drawing in drawn:
        contents = {".svg": drawing.svg.encode(), ".pdf": drawing.pdf, "-column.pdf": drawing.column_pdf}
        files = {arguments.out / f"{drawing.name}{suffix}": content for suffix, content in contents.items() if content}
        try:
            arguments.out.mkdir(parents=True, exist_ok=True)
            for path, content in files.items():
                path.write_bytes(content)
        except OSError as error:
            raise ConfigError(
                f"--out {arguments.out}: cannot be written: {error.strerror}; name a writable folder"
            ) from error
        rows.append({"files": list(map(str, files)), "title": drawing.sketch.title, "caption": drawing.sketch.caption})
    text = "\n\n".join(f"{' '.join(row['files'])}\n{row['title']}. {row['caption']}" for row in rows)
    return CommandAnswer(data={"pictures": rows}, text=text)


def _sketch_file(path: Path, name: str) -> tuple[Sketch, bool]:
    content = input_files.read_json(path)
    if "steps" in content:
        transition = transition_steps.read(path)
        return pictures.sketch_transition(transition, name), transition.is_simulated
    if "loads" in content:
        return pictures.sketch_loads(pictures.read_loads(content, str(path)), name), content.get("is_simulated") is True
    if "gpus" in content:
        plan = deployment.from_json(content, str(path))
        return pictures.sketch_gpus(plan, name), plan.is_simulated
    raise ConfigError(f"{path}: has nothing to draw; name a plan, a transition or the output of compare --json")
