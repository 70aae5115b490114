"""Divides a GPU into the instances of a layout, each change in the journal before it is made.

What somebody else made on the GPU is never touched: a GPU that is not as empty as MIG needs it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pipeline.base.domain.records import Commands, Device
from pipeline.base.system import entry_points
from pipeline.base.system.errors import SharingError
from pipeline.base.system.host import boot_id
from pipeline.base.system.interrupts import UndoStack
from pipeline.clean.journal import Journal
from pipeline.prepare.device import gpu_reader
from pipeline.prepare.mig import compute
from pipeline.prepare.mig.mig_smi import Control
from pipeline.prepare.mig.mig_state import GpuInstance, MigDevice, MigState
from pipeline.prepare.mig.partitions import Instance, Layout


def refuse_what_is_not_ours(device: Device, state: MigState) -> None:
    """Raise SharingError if a GPU is between two modes, divided already, or in use."""
    which = f"{device.name} ({device.uuid})"
    if not state.is_settled:
        wanted, there = ("on", "off") if state.is_pending_on else ("off", "on")
        raise SharingError(
            f"MIG mode of {which} is {there} and waits to be switched {wanted} by a reset, which somebody else asked "
            f"for; an administrator can reset it: nvidia-smi -i {device.uuid} --gpu-reset"
        )
    if state.instances:
        ids = ", ".join(str(instance.gi_id) for instance in state.instances)
        raise SharingError(
            f"{which} has the GPU instances {ids}, which this run did not make: use them with scenario=mig "
            "scenario.layout=existing, choose another GPU, or let their owner destroy them; those made by hand: "
            f"{entry_points.spell('gpu', 'destroy')}; those of an earlier run that was killed: "
            f"{entry_points.spell('gpu', 'clean')}"
        )
    if clients := gpu_reader.staying_processes(device.uuid, lambda process: True):
        whom = ", ".join(map(str, clients))
        raise SharingError(
            f"{which} cannot be divided while it is in use by {whom}: end them, gpu.tolerate does not help here; or "
            "choose another GPU"
        )


def commands(control: Control, instances: Sequence[Instance], *, is_on: bool) -> Commands:
    """What `divide` runs on a GPU whose MIG mode is on or off, and what undoes it."""
    do: list[tuple[str, ...]] = []
    undo: list[tuple[str, ...]] = []
    for each in instances:
        do.append(control.creation(each.profile.profile_id, each.start, is_divided=bool(each.parts)))
        widths = [each.parts[position] for position in compute.in_creation_order(each.parts)]
        do += [control.part_creation("<GI>", compute.profile_id(each.profile, width)) for width in widths]
        undo += [control.destruction("<GI>", "<CI>")] * max(len(each.parts), 1) + [control.destruction("<GI>")]
    made = Commands(do=tuple(do), undo=tuple(undo))
    if is_on:
        return made
    return Commands(do=(control.mode(is_on=True),), undo=(control.mode(is_on=False),)).around(made)


def divide(control: Control, before: MigState, layout: Layout, journal: Journal, stack: UndoStack) -> list[MigDevice]:
    """Switch MIG mode on if it was off, and make the instances; the stack undoes what was done, also after an error.

    Gives the MIG devices in the order of the jobs.

    Raises:
        SharingError: it does not become what was asked for, or we have no permission.
    """
    if not before.is_on:
        stack.enter_context(journal.undoing("mig_mode", **control.recorded_mode()))
        control.switch_on()
    made: dict[int, GpuInstance] = {}
    parts: dict[int, list[MigDevice]] = {}
    for instance in layout.in_creation_order:
        is_divided = bool(instance.parts)
        place = {"profile_id": instance.profile.profile_id, "start": instance.start}
        arguments = control.recorded() | place | {"boot": boot_id()} | ({"is_divided": True} if is_divided else {})
        step = stack.enter_context(journal.undoing("mig_instance", **arguments))
        made[instance.job] = there = control.create(**place, is_divided=is_divided)
        journal.amend(step, gi_id=there.gi_id)
        parts[instance.job] = _make_parts(control, instance, there, journal, stack)
    state = control.read()
    if set(state.instances or ()) != set(made.values()):
        raise SharingError(
            f"{control.uuid} was divided into the instances {listed(made.values())}, but NVML lists "
            f"{listed(state.instances or ())}: somebody else changes it at the same time"
        )
    whole = {each.gi_id: [each] for each in state.devices}
    devices = [each for job in sorted(made) for each in parts[job] or whole.get(made[job].gi_id, [])]
    if set(devices) != set(state.devices):
        places = ", ".join(f"{each.gi_id}/{each.ci_id}" for each in state.devices)
        raise SharingError(
            f"{control.uuid} was divided, but NVML does not list the compute instances that were made: it has {places} "
            "(GPU instance/compute instance): somebody else changes it at the same time"
        )
    return devices


def _make_parts(
    control: Control, planned: Instance, instance: GpuInstance, journal: Journal, stack: UndoStack
) -> list[MigDevice]:
    made: dict[int, MigDevice] = {}
    for position in compute.in_creation_order(planned.parts):
        slices, beside = planned.parts[position], [each.ci_id for each in made.values()]
        step = stack.enter_context(
            journal.undoing(
                "mig_compute_instance",
                **control.recorded(),
                profile_id=instance.profile_id,
                start=instance.start,
                gi_id=instance.gi_id,
                slices=slices,
                beside=beside,
                boot=boot_id(),
            )
        )
        made[position] = control.create_part(
            instance.gi_id, compute.profile_id(planned.profile, slices), slices, beside
        )
        journal.amend(step, ci_id=made[position].ci_id)
    return [made[position] for position in sorted(made)]


def listed(instances: Iterable[GpuInstance]) -> str:
    """GPU instances in words, by their starts."""
    return ", ".join(map(str, sorted(instances, key=lambda each: each.start))) or "none"
