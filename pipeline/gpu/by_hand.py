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
from pipeline.base.domain.answer import Answer
from pipeline.base.domain.programs import Programs, refuse_absent_admin
from pipeline.base.domain.records import Device
from pipeline.base.system.errors import CollocationError, ConfigError, InUseError
from pipeline.base.system.interrupts import UndoStack
from pipeline.base.system.paths import expanded
from pipeline.clean import journal, leftovers
from pipeline.clean.journal import BY_HAND, Journal
from pipeline.gpu.status import command, driver, in_words, is_of, printable, whole_gpu
from pipeline.prepare.device import gpu_reader, lease
from pipeline.prepare.mig import compute, division, profiles
from pipeline.prepare.mig.control import Control
from pipeline.prepare.mig.partitions import Instance, Layout
from pipeline.prepare.mig.state import MigDevice
from pipeline.simulation.machine.state_file import StateFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """On what a command works.

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
    def destroy(self) -> str:
        """The command that undoes what `create` made here."""
        return command("destroy", self.folder, self.machine, None if self.gpu == "0" else self.gpu)

    @property
    def is_model(self) -> bool:
        return self.machine is None and self.gpu.startswith(profiles.SIMULATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """The GPU, its nvidia-smi, the journal of what is to be undone, and that of what was made by hand."""

    device: Device
    is_simulated: bool
    control: Control
    left: Journal
    made: Journal

    @property
    def name(self) -> str:
        return f"{self.device.name} ({self.device.uuid})"


def create(request: str, asked: Asked) -> Answer:
    """Make the instances of a layout, `3g,2g,1g`, to stay until `destroy`; MIG mode is switched on if it was off.

    Raises:
        ConfigError: it is not legal, or somebody holds the GPU, which nobody has touched then.
        SharingError: it did not become what was asked for, and was undone.
    """
    with ExitStack() as stack:
        with _refused_as_it_is():
            target = stack.enter_context(_target(asked))
            layout = _layout(target.device, request)
            _refuse_made(target, asked)
            stack.enter_context(_held(target, asked))
        if not asked.is_dry:
            _undo_leftovers(target)
        with _refused_as_it_is():
            before = target.control.read()
            division.refuse_what_is_not_ours(target.device, before)
        if asked.is_dry:
            return _shown(target, division.commands(target.control, layout.in_creation_order, is_on=before.is_on).do)
        with UndoStack() as undo:
            made = division.divide(target.control, before, layout, target.left, undo)
            target.left.hand_over(target.made)  # from here on there is nothing that the stack could undo
        rows = [_row(instance, name, each) for each, (instance, name) in zip(made, layout.devices, strict=True)]
    lines = [f"made {row['profile']} at {row['start']}:{row['size']}: {row['uuid']}" for row in rows]
    if any(each.parts for each in layout.instances):
        lines.insert(0, f"the GPU instances are {', '.join(map(str, layout.instances))}")
    if not before.is_on:
        lines.insert(0, "switched MIG mode on")
    lines.append(f"they stay until: {asked.destroy}; to use them: scenario=mig scenario.layout=existing")
    data = {"has_switched_mode": not before.is_on, "instances": rows}
    return Answer(data=_named(target) | data, text=_text(target, lines))


def destroy(asked: Asked) -> Answer:
    """Undo what `create` did, and nothing else; the status is 1 when some of it is left.

    Raises:
        ConfigError: somebody uses the instances, or another user made them; nothing was touched then.
    """
    with ExitStack() as stack:
        with _refused_as_it_is():
            target = stack.enter_context(_target(asked))
            stack.enter_context(_held(target, asked))
        if not asked.is_dry:
            _undo_leftovers(target)
        with _refused_as_it_is():
            _refuse_of_others(target, asked)
            steps = target.made.steps()
            _refuse_users(target, asked)
        if asked.is_dry:
            planned = [in_words(step) for step in reversed(steps)]
            return _answer(target, {"would_undo": planned}, [f"would undo: {each}" for each in planned])
        undone, failed = journal.undo_all(target.made)
        done = [in_words(step) for step in undone]
        left = [{"undoing": in_words(step), "reason": str(error)} for step, error in failed]
        lines = [f"undone: {each}" for each in done]
        lines += [f"not undone: {each['undoing']}. {each['reason']}" for each in left]
        return _answer(target, {"undone": done, "failed": left}, lines, status=int(bool(left)))


def _undo_leftovers(target: _Target) -> None:
    """Undo what killed orchestrators left, their processes first: an instance with one on it cannot be destroyed."""
    leftovers.clear_all_abandoned()
    journal.replay(target.left)


def _answer(target: _Target, data: dict[str, Any], lines: Sequence[str], *, status: int = 0) -> Answer:
    text = _text(target, lines or ["nothing was made by hand"])
    return Answer(data=_named(target) | data, text=text, status=status)


def _shown(target: _Target, commands: Sequence[Sequence[str]]) -> Answer:
    lines = [shlex.join(words) for words in commands]
    data = _named(target) | {"commands": [list(words) for words in commands]}
    return Answer(data=data, text=_text(target, [f"would run: {line}" for line in lines]))


def _named(target: _Target) -> dict[str, Any]:
    return {"gpu": target.device.uuid, "name": target.device.name, "is_simulated": target.is_simulated}


def _text(target: _Target, lines: Sequence[str]) -> str:
    name = f"simulated {target.name}" if target.is_simulated else target.name
    return "\n".join(printable(line) for line in (name, *(f"   {line}" for line in lines)))


def _row(planned: Instance, name: str, device: MigDevice) -> dict[str, Any]:
    place = {"profile": name, "start": planned.start, "size": planned.profile.memory_slices}
    return place | {"id": device.gi_id, "compute_instance_id": device.ci_id, "uuid": device.uuid}


@contextmanager
def _refused_as_it_is() -> Iterator[None]:
    """What is wrong before anything is touched refuses the command."""
    try:
        yield
    except InUseError as error:
        raise ConfigError(f"{error.whom}: wait until that is done, or choose another GPU with --gpu") from error
    except CollocationError as error:
        raise ConfigError(str(error)) from error


@contextmanager
def _target(asked: Asked) -> Iterator[_Target]:
    with driver(asked.gpu, asked.machine) as selector:
        if asked.is_model and not asked.is_dry:
            raise ConfigError(f"{asked.gpu} is a model: add --dry-run, or name a simulated machine with --machine FILE")
        device = whole_gpu(selector, asked.folder)
        # Nobody becomes an administrator for a simulated GPU.
        programs = Programs(what="MIG by hand", own=_own(asked), admin=asked.admin if asked.machine is None else ())
        made = Journal(asked.folder, device.uuid, programs, BY_HAND)
        if asked.is_model:
            control = Control(uuid=device.uuid, program="nvidia-smi", admin=asked.admin or ())
        else:
            control = Control.found(programs, device.uuid, _recorded_admin(made))
            refuse_absent_admin(control.admin, f"--admin {','.join(control.admin)}", "--admin sudo,-n")
        yield _Target(
            device=device,
            is_simulated=asked.is_model or asked.machine is not None,
            control=control,
            left=Journal(asked.folder, device.uuid, programs),
            made=made,
        )


def _recorded_admin(made: Journal) -> Sequence[str]:
    """What `create` put before its commands: instances may be shown to administrators only."""
    return next((step.arguments["admin"] for step in made.steps() if "admin" in step.arguments), ())


def _own(asked: Asked) -> dict[str, str] | None:
    """The programs of a simulated machine; `None` for those of this one."""
    if asked.machine is None:
        return None
    file = StateFile(expanded("--machine", asked.machine).resolve())
    return {name: str(path) for name, path in rehearsal.write_programs_beside(file).items()}


def _layout(device: Device, request: str) -> Layout:
    gpu = profiles.read_gpu(device)
    return compute.plan_layout(gpu, [compute.resolve(gpu, each) for each in request.split(",")])


@contextmanager
def _held(target: _Target, asked: Asked) -> Iterator[None]:
    """Hold the GPU; a dry run only looks who does."""
    if asked.is_model:
        yield  # it exists for this command only
        return
    target.left.refuse_those_of_others()
    if not asked.is_dry:
        with lease.hold(target.device, asked.folder):
            yield
        return
    if (holder := lease.held_by(target.device, asked.folder)) is not None:
        raise InUseError("", f"{target.name}, which is held by {holder}", lambda: False)
    yield


def _refuse_made(target: _Target, asked: Asked) -> None:
    _refuse_of_others(target, asked)
    if steps := target.made.steps():
        raise ConfigError(
            f"{target.name} was divided by hand before ({len(steps)} steps to undo): first {asked.destroy}, or use "
            "what is there: scenario=mig scenario.layout=existing"
        )


def _refuse_of_others(target: _Target, asked: Asked) -> None:
    for found in target.made.others():
        raise ConfigError(f"{target.name} was divided by hand by user {found.owner}, who can undo it: {asked.destroy}")


def _refuse_users(target: _Target, asked: Asked) -> None:
    """Refuse to take instances from processes that use them, also from those that a killed study left on one."""
    state, steps = target.control.read(), target.made.steps()
    ours = {each.gi_id for each in state.instances or () if any(is_of(step, each) for step in steps)}
    for device in state.devices:
        if device.gi_id in ours and (users := gpu_reader.staying_processes(device.uuid, lambda process: True)):
            listed = ", ".join(map(str, users))
            is_left = Journal(asked.folder, device.uuid).steps()
            how = f"first {command('clean', asked.folder, asked.machine)}" if is_left else "end them first"
            raise ConfigError(f"{device.uuid} of {target.name} is in use by {listed}: {how}")
