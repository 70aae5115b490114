"""What a GPU is, how it is divided, who is on it, and what the journal says is still to be undone. Reads only."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline.base.domain.answer import Answer
from pipeline.base.domain.records import Device
from pipeline.base.system import entry_points, locks
from pipeline.base.system.errors import CollocationError, ConfigError, SharingError
from pipeline.base.system.host import boot_id
from pipeline.base.system.paths import expanded
from pipeline.clean import journal, leftovers
from pipeline.clean.journal import BY_HAND, Journal, Step
from pipeline.prepare.device import gpu_reader, lease, nvml
from pipeline.prepare.device.chosen import choose
from pipeline.prepare.mig import profiles
from pipeline.prepare.mig.state import GpuInstance, MigState, read_state
from pipeline.simulation.install import installed
from pipeline.simulation.machine.state_file import StateFile, is_made_for_study

_MIB = 2**20
ABSENT = "a GPU that is not there"
_HIDDEN = "shown to administrators only"


def is_there(device: Device) -> bool:
    """Whether the driver lists the GPU; else only a journal speaks of it."""
    return device.index is not None


@contextmanager
def driver(gpu: str | None, machine: str | None) -> Iterator[str | None]:
    """Ask the driver that is meant: of a kept simulated `machine`, of the model that `gpu` names, or of this machine.

    Gives which of its GPUs is meant, or `None` for all. No such machine or model is a ConfigError.
    """
    if machine is not None:
        file = StateFile(expanded("--machine", machine))
        file.read()
        with installed(file.path):
            yield gpu
    elif gpu is not None and gpu.startswith(profiles.SIMULATED):
        with tempfile.TemporaryDirectory() as folder:
            file = StateFile(Path(folder) / "machine.json")
            file.create([gpu])
            with installed(file.path):
                yield "0"
    else:
        yield gpu


def whole_gpu(selector: str | None, folder: Path) -> Device:
    """The one GPU that is meant; a ConfigError as of `targets`."""
    assert selector is not None, "commands about one GPU have one by default"
    _refuse_absent(folder)
    return choose("--gpu", selector, nvml.list_devices())


def targets(selector: str | None, folder: Path, *, is_real: bool) -> list[Device]:
    """What is meant, all if there is no selector: GPUs, each with its MIG devices that have a journal in `folder`.

    Also what is gone but has a journal: a driver that is not real knows nothing of journals of other GPUs. ConfigError
    if no GPU or more than one matches, there is no such folder, or the driver does not work.
    """
    _refuse_absent(folder)
    known = [each for each in journal.find(folder) if each.is_ours or not is_made_for_study(each.device_uuid)]
    uuids = dict.fromkeys(each.device_uuid for each in known)
    gpus = nvml.list_devices()
    found = [
        each for gpu in gpus for each in (gpu, *(part for part in nvml.list_mig_devices(gpu) if part.uuid in uuids))
    ]
    if is_real:
        there = {device.uuid for device in found}
        found += [Device(kind="nvidia", uuid=uuid, name=ABSENT) for uuid in uuids if uuid not in there]
    if selector is None:
        return found
    chosen = choose("--gpu", selector, gpus if selector.isdecimal() else found)
    return [each for each in found if chosen.uuid in (each.uuid, each.parent)]


def _refuse_absent(folder: Path) -> None:
    if not folder.is_dir():
        raise ConfigError(f"{folder} is not a folder; give --lock-dir the gpu.lock_dir of the studies")


def in_words(step: Step) -> str:
    """What undoing a step does, or that a restart has done it."""
    is_gone = step.arguments.get("boot", boot_id()) != boot_id()
    return f"{journal.in_words(step)}{' (gone with a restart of the machine)' if is_gone else ''}"


def is_of(step: Step, instance: GpuInstance) -> bool:
    """Whether a step undoes the making of an instance that is there."""
    said = step.arguments
    is_place = (said.get("profile_id"), said.get("start")) == (instance.profile_id, instance.start)
    return is_place and said.get("gi_id") in (None, instance.gi_id) and said.get("boot") == boot_id()


def status(gpu: str | None, folder: Path, machine: str | None) -> Answer:
    """Everything about the GPUs that are meant (see `driver` and `targets`); the status is 0 for clean, 1 for not."""
    with driver(gpu, machine) as selector:
        is_real = machine is None and selector == gpu
        gpus = [
            {"is_simulated": not is_real, **_gpu(device, folder)}
            for device in targets(selector, folder, is_real=is_real)
        ]
    left = {str(path): pids for path, pids in leftovers.find_abandoned().items()}
    is_clean = all(each["is_clean"] for each in gpus) and not left
    lines = [line for each in gpus for line in _lines(each)] or ["there is no NVIDIA GPU on this machine"]
    lines += [_left_line(path, pids) for path, pids in left.items()]
    is_left = bool(left) or any(not each["is_clean"] and each["holder"] is None for each in gpus)
    in_use = "not clean: a study is running and undoes this itself"
    lines.append("clean" if is_clean else f"not clean: {command('clean', folder, machine)}" if is_left else in_use)
    data = {"gpus": gpus, "abandoned": left, "is_clean": is_clean}
    return Answer(data=data, text="\n".join(map(printable, lines)), status=int(not is_clean))


def command(name: str, folder: Path, machine: str | None, gpu: str | None = None) -> str:
    """A command of `pipeline.gpu` about the same GPU, machine and folder."""
    words = [name]
    if gpu is not None:
        words += ["--gpu", gpu]
    if machine is not None:
        words += ["--machine", machine]
    if folder != locks.DEFAULT_FOLDER:
        words += ["--lock-dir", str(folder)]
    return entry_points.spell("gpu", *words)


def printable(text: str) -> str:
    """The text without characters that would steer a terminal: names come from other users' programs and files."""
    return re.sub(r"[^\x20-\x7e\u00a1-\uffff]", "?", text)


