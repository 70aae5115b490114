"""`python -m pipeline.planner export`: a plan as an experiment, for mig-parted or for Kubernetes."""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from pipeline.base.domain import mig_table
from pipeline.base.system.command_parser import CommandAnswer
from pipeline.base.system.errors import ConfigError
from pipeline.importer import experiment_file
from pipeline.planner import input_files
from pipeline.planner.deployment import Plan
from pipeline.planner.export import dra, experiment, kai, kubernetes, mig_parted, pods
from pipeline.planner.profile_table import SIMULATED
from pipeline.planner.training import training_plan

_EXPERIMENT, _MIG_PARTED = "experiment", "mig-parted"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the plan, the format, and the path of the export."""
    parser.add_argument("plan", type=Path, help="plan of `serve` or `train`, in JSON")
    parser.add_argument("--as", dest="kind", required=True, choices=[_EXPERIMENT, _MIG_PARTED, *pods.FORMATS])
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
        "--gpus-per-node", type=int, metavar="N", help="mig-parted: write one configuration per node of N GPUs"
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
        choices=dra.INTERVALS,
        help="dra: time slice of GPUs that several processes share without MPS (default Default)",
    )
    parser.add_argument("--queue", help=f"kai: queue of the pods (default {kai.QUEUE})")
    parser.add_argument(
        "--share-by",
        choices=kai.SHARES,
        help="kai: request a part of a shared GPU by its memory in MiB, or as a fraction (default memory)",
    )


def answer(arguments: argparse.Namespace) -> CommandAnswer:
    """Write or print the export."""
    plan, _ = training_plan.read(arguments.plan)
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
        how = experiment_file.write(text, name, folder, replace=arguments.force)
        run = how.partition(": ")[2]
        window_s = experiment.rehearsal_s(plan)
        rehearse = f"{run} +rehearse=tiny" + (f" window.seconds={window_s}" if window_s > 1 else "")
        few = list(experiment.find_without_p99(plan))
        lines = [how, f"rehearse it: {rehearse}"]
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


def _select_model(plan: Plan, model: str, where: str) -> Plan:
    names = {gpu.model for gpu in plan.deployment.gpus}
    name_in_plan = next(
        (name for name in names if mig_table.find_model_name(name) == mig_table.find_model_name(model)), None
    )
    if name_in_plan is None:
        raise ConfigError(f"--gpu {model}: {where} has no such GPU; choose among {', '.join(sorted(names)) or 'none'}")
    return experiment.select_model(plan, name_in_plan)


def _export(plan: Plan, name: str, arguments: argparse.Namespace) -> str:
    source = arguments.plan.name
    for option, option_kind in (("time_slice", pods.DRA), ("queue", pods.KAI), ("share_by", pods.KAI)):
        if getattr(arguments, option) is not None and arguments.kind != option_kind:
            raise ConfigError(
                f"--{option.replace('_', '-')} has no effect with --as {arguments.kind}; use --as {option_kind}"
            )
    services = {instance.service for gpu in plan.deployment.gpus for instance in gpu.instances}
    if arguments.kind == _EXPERIMENT:
        workloads = _split_by_service("--workload", arguments.workload, needs_service=True)
        _refuse_unknown("--workload", workloads, services, source)
        return experiment.text_of(plan, name, source, workloads)
    if arguments.kind == _MIG_PARTED:
        text = mig_parted.text_of(plan, name, source, arguments.gpus_per_node)
    else:
        images = _split_by_service("--image", arguments.image, needs_service=False)
        _refuse_unknown("--image", images, services, source)
        if spaced := [image for image in images.values() if image.split() != [image]]:
            raise ConfigError(f"--image {spaced[0]!r} contains a space; write NAME:TAG of the image")
        if arguments.kind == pods.DRA:
            text = dra.text_of(plan, name, source, images, arguments.time_slice)
        elif arguments.kind == pods.KAI:
            queue, share_by = arguments.queue or kai.QUEUE, arguments.share_by or kai.MEMORY
            text = kai.text_of(plan, name, source, images, queue, share_by)
        else:
            text = kubernetes.text_of(plan, name, source, images)
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
