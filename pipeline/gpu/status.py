"""`status` and `clean`: state of a GPU with its instances, processes and undo steps; undo of killed orchestrators.

`status` changes nothing; `clean` changes only what is in a journal of this project.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pipeline import rehearsal
from pipeline.base.domain import mig_table
from pipeline.base.domain.driver_programs import Programs
from pipeline.base.domain.records import Device
from pipeline.base.system import entry_points, locks
from pipeline.base.system.command_parser import CommandAnswer
from pipeline.base.system.errors import CollocationError, ConfigError, InUseError, SharingError
from pipeline.base.system.host_info import boot_id
from pipeline.base.system.paths import expand_path
from pipeline.clean import journal, leftovers, temporary_folder
from pipeline.clean.journal import BY_HAND, Journal, UndoStep
from pipeline.prepare.device import gpu_reader, lease, nvml
from pipeline.prepare.device.device_choice import choose
from pipeline.prepare.mig import profiles
from pipeline.prepare.mig.mig_state import GpuInstance, MigState, read_state
from pipeline.simulation.install import install_driver
from pipeline.simulation.machine.state_file import StateFile, is_made_for_study

_MIB = 2**20
ABSENT = "absent GPU"
_HIDDEN = "shown to administrators only"


def is_there(device: Device) -> bool:
    """Return whether the driver lists the GPU; otherwise only a journal names it."""
    return device.index is not None


@contextmanager
def open_driver(gpu: str | None, machine: str | None) -> Iterator[str | None]:
    """Open the driver of a stored simulated `machine`, of the simulated model `gpu`, or of this machine.

    Yields the selector of a GPU of this driver, or `None` for all GPUs.

    Raises:
        ConfigError: the machine or model does not exist.
    """
    if machine is not None:
        file = StateFile(expand_path("--machine", machine))
        file.read()
        with install_driver(file.path):
            yield gpu
    elif gpu is not None and gpu.startswith(mig_table.SIMULATED):
        with temporary_folder.hold_scratch() as folder:
            file = StateFile(folder / "machine.json")
            file.create([gpu])
            with install_driver(file.path):
                yield "0"
    else:
        yield gpu


def find_simulated_programs(machine: str | None) -> dict[str, str] | None:
    """Write the programs of a simulated machine beside its file, and return their paths; `None` for this machine."""
    if machine is None:
        return None
    file = StateFile(expand_path("--machine", machine).resolve())
    return {name: str(path) for name, path in rehearsal.write_programs_beside(file).items()}


def find_gpu(selector: str | None, folder: Path) -> Device:
    """Find the selected GPU.

    Raises:
        ConfigError: as for `find_targets`.
    """
    assert selector is not None, "commands for a single GPU select GPU 0 by default"
    _refuse_absent(folder)
    return choose("--gpu", selector, nvml.list_devices())


def find_targets(selector: str | None, folder: Path, *, is_real: bool) -> list[Device]:
    """Find the selected GPUs, or all GPUs, each with its MIG devices that have a journal in `folder`.

    With a real driver, absent devices that have a journal are included. With a simulated driver they are not included,
    because the journals may belong to real GPUs.

    Raises:
        ConfigError: the selector does not match exactly one GPU, the folder does not exist, or the driver fails.
    """
    _refuse_absent(folder)
    journals = [
        file for file in journal.find_journals(folder) if file.is_ours or not is_made_for_study(file.device_uuid)
    ]
    uuids = dict.fromkeys(file.device_uuid for file in journals)
    gpus = nvml.list_devices()
    devices = [
        device for gpu in gpus for device in (gpu, *(part for part in nvml.list_mig_devices(gpu) if part.uuid in uuids))
    ]
    if is_real:
        listed = {device.uuid for device in devices}
        devices += [Device(kind="nvidia", uuid=uuid, name=ABSENT) for uuid in uuids if uuid not in listed]
    if selector is None:
        return devices
    selected = choose("--gpu", selector, gpus if selector.isdecimal() else devices)
    return [device for device in devices if selected.uuid in (device.uuid, device.parent)]


def _refuse_absent(folder: Path) -> None:
    if not folder.is_dir():
        raise ConfigError(f"--lock-dir {folder} is not a folder; set --lock-dir to the gpu.lock_dir of the studies")


@contextmanager
def refuse_untouched() -> Iterator[None]:
    """Convert errors to a ConfigError, whose exit status means that nothing was changed."""
    try:
        yield
    except InUseError as error:
        raise ConfigError(
            f"cannot use {error.holder}; wait until this GPU is free, or choose another GPU with --gpu"
        ) from error
    except CollocationError as error:
        raise ConfigError(str(error)) from error


def describe(step: UndoStep) -> str:
    """Describe the effect of undoing a step, or report that a restart of the machine has undone it."""
    is_gone = step.arguments.get("boot", boot_id()) != boot_id()
    return f"{journal.describe(step)}{' (undone by a restart of the machine)' if is_gone else ''}"


def undo(steps: Journal) -> dict[str, Any]:
    """Undo the steps of a journal; return the descriptions of undone steps, and of failed steps with their reasons."""
    undone, failed = journal.undo_all(steps)
    failures = [{"undoing": describe(step), "reason": str(error)} for step, error in failed]
    return {"undone": [describe(step) for step in undone], "failed": failures}


def list_undone(data: dict[str, Any]) -> list[str]:
    """Format the result of `undo` as lines."""
    failures = (f"not undone: {failed['undoing']}; {failed['reason']}" for failed in data["failed"])
    return [*(f"undone: {step}" for step in data["undone"]), *failures]


def is_made_by(step: UndoStep, instance: GpuInstance) -> bool:
    """Return whether a step undoes the creation of an existing instance."""
    arguments = step.arguments
    is_place = (arguments.get("profile_id"), arguments.get("start")) == (instance.profile_id, instance.start)
    return is_place and arguments.get("gi_id") in (None, instance.gi_id) and arguments.get("boot") == boot_id()


def status(gpu: str | None, folder: Path, machine: str | None) -> CommandAnswer:
    """Return the state of the selected GPUs (see `open_driver`, `find_targets`); the exit status is 1 if not clean."""
    with open_driver(gpu, machine) as selector:
        is_real = machine is None and selector == gpu
        gpus = [
            {"is_simulated": not is_real, **_read_gpu(device, folder)}
            for device in find_targets(selector, folder, is_real=is_real)
        ]
        unusable = list(nvml.list_unusable().values()) if selector is None else []
    abandoned = {str(path): pids for path, pids in leftovers.find_abandoned().items()}
    is_clean = all(report["is_clean"] for report in gpus) and not abandoned
    described = [line for report in gpus for line in _list_lines(report)]
    lines = [*described, *unusable] or ["this machine has no NVIDIA GPU"]
    for path, pids in abandoned.items():
        running = f", with running processes {', '.join(map(str, pids))}" if pids else ""
        lines.append(f"left by a killed orchestrator: {path}{running}")
    is_left = bool(abandoned) or any(not report["is_clean"] and report["holder"] is None for report in gpus)
    in_use = "not clean: the running study will undo this"
    lines.append(
        "clean" if is_clean else f"not clean; run: {spell_command('clean', folder, machine)}" if is_left else in_use
    )
    data = {"gpus": gpus, "unusable": unusable, "abandoned": abandoned, "is_clean": is_clean}
    return CommandAnswer(data=data, text="\n".join(map(make_printable, lines)), status=int(not is_clean))


def spell_command(name: str, folder: Path, machine: str | None, gpu: str | None = None) -> str:
    """Spell a command of `pipeline.gpu` with the options for this GPU, machine and folder."""
    words = [name]
    if gpu is not None:
        words += ["--gpu", gpu]
    if machine is not None:
        words += ["--machine", machine]
    if folder != locks.DEFAULT_FOLDER:
        words += ["--lock-dir", str(folder)]
    return entry_points.spell("gpu", *words)


def make_printable(text: str) -> str:
    """Replace control characters of a terminal: names come from other users' programs and files."""
    return re.sub(r"[^\x20-\x7e\u00a1-\uffff]", "?", text)