def _gpu(device: Device, folder: Path) -> dict[str, Any]:
    steps, trouble = _journal(device.uuid, folder)
    by_hand, by_others = _by_hand(device.uuid, folder)
    holder = lease.holder(device.uuid, folder)
    data: dict[str, Any] = {
        "uuid": device.uuid,
        "name": device.name if is_there(device) else None,
        "index": device.index,
        "mig_device_of": device.parent,
        "is_there": is_there(device),
        "holder": holder and asdict(holder),
        "held_by": holder and str(holder),
        "mig_devices_held_by": {},
        "steps": [_step(step) for step in steps],
        "made_by_hand": [_step(step) for step in by_hand],
        "made_by_hand_by_others": by_others,
        "journal_trouble": trouble,
        "is_clean": not steps and not trouble,
        "error": None,
    }
    if is_there(device):
        try:
            data["mig_devices_held_by"] = {u: str(who) for u, who in lease.part_holders(device, folder).items()}
            data |= _reading(device, by_hand)
        except CollocationError as error:
            data["error"] = str(error)  # what the journal says is told all the same
    return data


def _journal(uuid: str, folder: Path) -> tuple[tuple[Step, ...], list[str]]:
    ours = Journal(folder, uuid)
    others = [] if is_made_for_study(uuid) else ours.others()
    trouble = [f"user {found.owner} left steps to undo and must clean up: {found.path}" for found in others]
    try:
        return ours.steps(), trouble
    except CollocationError as error:
        return (), [str(error), *trouble]


def _by_hand(uuid: str, folder: Path) -> tuple[tuple[Step, ...], list[str]]:
    """What `create` made and `destroy` will undo, and what is not ours, or cannot be read."""
    made = Journal(folder, uuid, suffix=BY_HAND)
    others = [f"by user {found.owner}, who can undo it" for found in made.others()]
    try:
        return made.steps(), others
    except CollocationError as error:
        return (), [str(error), *others]


def _step(step: Step) -> dict[str, Any]:
    return {"kind": step.kind, "undoing": in_words(step), "arguments": step.arguments}


def _reading(device: Device, by_hand: Sequence[Step]) -> dict[str, Any]:
    details = dict(device.details)
    with nvml.session():
        reader = gpu_reader.GpuReader(device.gpu_uuid)
        processes = gpu_reader.processes(device.uuid)
        mig: MigState | None = None
        if device.gi_id is None:
            used_bytes = reader.quantities().get("nvmlDeviceGetMemoryInfo_v2.used")
            with suppress(SharingError):  # it has no MIG
                mig = read_state(device.uuid)
        else:
            used_bytes = reader.instance_memory_bytes().get(device.gi_id)
    told = ("driver_version", "compute_mode", "mig_mode_current", "mig_mode_pending")
    return {key: details.get(key) for key in told} | {
        "memory_mib": device.memory_mib,
        "memory_used_mib": None if used_bytes is None else used_bytes / _MIB,
        "gpu_instances": None if mig is None or mig.instances is None else _instances(device, mig, by_hand),
        "mig_devices": [] if mig is None else [{"uuid": d.uuid, "gi": d.gi_id, "ci": d.ci_id} for d in mig.devices],
        "hidden": ["gpu_instances"] if mig is not None and mig.instances is None else [],
        "processes": [asdict(process) for process in processes],
    }


