"""MIG instances made by hand: `create` partitions a GPU for any user, `destroy` removes these instances and no others.

While `create` runs, its steps are in the device's journal, like those of a study: if `create` is killed, the next start
of a study undoes them. When `create` is complete, one rename moves the steps to a separate file, which only `destroy`
undoes.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.base.domain import mig_table
from pipeline.base.domain.driver_programs import Programs, refuse_absent_admin
from pipeline.base.domain.records import Device
from pipeline.base.system.command_parser import CommandAnswer
from pipeline.base.system.errors import ConfigError, InUseError
from pipeline.base.system.interrupts import UndoStack
from pipeline.base.system.words import format_count
from pipeline.clean import journal, leftovers
from pipeline.clean.journal import BY_HAND, Journal
from pipeline.gpu.status import (
    describe,
    find_gpu,
    find_simulated_programs,
    is_made_by,
    list_undone,
    make_printable,
    open_driver,
    refuse_untouched,
    spell_command,
    undo,
)
from pipeline.prepare.device import gpu_reader, lease
from pipeline.prepare.mig import compute, division, profiles
from pipeline.prepare.mig.layouts import Instance, Layout
from pipeline.prepare.mig.mig_smi import MigSmi
from pipeline.prepare.mig.mig_state import MigDevice

_NOTHING = "no MIG instances were made by hand"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualMigRequest:
    """GPU, folder and options of one command.

    Attributes:
        gpu: index or UUID of a GPU, or a simulated model, which is only possible in a dry run.
        folder: folder of locks and journals.
        machine: file of a simulated machine, which replaces this machine.
        admin: prefix of commands that need an administrator; `None` for the prefix that `create` used, if any.
        is_dry: whether the commands are shown and not executed.
    """

    gpu: str
    folder: Path
    machine: str | None = None
    admin: tuple[str, ...] | None = None
    is_dry: bool = False

    @property
    def destroy_command(self) -> str:
        """Command that removes the instances of `create`."""
        return spell_command("destroy", self.folder, self.machine, None if self.gpu == "0" else self.gpu)

    @property
    def is_model(self) -> bool:
        return self.machine is None and self.gpu.startswith(mig_table.SIMULATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The GPU of a command, with its programs and journals."""

    device: Device
    is_simulated: bool
    programs: Programs
    control: MigSmi
    journal: Journal
    manual_journal: Journal

    @property
    def name(self) -> str:
        return f"{self.device.name} ({self.device.uuid})"


def create(layout_request: str, request: ManualMigRequest) -> CommandAnswer:
    """Create the instances of a layout, such as `3g,2g,1g`, which remain until `destroy`; enable MIG mode if necessary.

    Raises:
        ConfigError: the layout is not legal, or the GPU is in use; nothing was changed.
        SharingError: the GPU could not be partitioned as planned; the changes were undone.
    """
    with ExitStack() as stack:
        with refuse_untouched():
            target = stack.enter_context(open_target(request))
            layout = _plan_layout(target.device, layout_request)
            _refuse_divided(target, request)
            stack.enter_context(hold_target(target, request))
        if not request.is_dry:
            undo_leftovers(target)
        with refuse_untouched():
            before = target.control.read()
            division.refuse_unready(target.device, before)
        if request.is_dry:
            commands = division.list_commands(target.control, layout.creation_order, is_on=before.is_on).do
            lines = [f"would run: {shlex.join(words)}" for words in commands]
            return _answer(target, {"commands": [list(words) for words in commands]}, lines)
        with UndoStack() as undo:
            devices = division.divide(target.control, before, layout, target.journal, undo)
            target.journal.move_to(target.manual_journal)  # afterwards the stack finds no steps to undo
        rows = [_row(instance, name, device) for device, (instance, name) in zip(devices, layout.devices, strict=True)]
    lines = [f"made {row['profile']} at {row['start']}:{row['size']}: {row['uuid']}" for row in rows]
    if any(instance.parts for instance in layout.instances):
        lines.insert(0, f"the GPU instances are {', '.join(map(str, layout.instances))}")
    if not before.is_on:
        lines.insert(0, "switched MIG mode on")
    lines.append(f"use them with scenario=mig scenario.layout=existing; remove them with: {request.destroy_command}")
    return _answer(target, {"has_switched_mode": not before.is_on, "instances": rows}, lines)


def destroy(request: ManualMigRequest) -> CommandAnswer:
    """Undo only the changes of `create`; the exit status is 1 if any of them remain.

    Raises:
        ConfigError: the instances are in use, or belong to another user; nothing was changed.
    """
    with ExitStack() as stack:
        with refuse_untouched():
            target = stack.enter_context(open_target(request))
            stack.enter_context(hold_target(target, request))
        if not request.is_dry:
            undo_leftovers(target)
        with refuse_untouched():
            _refuse_foreign(target, request)
            steps = target.manual_journal.read_steps()
            _refuse_users(target, request)
        if request.is_dry:
            planned = [describe(step) for step in reversed(steps)]
            lines = [f"would undo: {step}" for step in planned]
            return _answer(target, {"would_undo": planned}, lines or [_NOTHING])
        data = undo(target.manual_journal)
        return _answer(target, data, list_undone(data) or [_NOTHING], status=int(bool(data["failed"])))