def _read_gpu(device: Device, folder: Path) -> dict[str, Any]:
    steps, trouble = _read_steps(
        device.uuid, Journal(folder, device.uuid), "user {} has steps to undo and must clean up: {}"
    )
    manual = Journal(folder, device.uuid, suffix=BY_HAND)
    by_hand, by_others = _read_steps(device.uuid, manual, "made by user {}, who can run `destroy`")
    holder = lease.find_holder(device.uuid, folder)
    data: dict[str, Any] = {
        "uuid": device.uuid,
        "name": device.name if is_there(device) else None,
        "index": device.index,
        "mig_device_of": device.parent,
        "is_there": is_there(device),
        "holder": holder and asdict(holder),
        "held_by": holder and str(holder),
        "mig_devices_held_by": {},
        "steps": [_convert_step(step) for step in steps],
        "made_by_hand": [_convert_step(step) for step in by_hand],
        "made_by_hand_by_others": by_others,
        "journal_trouble": trouble,
        "is_clean": not steps and not trouble,
        "error": None,
    }
    if is_there(device):
        try:
            data["mig_devices_held_by"] = {u: str(who) for u, who in lease.find_part_holders(device, folder).items()}
            data |= _read_driver(device, by_hand)
        except CollocationError as error:
            data["error"] = str(error)  # the contents of the journal are reported nevertheless
    return data


