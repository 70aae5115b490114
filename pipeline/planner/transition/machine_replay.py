"""The replay of a transition on a simulated machine, with lease, journal and MIG control.

The replay changes MIG modes and GPU instances with the commands for a real GPU; the start and end of services are only
logged. A log in a folder next to the machine file records the start and end of every step. After a kill, at most one
step is unfinished: the journal removes a half-created GPU instance, and the next replay completes the step. After a
failed step, the GPU of the step is not changed further, and the remaining steps are planned again.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pipeline import rehearsal
from pipeline.base.domain import mig_table
from pipeline.base.domain.driver_programs import Programs
from pipeline.base.domain.records import Device
from pipeline.base.system import json_decoder
from pipeline.base.system.errors import ConfigError, SharingError
from pipeline.base.system.host_info import boot_id
from pipeline.base.system.interrupts import UndoStack
from pipeline.clean import journal, journal_file
from pipeline.clean.journal import Journal
from pipeline.planner import input_files
from pipeline.planner.deployment import Gpu
from pipeline.planner.transition import transition_plan, transition_steps
from pipeline.planner.transition.search_state import Kind
from pipeline.planner.transition.transition_plan import NoTransitionError, get_kind
from pipeline.planner.transition.transition_steps import GpuProgress, Slice, Step, Transition
from pipeline.prepare.device import lease, nvml
from pipeline.prepare.mig import profiles
from pipeline.prepare.mig.mig_smi import MigSmi, destroy_instance, switch_off
from pipeline.simulation.machine.state_file import StateFile


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The outcome of one start of a replay.

    Attributes:
        was_set_up: whether the current deployment was created first, because the machine was new or empty.
        earlier: number of steps that earlier starts completed.
        done: number of steps that this start completed.
        put_back: descriptions of the changes of a killed start that the journals undid.
        failures: failed steps, each with its GPU and the reason.
        reason: reason for stopping early; `None` if the new deployment is reached.
    """

    was_set_up: bool = False
    earlier: int = 0
    done: int = 0
    put_back: list[str] = field(default_factory=list)
    failures: list[dict[str, str]] = field(default_factory=list)
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _LockedGpu:
    """A GPU whose lease this process holds."""

    device: Device
    programs: Programs
    journal: Journal
    names: Mapping[int, str]  # names of the MIG profiles, by id

    @property
    def control(self) -> MigSmi:
        """The MIG control of the GPU."""
        return MigSmi.locate(self.programs, self.device.uuid)

    def slices(self) -> set[Slice]:
        """Return the GPU instances that the driver reports."""
        instances = self.control.read().instances or ()
        return {Slice(profile=self.names[instance.profile_id], start=instance.start) for instance in instances}

    def place(self, slice_: Slice) -> dict[str, int]:
        """Return profile id and start of a GPU instance for the driver."""
        ids = {name: number for number, name in self.names.items()}
        return {"profile_id": ids[slice_.profile], "start": slice_.start}