def undo_leftovers(target: Target) -> None:
    """Undo the changes of killed orchestrators; first end their processes, which block the removal of instances."""
    leftovers.clear_all_abandoned()
    journal.replay(target.journal)


def _answer(target: Target, data: dict[str, Any], lines: Sequence[str], *, status: int = 0) -> CommandAnswer:
    name = f"simulated {target.name}" if target.is_simulated else target.name
    text = "\n".join(make_printable(line) for line in (name, *(f"   {line}" for line in lines)))
    gpu = {"gpu": target.device.uuid, "name": target.device.name, "is_simulated": target.is_simulated}
    return CommandAnswer(data=gpu | data, text=text, status=status)


def _row(planned: Instance, name: str, device: MigDevice) -> dict[str, Any]:
    place = {"profile": name, "start": planned.start, "size": planned.profile.memory_slices}
    return place | {"id": device.gi_id, "compute_instance_id": device.ci_id, "uuid": device.uuid}


@contextmanager
def open_target(request: ManualMigRequest) -> Iterator[Target]:
    """Open the driver of a request and find its GPU; `ConfigError` if there is none, or a program is missing."""
    with open_driver(request.gpu, request.machine) as selector:
        if request.is_model and not request.is_dry:
            raise ConfigError(
                f"--gpu {request.gpu} is a model, not a GPU of this machine; add --dry-run, or specify a simulated "
                "machine with --machine FILE"
            )
        device = find_gpu(selector, request.folder)
        # Commands for a simulated GPU never need an administrator.
        programs = Programs(
            purpose="MIG by hand",
            simulated=find_simulated_programs(request.machine),
            admin=request.admin if request.machine is None else (),
        )
        by_hand = Journal(request.folder, device.uuid, programs, BY_HAND)
        if request.is_model:
            control = MigSmi(uuid=device.uuid, program="nvidia-smi", admin=request.admin or ())
        else:
            admin = next((step.arguments["admin"] for step in by_hand.read_steps() if "admin" in step.arguments), ())
            control = MigSmi.locate(programs, device.uuid, admin)
            refuse_absent_admin(control.admin, f"--admin {','.join(control.admin)}", "--admin sudo,-n")
        yield Target(
            device=device,
            is_simulated=request.is_model or request.machine is not None,
            programs=programs,
            control=control,
            journal=Journal(request.folder, device.uuid, programs),
            manual_journal=by_hand,
        )


def _plan_layout(device: Device, request: str) -> Layout:
    gpu = profiles.read_gpu(device)
    return compute.plan_layout(gpu, [compute.resolve(gpu, name) for name in request.split(",")])


@contextmanager
def hold_target(target: Target, request: ManualMigRequest) -> Iterator[None]:
    """Hold the GPU; in a dry run, only check that no other process holds it."""
    if request.is_model:
        yield  # the GPU exists only for this command
        return
    target.journal.refuse_foreign()
    if not request.is_dry:
        with lease.hold(target.device, request.folder):
            yield
        return
    if (holder := lease.describe_holder(target.device, request.folder)) is not None:
        raise InUseError("", f"{target.name}, which is held by {holder}", lambda: False)
    yield


def _refuse_divided(target: Target, request: ManualMigRequest) -> None:
    _refuse_foreign(target, request)
    if steps := target.manual_journal.read_steps():
        raise ConfigError(
            f"{target.name} already has MIG instances made by hand ({format_count(len(steps), 'step')} to undo); "
            f"remove them with {request.destroy_command}, or use them with scenario=mig scenario.layout=existing"
        )


def _refuse_foreign(target: Target, request: ManualMigRequest) -> None:
    for other in target.manual_journal.list_foreign():
        raise ConfigError(
            f"user {other.owner} made MIG instances by hand on {target.name}; "
            f"this user can remove them with {request.destroy_command}"
        )


def _refuse_users(target: Target, request: ManualMigRequest) -> None:
    """Refuse to destroy instances that processes use, including processes of killed studies."""
    state, steps = target.control.read(), target.manual_journal.read_steps()
    created = {
        instance.gi_id for instance in state.instances or () if any(is_made_by(step, instance) for step in steps)
    }
    for device in state.devices:
        if device.gi_id in created and (users := gpu_reader.list_staying_processes(device.uuid, lambda process: True)):
            listed = ", ".join(map(str, users))
            is_left = Journal(request.folder, device.uuid).read_steps()
            remedy = (
                f"run first: {spell_command('clean', request.folder, request.machine)}"
                if is_left
                else "end these processes first"
            )
            raise ConfigError(f"{device.uuid} of {target.name} is in use by {listed}; {remedy}")
