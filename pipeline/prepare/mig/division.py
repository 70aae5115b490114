"""Divides a GPU into the instances of a layout; each change is written to the journal first.

Instances of other users are never changed: a GPU that already has instances, or is in use, is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from pipeline.base.domain.records import Commands, Device
from pipeline.base.system import entry_points
from pipeline.base.system.command_parser import choose_remedy
from pipeline.base.system.errors import SharingError
from pipeline.base.system.host_info import boot_id
from pipeline.base.system.interrupts import UndoStack
from pipeline.clean.journal import Journal
from pipeline.prepare.device import gpu_reader
from pipeline.prepare.mig import compute
from pipeline.prepare.mig.layouts import Instance, Layout
from pipeline.prepare.mig.mig_smi import MigSmi
from pipeline.prepare.mig.mig_state import GpuInstance, MigDevice, MigState


def refuse_unready(device: Device, state: MigState) -> None:
    """Raise SharingError if a GPU has a pending change of MIG mode, has GPU instances, or is in use."""
    gpu_name = f"{device.name} ({device.uuid})"
    if not state.is_settled:
        pending, current = ("on", "off") if state.is_pending_on else ("off", "on")
        raise SharingError(
            f"{gpu_name} has a pending change of MIG mode from {current} to {pending}; reset the GPU as administrator: "
            f"nvidia-smi -i {device.uuid} --gpu-reset"
        )
    if state.instances:
        ids = ", ".join(str(instance.gi_id) for instance in state.instances)
        remedy = choose_remedy(
            "use them with scenario=mig scenario.layout=existing, choose another GPU", "choose another GPU with --gpu"
        )
        raise SharingError(
            f"{gpu_name} already has the GPU instances {ids}; {remedy}, or remove them: "
            f"{entry_points.spell('gpu', 'clean')} after a killed run, {entry_points.spell('gpu', 'destroy')} for "
            "instances made by hand"
        )
    if clients := gpu_reader.list_staying_processes(device.uuid, lambda process: True):
        whom = ", ".join(map(str, clients))
        remedy = choose_remedy(
            "end these processes (gpu.tolerate has no effect here), or choose another GPU",
            "end these processes, or choose another GPU with --gpu",
        )
        raise SharingError(f"{gpu_name} cannot be divided while it is in use by {whom}; {remedy}")


def list_commands(control: MigSmi, instances: Sequence[Instance], *, is_on: bool) -> Commands:
    """List the commands that `divide` runs on a GPU whose MIG mode is on or off, and the commands that undo them."""
    do: list[tuple[str, ...]] = []
    undo: list[tuple[str, ...]] = []
    for instance in instances:
        do.append(
            control.creation_command(instance.profile.profile_id, instance.start, is_divided=bool(instance.parts))
        )
        widths = [instance.parts[position] for position in compute.order_for_creation(instance.parts)]
        do += [
            control.part_creation_command("<GI>", compute.find_profile_id(instance.profile, width)) for width in widths
        ]
        undo += [control.destruction_command("<GI>", "<CI>")] * max(len(instance.parts), 1) + [
            control.destruction_command("<GI>")
        ]
    creation = Commands(do=tuple(do), undo=tuple(undo))
    if is_on:
        return creation
    return Commands(do=(control.mode_command(is_on=True),), undo=(control.mode_command(is_on=False),)).around(creation)


def divide(control: MigSmi, before: MigState, layout: Layout, journal: Journal, stack: UndoStack) -> list[MigDevice]:
    """Switch MIG mode on if it is off, and create the instances; return the MIG devices in the order of the jobs.

    The stack undoes all changes, also after an error.

    Raises:
        SharingError: a command is not permitted, or the instances on the GPU differ from the layout afterwards.
    """
    if not before.is_on:
        stack.enter_context(journal.guard("mig_mode", **control.to_mode_record()))
        control.switch_on()
    instances: dict[int, GpuInstance] = {}
    parts: dict[int, list[MigDevice]] = {}
    for instance in layout.creation_order:
        instances[instance.job], parts[instance.job] = make_instance(control, instance, journal, stack)
    state = control.read()
    if set(state.instances or ()) != set(instances.values()):
        raise SharingError(
            f"{control.uuid} was divided into the GPU instances {describe_instances(instances.values())}, but NVML "
            f"lists {describe_instances(state.instances or ())}; stop the other program that changes this GPU"
        )
    undivided = {device.gi_id: [device] for device in state.devices}
    devices = [device for job in sorted(instances) for device in parts[job] or undivided.get(instances[job].gi_id, [])]
    if set(devices) != set(state.devices):
        places = ", ".join(f"{device.gi_id}/{device.ci_id}" for device in state.devices)
        raise SharingError(
            f"{control.uuid} was divided, but NVML lists unexpected compute instances: {places} (GPU instance/compute "
            "instance); stop the other program that changes this GPU"
        )
    return devices


def make_instance(
    control: MigSmi, planned: Instance, journal: Journal, stack: UndoStack
) -> tuple[GpuInstance, list[MigDevice]]:
    """Create one GPU instance; return it with the compute instances of its parts, if it has any.

    The stack undoes the creation, also after an error.

    Raises:
        SharingError: a command is not permitted, or did not create what was planned.
    """
    place = {"profile_id": planned.profile.profile_id, "start": planned.start}
    arguments = control.to_record() | place | {"boot": boot_id()} | ({"is_divided": True} if planned.parts else {})
    step = stack.enter_context(journal.guard("mig_instance", **arguments))
    created = control.create(**place, amend=partial(journal.amend, step), is_divided=bool(planned.parts))
    return created, _make_parts(control, planned, created, journal, stack)


def _make_parts(
    control: MigSmi, planned: Instance, instance: GpuInstance, journal: Journal, stack: UndoStack
) -> list[MigDevice]:
    devices: dict[int, MigDevice] = {}
    for position in compute.order_for_creation(planned.parts):
        slices, existing_ids = planned.parts[position], [device.ci_id for device in devices.values()]
        step = stack.enter_context(
            journal.guard(
                "mig_compute_instance",
                **control.to_record(),
                profile_id=instance.profile_id,
                start=instance.start,
                gi_id=instance.gi_id,
                slices=slices,
                beside=existing_ids,
                boot=boot_id(),
            )
        )
        devices[position] = control.create_part(
            instance.gi_id,
            compute.find_profile_id(planned.profile, slices),
            slices,
            existing_ids,
            partial(journal.amend, step),
        )
    return [devices[position] for position in sorted(devices)]


def describe_instances(instances: Iterable[GpuInstance]) -> str:
    """Describe GPU instances in the order of their first memory slices."""
    return ", ".join(map(str, sorted(instances, key=lambda instance: instance.start))) or "none"