class _Log:
    """The log of steps and new plans, in a folder next to the machine file."""

    def __init__(self, machine: Path, transition: Transition) -> None:
        self._path = machine.with_name(f"{machine.name}.replay") / "steps.jsonl"
        lines = [json.loads(line) for line in journal_file.read(self._path)]
        digest = hashlib.sha256(json.dumps(json_decoder.encode(transition), sort_keys=True).encode()).hexdigest()
        if lines and lines[0]["transition"] != digest:
            if "reached" not in lines[-1]:
                raise ConfigError(
                    f"{machine} has an unfinished transition; finish its replay, or remove the folder "
                    f"{self._path.parent}"
                )
            journal_file.remove(self._path)
            lines = []
        if not lines:
            journal_file.append(self._path, {"transition": digest})
        self.transition = transition
        self.done: set[str] = set()
        self.begun: str | None = None
        self.is_set_up = self.is_reached = False
        for line in lines[1:]:
            self._apply(line)

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line durably."""
        journal_file.append(self._path, dict(line))
        self._apply(line)

    def _apply(self, line: Mapping[str, Any]) -> None:
        if "begun" in line:
            self.begun = line["begun"]
        elif "done" in line:
            self.done.add(line["done"])
            self.begun = None
        elif "planned" in line:
            self.transition = input_files.decode(Transition, line["planned"], str(self._path))
            self.done, self.begun = set(), None
        self.is_set_up = self.is_set_up or "set_up" in line
        self.is_reached = "reached" in line


def replay(transition: Transition, machine: Path, locks: Path, report: Callable[[str, Step], None]) -> Outcome:
    """Carry out the remaining steps of a transition on a simulated machine, which is created if missing.

    Raises:
        ConfigError: the machine has other GPUs, or is not in the initial state of the transition.
        CollocationError: the machine is in use, or a journal cannot be replayed.
    """
    machine = machine.expanduser().resolve()
    most = transition_plan.count_usable_gpus(transition.today.gpus, transition.tomorrow.gpus, transition.spare)
    StateFile(machine).keep(_list_models(transition, most))
    outcome = Outcome()
    with rehearsal.open_machine(machine), ExitStack() as stack:
        programs = rehearsal.write_programs_beside(StateFile(machine))
        helpers = Programs(purpose="a replay", simulated={name: str(path) for name, path in programs.items()}, admin=())
        gpus, spare = _find_gpus(transition, machine, most)
        held = {}
        for name, (gpu, device) in gpus.items():
            stack.enter_context(lease.hold(device, locks))
            names = {p.profile_id: p.name for p in profiles.load_model(gpu.model, gpu.driver_branch).profiles}
            held[name] = _LockedGpu(
                device=device, programs=helpers, journal=Journal(locks, device.uuid, helpers), names=names
            )
        for locked in held.values():
            outcome.put_back += [journal.describe(step) for step in journal.replay(locked.journal)]
        log = _Log(machine, transition)
        outcome.earlier = len(log.done)
        _Replay(held, log, spare, most, outcome, report).run()
    return outcome


class _Replay:
    """One start of a replay; the logged state of each GPU is first compared with the driver's state."""

    def __init__(
        self,
        held: Mapping[str, _LockedGpu],
        log: _Log,
        spare: Sequence[Gpu],
        most: Mapping[Kind, int],
        outcome: Outcome,
        report: Callable[[str, Step], None],
    ) -> None:
        self._held, self._log, self._spare, self._most = held, log, spare, most
        self._outcome, self._report = outcome, report
        self._progress = transition_steps.advance_progress(log.transition, log.done)

    def run(self) -> None:
        """Set up the machine, compare its state with the log, and carry out all remaining steps."""
        if self._log.is_reached:
            return
        if not self._log.is_set_up:
            self._set_up()
        self._compare()
        while (step := self._next()) is not None:
            self._log.write({"begun": step.id})
            try:
                self._take(step)
            except SharingError as error:
                self._report("failed", step)
                self._outcome.failures.append({"step": step.id, "gpu": step.gpu, "reason": str(error)})
                if not self._plan_anew(step):
                    return
                continue
            transition_steps.apply_step(self._progress, step)
            self._log.write({"done": step.id})
            self._outcome.done += 1
            self._report("done", step)
        self._log.write({"reached": True})

    def _next(self) -> Step | None:
        done = self._log.done
        remaining = (step for step in self._log.transition.steps if step.id not in done)
        return next((step for step in remaining if done.issuperset(step.after)), None)

    def _set_up(self) -> None:
        """Create the current GPU instances on an empty machine, or the remaining GPU instances after a kill."""
        present = {name: gpu.slices() for name, gpu in self._held.items()}
        if any(present[name] - state.slices for name, state in self._progress.items()):
            self._compare()  # raises, because other GPU instances exist
        for name, state in self._progress.items():
            if state.mode == "mig" and state.slices != present[name]:
                self._outcome.was_set_up = True
                self._make(name, tuple(state.slices))
        self._log.write({"set_up": True})

    def _compare(self) -> None:
        unfinished = next((step for step in self._log.transition.steps if step.id == self._log.begun), None)
        for name, state in self._progress.items():
            present, gone, added = self._held[name].slices(), set[Slice](), set[Slice]()
            if name in self._log.transition.set_aside:
                gone = set(state.idle)  # the journal may have removed instances of a failed step
            if unfinished is not None and unfinished.kind == "repartition" and unfinished.gpu == name:
                gone, added = set(unfinished.destroyed), set(unfinished.made)
            if not (state.slices - gone <= present <= state.slices | added):
                raise ConfigError(
                    f"GPU {name} of the machine has {_list_slices(present)}, not {_list_slices(state.slices)} as the "
                    "transition expects; replay on a new machine"
                )

    def _take(self, step: Step) -> None:
        held = self._held[step.gpu]
        if step.kind == "repartition":
            for slice_ in sorted(set(step.destroyed) & held.slices(), key=lambda slice_: slice_.start):
                arguments: dict[str, Any] = {**held.control.to_record(), **held.place(slice_)}
                destroy_instance(held.programs, **arguments)
            if step.mode == "mig":
                self._make(step.gpu, step.made)
            elif held.control.read().is_on:
                switch_off(held.programs, **held.control.to_record())
        elif step.instance is not None and step.instance.start is not None and step.kind != "delete":
            required = Slice(profile=str(step.instance.profile), start=step.instance.start)
            if required not in held.slices():
                raise SharingError(f"GPU {step.gpu} has no {_list_slices({required})} for {step.instance.service}")

    def _make(self, name: str, required: Sequence[Slice]) -> None:
        """Create missing GPU instances; each instance is in the journal until it is complete."""
        held = self._held[name]
        if not held.control.read().is_on:
            with _until_complete(held.journal, "mig_mode", held.control.to_record()):
                held.control.switch_on()
        size = {profile.name: profile.size for profile in profiles.load_model(held.device.name).profiles}
        missing = set(required) - held.slices()
        larger_first = sorted(missing, key=lambda slice_: (size[slice_.profile], -slice_.start), reverse=True)
        for slice_ in larger_first:
            arguments = {**held.control.to_record(), **held.place(slice_), "boot": boot_id()}
            with _until_complete(held.journal, "mig_instance", arguments) as amend:
                held.control.create(arguments["profile_id"], arguments["start"], amend)

    def _plan_anew(self, failed: Step) -> bool:
        """Plan the remaining steps without the GPU of a failed step; return whether a plan was found."""
        self._progress[failed.gpu].slices = self._held[failed.gpu].slices()
        old = self._log.transition
        names = set(self._progress)
        extra = {str(gpu.id): GpuProgress(gpu=gpu, mode=gpu.mode) for gpu in self._spare if gpu.id not in names}
        start = transition_steps.restart(old, self._progress | extra, {*old.set_aside, failed.gpu})
        count = Counter(get_kind(gpu) for gpu in start.today.gpus)
        most = {kind: min(number, count[kind]) for kind, number in self._most.items()}
        try:
            planned = transition_plan.find_steps(start, most)
        except NoTransitionError as error:
            self._outcome.reason = f"step {failed.id} failed on GPU {failed.gpu}; without that GPU, {error}"
            return False
        self._log.write({"planned": json_decoder.encode(planned)})
        self._progress = transition_steps.make_initial_progress(planned)
        return True