def _read_steps(uuid: str, device_journal: Journal, words: str) -> tuple[tuple[UndoStep, ...], list[str]]:
    """Read the steps of a journal, and describe journals of other users and errors of reading."""
    foreign = [] if is_made_for_study(uuid) else device_journal.list_foreign()
    trouble = [words.format(other.owner, other.path) for other in foreign]
    try:
        return device_journal.read_steps(), trouble
    except CollocationError as error:
        return (), [str(error), *trouble]


def _convert_step(step: UndoStep) -> dict[str, Any]:
    return {"kind": step.kind, "undoing": describe(step), "arguments": step.arguments}


def _read_driver(device: Device, by_hand: Sequence[UndoStep]) -> dict[str, Any]:
    with nvml.session():
        reader = gpu_reader.GpuReader(device.gpu_uuid)
        processes = gpu_reader.list_processes(device.uuid)
        mig: MigState | None = None
        if device.gi_id is None:
            used_bytes = reader.quantities().get("nvmlDeviceGetMemoryInfo_v2.used")
            with suppress(SharingError):  # the GPU does not support MIG
                mig = read_state(device.uuid)
        else:
            used_bytes = reader.instance_memory_bytes().get(device.gi_id)
    keys = ("driver_version", "compute_mode", "mig_mode_current", "mig_mode_pending")
    return {key: getattr(device.facts, key) for key in keys} | {
        "memory_mib": device.memory_mib,
        "memory_used_mib": None if used_bytes is None else used_bytes / _MIB,
        "gpu_instances": None if mig is None or mig.instances is None else _list_instances(device, mig, by_hand),
        "mig_devices": [] if mig is None else [{"uuid": d.uuid, "gi": d.gi_id, "ci": d.ci_id} for d in mig.devices],
        "hidden": ["gpu_instances"] if mig is not None and mig.instances is None else [],
        "processes": [asdict(process) for process in processes],
    }


