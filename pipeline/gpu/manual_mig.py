"""MIG by hand: `create` divides a GPU for whoever comes, `destroy` undoes it. Neither touches what others made.

While it is made, each step is in the journal of the device, as a study's: the next start undoes what a killed `create`
left. Once all is made, the steps move to a file of their own, in one rename, which no start undoes but `destroy`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline import rehearsal
from pipeline.base.domain.command_answer import CommandAnswer
from pipeline.base.domain.driver_programs import Programs, refuse_absent_admin
from pipeline.base.domain.records import Device
from pipeline.base.system.errors import CollocationError, ConfigError, InUseError
from pipeline.base.system.interrupts import UndoStack
from pipeline.base.system.paths import expand_path
from pipeline.clean import journal, leftovers
from pipeline.clean.journal import BY_HAND, Journal
from pipeline.gpu.status import (
    describe,
    find_gpu,
    is_made_by,
    list_undone,
    make_printable,
    open_driver,
    spell_command,
    undo,
)
from pipeline.prepare.device import gpu_reader, lease
from pipeline.prepare.mig import compute, division, profiles
from pipeline.prepare.mig.layouts import Instance, Layout
from pipeline.prepare.mig.mig_smi import MigSmi
from pipeline.prepare.mig.mig_state import MigDevice
from pipeline.simulation.machine.state_file import StateFile

_NOTHING = "nothing was made by hand"


@dataclass(frozen=True, slots=True, kw_only=True)
class ManualMigRequest:
    """GPU, folder and options of one command.

    Attributes:
        gpu: index or UUID of a GPU, or a model, of which the commands can be shown.
        folder: of locks and journals.
        machine: the file of a kept simulated machine, instead of this one.
        admin: put before commands that need an administrator; `None` for what `create` was given, or nothing.
        is_dry: whether the commands are only shown.
    """

    gpu: str
    folder: Path
    machine: str | None = None
    admin: tuple[str, ...] | None = None
    is_dry: bool = False

    @property
    def destroy_command(self) -> str:
        """Command that undoes what `create` made here."""
        return spell_command("destroy", self.folder, self.machine, None if self.gpu == "0" else self.gpu)

    @property
    def is_model(self) -> bool:
        return self.machine is None and self.gpu.startswith(profiles.SIMULATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    device: Device
    is_simulated: bool
    control: MigSmi
    journal: Journal
    manual_journal: Journal

    @property
    def name(self) -> str:
        return f"{self.device.name} ({self.device.uuid})"


def create(layout_request: str, request: ManualMigRequest) -> CommandAnswer:
    """Make the instances of a layout, `3g,2g,1g`, to stay until `destroy`; MIG mode is switched on if it was off.

    Raises:
        ConfigError: the layout is not legal, or the GPU is in use; nothing was touched then.
        SharingError: the GPU was not divided as planned, and the changes were undone.
    """
    with ExitStack() as stack:
        with _refuse_untouched():
            target = stack.enter_context(_open_target(request))
            layout = _plan_layout(target.device, layout_request)
            _refuse_divided(target, request)
            stack.enter_context(_hold(target, request))
        if not request.is_dry:
            _undo_leftovers(target)
        with _refuse_untouched():
            before = target.control.read()
            division.refuse_unready(target.device, before)
        if request.is_dry:
            commands = division.list_commands(target.control, layout.creation_order, is_on=before.is_on).do
            lines = [f"would run: {shlex.join(words)}" for words in commands]
            return _answer(target, {"commands": [list(words) for words in commands]}, lines)
        with UndoStack() as undo:
            devices = division.divide(target.control, before, layout, target.journal, undo)
            target.journal.move_to(target.manual_journal)  # from here on there is nothing that the stack could undo
        rows = [_row(instance, name, device) for device, (instance, name) in zip(devices, layout.devices, strict=True)]
    lines = [f"made {row['profile']} at {row['start']}:{row['size']}: {row['uuid']}" for row in rows]
    if any(instance.parts for instance in layout.instances):
        lines.insert(0, f"the GPU instances are {', '.join(map(str, layout.instances))}")
    if not before.is_on:
        lines.insert(0, "switched MIG mode on")
    lines.append(f"use them with scenario=mig scenario.layout=existing; remove them: {request.destroy_command}")
    return _answer(target, {"has_switched_mode": not before.is_on, "instances": rows}, lines)


def destroy(request: ManualMigRequest) -> CommandAnswer:
    """Undo what `create` did, and nothing else; the status is 1 when some of it is left.

    Raises:
        ConfigError: the instances are in use, or of another user; nothing was touched then.
    """
    with ExitStack() as stack:
        with _refuse_untouched():
            target = stack.enter_context(_open_target(request))
            stack.enter_context(_hold(target, request))
        if not request.is_dry:
            _undo_leftovers(target)
        with _refuse_untouched():
            _refuse_foreign(target, request)
            steps = target.manual_journal.read_steps()
            _refuse_users(target, request)
        if request.is_dry:
            planned = [describe(step) for step in reversed(steps)]
            lines = [f"would undo: {step}" for step in planned]
            return _answer(target, {"would_undo": planned}, lines or [_NOTHING])
        data = undo(target.manual_journal)
        return _answer(target, data, list_undone(data) or [_NOTHING], status=int(bool(data["failed"])))


def _undo_leftovers(target: _Target) -> None:
    """Undo what killed orchestrators left, their processes first: an instance with one on it cannot be destroyed."""
    leftovers.clear_all_abandoned()
    journal.replay(target.journal)


def _answer(target: _Target, data: dict[str, Any], lines: Sequence[str], *, status: int = 0) -> CommandAnswer:
    name = f"simulated {target.name}" if target.is_simulated else target.name
    text = "\n".join(make_printable(line) for line in (name, *(f"   {line}" for line in lines)))
    gpu = {"gpu": target.device.uuid, "name": target.device.name, "is_simulated": target.is_simulated}
    return CommandAnswer(data=gpu | data, text=text, status=status)


def _row(planned: Instance, name: str, device: MigDevice) -> dict[str, Any]:
    place = {"profile": name, "start": planned.start, "size": planned.profile.memory_slices}
    return place | {"id": device.gi_id, "compute_instance_id": device.ci_id, "uuid": device.uuid}


@contextmanager
def _refuse_untouched() -> Iterator[None]:
    """Turn an error into a refusal, while nothing has been touched."""
    try:
        yield
    except InUseError as error:
        raise ConfigError(f"cannot use {error.holder}; wait for its end, or choose another GPU with --gpu") from error
    except CollocationError as error:
        raise ConfigError(str(error)) from error


@contextmanager
def _open_target(request: ManualMigRequest) -> Iterator[_Target]:
    with open_driver(request.gpu, request.machine) as selector:
        if request.is_model and not request.is_dry:
            raise ConfigError(
                f"--gpu {request.gpu} is a model; add --dry-run, or name a simulated machine with --machine FILE"
            )
        device = find_gpu(selector, request.folder)
        # Nobody becomes an administrator for a simulated GPU.
        programs = Programs(
            purpose="MIG by hand",
            simulated=_find_programs(request),
            admin=request.admin if request.machine is None else (),
        )
        by_hand = Journal(request.folder, device.uuid, programs, BY_HAND)
        if request.is_model:
            control = MigSmi(uuid=device.uuid, program="nvidia-smi", admin=request.admin or ())
        else:
            control = MigSmi.locate(programs, device.uuid, _read_admin(by_hand))
            refuse_absent_admin(control.admin, f"--admin {','.join(control.admin)}", "--admin sudo,-n")
        yield _Target(
            device=device,
            is_simulated=request.is_model or request.machine is not None,
            control=control,
            journal=Journal(request.folder, device.uuid, programs),
            manual_journal=by_hand,
        )


def _read_admin(by_hand: Journal) -> Sequence[str]:
    return next((step.arguments["admin"] for step in by_hand.read_steps() if "admin" in step.arguments), ())


def _find_programs(request: ManualMigRequest) -> dict[str, str] | None:
    if request.machine is None:
        return None
    file = StateFile(expand_path("--machine", request.machine).resolve())
    return {name: str(path) for name, path in rehearsal.write_programs_beside(file).items()}


def _plan_layout(device: Device, request: str) -> Layout:
    gpu = profiles.read_gpu(device)
    return compute.plan_layout(gpu, [compute.resolve(gpu, name) for name in request.split(",")])


@contextmanager
def _hold(target: _Target, request: ManualMigRequest) -> Iterator[None]:
    """Hold the GPU; a dry run only looks who does."""
    if request.is_model:
        yield  # it exists for this command only
        return
    target.journal.refuse_foreign()
    if not request.is_dry:
        with lease.hold(target.device, request.folder):
            yield
        return
    if (holder := lease.describe_holder(target.device, request.folder)) is not None:
        raise InUseError("", f"{target.name}, which is held by {holder}", lambda: False)
    yield


def _refuse_divided(target: _Target, request: ManualMigRequest) -> None:
    _refuse_foreign(target, request)
    if steps := target.manual_journal.read_steps():
        raise ConfigError(
            f"{target.name} was divided by hand before ({len(steps)} steps to undo); undo that with "
            f"{request.destroy_command}, or use its instances with scenario=mig scenario.layout=existing"
        )


def _refuse_foreign(target: _Target, request: ManualMigRequest) -> None:
    for other in target.manual_journal.list_foreign():
        raise ConfigError(
            f"{target.name} was divided by hand by user {other.owner}, who can undo it: {request.destroy_command}"
        )


def _refuse_users(target: _Target, request: ManualMigRequest) -> None:
    """Refuse to take instances from processes that use them, also from those that a killed study left on one."""
    state, steps = target.control.read(), target.manual_journal.read_steps()
    created = {
        instance.gi_id for instance in state.instances or () if any(is_made_by(step, instance) for step in steps)
    }
    for device in state.devices:
        if device.gi_id in created and (users := gpu_reader.list_staying_processes(device.uuid, lambda process: True)):
            listed = ", ".join(map(str, users))
            is_left = Journal(request.folder, device.uuid).read_steps()
            how = (
                f"run first: {spell_command('clean', request.folder, request.machine)}"
                if is_left
                else "end these processes first"
            )
            raise ConfigError(f"{device.uuid} of {target.name} is in use by {listed}; {how}")