@contextmanager
def _until_complete(book: Journal, kind: str, arguments: Mapping[str, Any]) -> Iterator[Callable[..., None]]:
    """Keep a step in the journal while the body runs, which may amend it; undo it if the body fails."""
    with UndoStack() as stack:
        step = book.add(kind, **arguments)
        stack.callback(book.undo, step)
        yield partial(book.amend, step)
        stack.pop_all()
        book.discard(step)


def _list_models(transition: Transition, most: Mapping[Kind, int]) -> list[str]:
    """Return the GPU models of a new machine: the transition's models in their order, then unused spare models."""
    count = Counter(get_kind(gpu) for gpu in transition.today.gpus)
    spare = [kind.model for kind, number in most.items() for _ in range(number - count[kind])]
    return [*(gpu.model for gpu in transition.today.gpus), *spare]


def _find_gpus(
    transition: Transition, machine: Path, most: Mapping[Kind, int]
) -> tuple[dict[str, tuple[Gpu, Device]], list[Gpu]]:
    """Find the GPUs of a transition by index or UUID, and unused spare GPUs."""
    devices = nvml.list_devices()
    models = [gpu.model for gpu in StateFile(machine).read().gpus]
    by_name = {device.uuid: device for device in devices} | {str(device.index): device for device in devices}
    gpus: dict[str, tuple[Gpu, Device]] = {}
    for gpu in transition.today.gpus:
        device = by_name.get(str(gpu.id))
        if device is None or device.index is None:
            raise ConfigError(
                f"machine {machine} has no GPU {gpu.id}, only {len(devices)} GPUs numbered from 0; replay on a new "
                "machine"
            )
        if models[device.index] != mig_table.find(gpu.model).name:
            raise ConfigError(
                f"GPU {gpu.id} of {machine} is {models[device.index]}, not {gpu.model}; replay on a new machine"
            )
        gpus[str(gpu.id)] = (gpu, device)
    used = {device.uuid for _, device in gpus.values()}
    spare = []
    for kind, number in most.items():
        free = [device for device in devices if device.uuid not in used and models[device.index or 0] == kind.model]
        missing = number - sum(get_kind(gpu) == kind for gpu, _ in gpus.values())
        for device in free[: max(missing, 0)]:
            gpu = Gpu(model=kind.model, driver_branch=kind.driver_branch, instances=(), id=str(device.index))
            gpus[str(gpu.id)] = (gpu, device)
            used.add(device.uuid)
            spare.append(gpu)
    return gpus, spare


def _list_slices(slices: Iterable[Slice]) -> str:
    in_order = sorted(slices, key=lambda slice_: slice_.start)
    return ", ".join(f"{slice_.profile}@{slice_.start}" for slice_ in in_order) or "no instances"