def _list_instances(device: Device, state: MigState, by_hand: Sequence[UndoStep]) -> list[dict[str, Any]]:
    try:
        profiles_by_id = {profile.profile_id: profile for profile in profiles.read_gpu(device).profiles}
    except ConfigError:
        profiles_by_id = {}  # this driver lists the profiles for administrators only
    return [
        {
            "id": instance.gi_id,
            "profile_id": instance.profile_id,
            "profile": (profile := profiles_by_id.get(instance.profile_id)) and profile.name,
            "start": instance.start,
            "size": profile and profile.memory_slices,
            "compute_slices": profile and profile.compute_slices,
            "compute_instances": [
                {"id": d.ci_id, "uuid": d.uuid, "compute_slices": d.compute_slices}
                for d in state.devices
                if d.gi_id == instance.gi_id
            ],
            "is_made_by_hand": any(is_made_by(step, instance) for step in by_hand),
        }
        for instance in state.instances or ()
    ]


def _list_lines(gpu: dict[str, Any]) -> list[str]:
    name = gpu["name"] or f"{ABSENT} (if simulated: --machine FILE)"
    if gpu["is_simulated"]:
        name = f"simulated {name}"
    lines = [f"{'-' if gpu['index'] is None else gpu['index']}: {name}  {gpu['uuid']}"]
    if gpu["error"]:
        lines.append(f"   not readable: {gpu['error']}")
    elif gpu["is_there"]:
        lines += [f"   {line}" for line in (*_list_settings(gpu), *_list_mig_lines(gpu), *_list_process_lines(gpu))]
    lines += [f"   by hand:   `destroy` will undo: {step['undoing']}" for step in gpu["made_by_hand"]]
    lines += [f"   by hand:   {owner}" for owner in gpu["made_by_hand_by_others"]]
    parts = [f"{who} on {uuid}" for uuid, who in gpu["mig_devices_held_by"].items()]
    lines += [f"   held by:   {who}" for who in ([gpu["held_by"]] if gpu["held_by"] else parts or ["nobody"])]
    heading = "the running study will undo" if gpu["held_by"] else "left to undo"
    lines += [f"   journal:   {heading}: {step['undoing']}" for step in gpu["steps"]]
    lines += [f"   journal:   {trouble}" for trouble in gpu["journal_trouble"]]
    if gpu["is_clean"]:
        lines.append("   journal:   nothing to undo")
    return lines


def _list_settings(gpu: dict[str, Any]) -> list[str]:
    unknown = _HIDDEN if gpu["mig_mode_current"] == "enabled" else "not reported by the driver"
    used, total = (unknown if gpu[key] is None else f"{gpu[key]:.0f} MiB" for key in ("memory_used_mib", "memory_mib"))
    return [
        f"driver:    {gpu['driver_version']}, compute mode {gpu['compute_mode'] or 'not reported by the driver'}",
        f"memory:    {used} used of {total}",
    ]


def _list_mig_lines(gpu: dict[str, Any]) -> list[str]:
    if gpu["mig_device_of"] is not None:
        return [f"MIG:       a MIG device of {gpu['mig_device_of']}"]
    current, pending = gpu["mig_mode_current"], gpu["mig_mode_pending"]
    if current is None:
        return ["MIG:       not supported by this GPU"]
    lines = [f"MIG:       {current}" + ("" if pending == current else f", {pending} after the next reset of the GPU")]
    if "gpu_instances" in gpu["hidden"]:
        lines.append(f"instances: {_HIDDEN}")
        lines += [f"           GI {d['gi']} CI {d['ci']}: {d['uuid']}" for d in gpu["mig_devices"]]
    for instance in gpu["gpu_instances"] or ():
        profile = instance["profile"] or f"profile {instance['profile_id']}"
        place = f"{instance['start']}:{instance['size'] or '?'}"
        parts = instance["compute_instances"]
        has_all = len(parts) == 1 and instance["compute_slices"] in (None, parts[0]["compute_slices"])
        widths = ["" if has_all else f" ({part['compute_slices']}c)" for part in parts]
        inside = ", ".join(f"CI {part['id']}{width} {part['uuid']}" for part, width in zip(parts, widths, strict=True))
        mark = ", made by hand" if instance["is_made_by_hand"] else ""
        lines.append(f"instance:  GI {instance['id']} {profile} at {place}: {inside or 'no compute instance'}{mark}")
    return lines


