"""Undoes the changes of killed orchestrators; changes nothing that is not in a journal of this project."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipeline import rehearsal
from pipeline.base.domain.driver_programs import Programs
from pipeline.base.domain.records import Device
from pipeline.base.system.command_parser import CommandAnswer
from pipeline.base.system.errors import CollocationError
from pipeline.clean import leftovers, temporary_folder
from pipeline.clean.journal import Journal
from pipeline.gpu.status import (
    describe,
    find_simulated_programs,
    find_targets,
    is_there,
    list_undone,
    make_printable,
    open_driver,
    undo,
)
from pipeline.prepare.device import lease
from pipeline.simulation.machine.state_file import is_made_for_study


def clean(gpu: str | None, folder: Path, machine: str | None) -> CommandAnswer:
    """Clean the selected GPUs (see `open_driver`, `find_targets`); the exit status is 1 if anything is not undone."""
    with open_driver(gpu, machine) as selector:
        is_real = machine is None and selector == gpu
        meant = find_targets(selector, folder, is_real=is_real)
        # Processes are ended first, as at the start of a study: an instance with a process cannot be destroyed.
        abandoned = leftovers.find_abandoned()
        hanging = {str(path): pids for path in abandoned if (pids := leftovers.clear_abandoned(path))}
        rehearsal.remove_abandoned()
        temporary_folder.remove_abandoned()
        # MIG devices come first: their processes, such as MPS daemons in their journals, block instances of the GPU.
        meant.sort(key=lambda device: device.parent is None)
        # Absent devices and devices of a finished simulation must not be cleaned with the real driver programs.
        simulated = Programs(simulated=find_simulated_programs(machine) or {}, admin=())
        gpus = [
            _clean(
                device, folder, Programs() if is_real and is_there(device) else simulated, is_kept=machine is not None
            )
            for device in meant
        ]
    ended = {str(path): pids for path, pids in abandoned.items() if str(path) not in hanging}
    lines = [f"removed {path}" + (f" and ended processes {pids}" if pids else "") for path, pids in ended.items()]
    lines += [line for gpu_report in gpus for line in _list_lines(gpu_report)]
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


def _list_lines(gpu: dict[str, Any]) -> list[str]:
    named = [f"{gpu['name']} ({gpu['uuid']}): {line}" for line in list_undone(gpu)]
    return named if gpu["refused"] is None else [*named, gpu["refused"]]