def _instances(device: Device, state: MigState, by_hand: Sequence[Step]) -> list[dict[str, Any]]:
    try:
        known = {profile.profile_id: profile for profile in profiles.read_gpu(device).profiles}
    except ConfigError:
        known = {}  # the driver names the profiles to administrators only
    return [
        {
            "id": instance.gi_id,
            "profile_id": instance.profile_id,
            "profile": (profile := known.get(instance.profile_id)) and profile.name,
            "start": instance.start,
            "size": profile and profile.memory_slices,
            "compute_slices": profile and profile.compute_slices,
            "compute_instances": [
                {"id": d.ci_id, "uuid": d.uuid, "compute_slices": d.compute_slices}
                for d in state.devices
                if d.gi_id == instance.gi_id
            ],
            "is_made_by_hand": any(is_of(step, instance) for step in by_hand),
        }
        for instance in state.instances or ()
    ]


def _lines(gpu: dict[str, Any]) -> list[str]:
    name = gpu["name"] or f"{ABSENT} (a simulated one? --machine FILE)"
    if gpu["is_simulated"]:
        name = f"simulated {name}"
    lines = [f"{'-' if gpu['index'] is None else gpu['index']}: {name}  {gpu['uuid']}"]
    if gpu["error"]:
        lines.append(f"   does not answer: {gpu['error']}")
    elif gpu["is_there"]:
        lines += [f"   {line}" for line in (*_settings(gpu), *_mig_lines(gpu), *_process_lines(gpu))]
    lines += [f"   by hand:   `destroy` will undo: {step['undoing']}" for step in gpu["made_by_hand"]]
    lines += [f"   by hand:   {whose}" for whose in gpu["made_by_hand_by_others"]]
    parts = [f"{who} on {uuid}" for uuid, who in gpu["mig_devices_held_by"].items()]
    lines += [f"   held by:   {who}" for who in ([gpu["held_by"]] if gpu["held_by"] else parts or ["nobody"])]
    whose = "the running study will undo" if gpu["held_by"] else "left to undo"
    lines += [f"   journal:   {whose}: {step['undoing']}" for step in gpu["steps"]]
    lines += [f"   journal:   {trouble}" for trouble in gpu["journal_trouble"]]
    if gpu["is_clean"]:
        lines.append("   journal:   nothing to undo")
    return lines


def _settings(gpu: dict[str, Any]) -> list[str]:
    unknown = _HIDDEN if gpu["mig_mode_current"] == "enabled" else "not told by the driver"
    used, total = (unknown if gpu[key] is None else f"{gpu[key]:.0f} MiB" for key in ("memory_used_mib", "memory_mib"))
    return [
        f"driver:    {gpu['driver_version']}, compute mode {gpu['compute_mode'] or 'not told by the driver'}",
        f"memory:    {used} used of {total}",
    ]


def _mig_lines(gpu: dict[str, Any]) -> list[str]:
    if gpu["mig_device_of"] is not None:
        return [f"MIG:       a device of {gpu['mig_device_of']}"]
    current, pending = gpu["mig_mode_current"], gpu["mig_mode_pending"]
    if current is None:
        return ["MIG:       not on this GPU"]
    lines = [f"MIG:       {current}" + ("" if pending == current else f", {pending} after the next reset of the GPU")]
    if "gpu_instances" in gpu["hidden"]:
        lines.append(f"instances: {_HIDDEN}")
        lines += [f"           GI {d['gi']} CI {d['ci']}: {d['uuid']}" for d in gpu["mig_devices"]]
    for instance in gpu["gpu_instances"] or ():
        profile = instance["profile"] or f"profile {instance['profile_id']}"
        place = f"{instance['start']}:{instance['size'] or '?'}"
        parts = instance["compute_instances"]
        has_all = len(parts) == 1 and instance["compute_slices"] in (None, parts[0]["compute_slices"])
        widths = ["" if has_all else f" ({each['compute_slices']}c)" for each in parts]
        inside = ", ".join(f"CI {each['id']}{width} {each['uuid']}" for each, width in zip(parts, widths, strict=True))
        mark = ", made by hand" if instance["is_made_by_hand"] else ""
        lines.append(f"instance:  GI {instance['id']} {profile} at {place}: {inside or 'no compute instance'}{mark}")
    return lines


def _process_lines(gpu: dict[str, Any]) -> list[str]:
    return [
        f"process:   {p['name'] or 'a program'} (pid {p['pid']}), {'MPS client' if p['kind'] == 'mps' else p['kind']}, "
        + ("memory not reported by the driver" if p["memory_mib"] is None else f"{p['memory_mib']:.0f} MiB")
        for p in gpu["processes"]
    ] or ["process:   none"]


def _left_line(path: str, pids: list[int]) -> str:
    running = f", with processes {', '.join(map(str, pids))}" if pids else ""
    return f"left by a killed orchestrator: {path}{running}"