def _list_process_lines(gpu: dict[str, Any]) -> list[str]:
    return [
        f"process:   {p['name'] or 'a program'} (pid {p['pid']}), {'MPS client' if p['kind'] == 'mps' else p['kind']}, "
        + ("memory not reported by the driver" if p["memory_mib"] is None else f"{p['memory_mib']:.0f} MiB")
        for p in gpu["processes"]
    ] or ["process:   none"]


def clean(gpu: str | None, folder: Path, machine: str | None) -> CommandAnswer:
    """Clean the selected GPUs (see `open_driver`, `find_targets`); the exit status is 1 if anything is not undone."""
    with open_driver(gpu, machine) as selector:
        is_real = machine is None and selector == gpu
        targets = find_targets(selector, folder, is_real=is_real)
        # Processes are ended first, as at the start of a study: an instance with a process cannot be destroyed.
        abandoned = leftovers.find_abandoned()
        hanging = {str(path): pids for path in abandoned if (pids := leftovers.clear_abandoned(path))}
        rehearsal.remove_abandoned()
        temporary_folder.remove_abandoned()
        # MIG devices come first: their processes, such as MPS daemons in their journals, block instances of the GPU.
        targets.sort(key=lambda device: device.parent is None)
        # Absent devices and devices of a finished simulation must not be cleaned with the real driver programs.
        simulated = Programs(simulated=find_simulated_programs(machine) or {}, admin=())
        gpus = [
            _clean(
                device, folder, Programs() if is_real and is_there(device) else simulated, is_kept=machine is not None
            )
            for device in targets
        ]
    ended = {str(path): pids for path, pids in abandoned.items() if str(path) not in hanging}
    lines = [f"removed {path}" + (f" and ended processes {pids}" if pids else "") for path, pids in ended.items()]
    lines += [line for gpu_report in gpus for line in _list_cleaned(gpu_report)]
    lines += [f"not removed: {path}; processes {pids} survive SIGKILL" for path, pids in hanging.items()]
    is_left = bool(hanging) or any(gpu_report["failed"] or gpu_report["refused"] for gpu_report in gpus)
    text = "\n".join(map(make_printable, lines)) or "nothing to clean"
    data = {"gpus": gpus, "abandoned": ended, "hanging": hanging, "is_clean": not is_left}
    return CommandAnswer(data=data, text=text, status=int(is_left))


def _clean(device: Device, folder: Path, programs: Programs, *, is_kept: bool) -> dict[str, Any]:
    gpu: dict[str, Any] = {"uuid": device.uuid, "name": device.name, "undone": [], "failed": [], "refused": None}
    device_journal = Journal(folder, device.uuid, programs)
    try:
        with lease.hold(device, folder):
            if not is_kept and is_made_for_study(device.uuid):
                gone = device_journal.forget_device_steps()
                gpu["undone"] = [f"{describe(step)}: gone with its simulated machine" for step in gone]
            data = undo(device_journal)
            gpu["undone"], gpu["failed"] = gpu["undone"] + data["undone"], data["failed"]
            device_journal.refuse_foreign()
    except CollocationError as error:
        gpu["refused"] = str(error)
    if gpu["failed"] and not is_there(device):
        gpu["refused"] = (
            f"{device.uuid} is not in this machine; add --machine FILE if it is simulated, or remove "
            f"{device_journal.path} if the device was removed permanently"
        )
    return gpu


def _list_cleaned(gpu: dict[str, Any]) -> list[str]:
    named = [f"{gpu['name']} ({gpu['uuid']}): {line}" for line in list_undone(gpu)]
    return named if gpu["refused"] is None else [*named, gpu["refused"]]
