"""The replay of a transition on a simulated machine, through the lease, the journal and MIG control.

Only the partitioning is carried out: MIG modes and GPU instances, by the commands that a real GPU would get. No service
runs; its start and end are only logged. A log next to the machine records the begin and end of every step, so a killed
replay leaves at most one step incomplete. The journal then removes a GPU instance that was being created, and the next
start completes the step. After a failed step its GPU is left as it is, and the rest of the transition is replanned.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
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
from pipeline.planner.transition import gpu_progress, transition_plan
from pipeline.planner.transition.gpu_identity import get_kind
from pipeline.planner.transition.gpu_progress import GpuProgress
from pipeline.planner.transition.rooms import Kind
from pipeline.planner.transition.transition_plan import Constraints, NoTransitionError
from pipeline.planner.transition.transition_steps import Slice, Step, Transition
from pipeline.prepare.device import lease, nvml
from pipeline.prepare.mig import profiles
from pipeline.prepare.mig.mig_smi import MigSmi, destroy_instance, switch_off
from pipeline.simulation.machine.state_file import StateFile


@dataclass(slots=True, kw_only=True)
class Outcome:
    """The outcome of one start of a replay.

    Attributes:
        was_set_up: whether the machine was new or empty, and first got the current deployment.
        earlier: steps completed by earlier starts.
        done: steps completed by this start.
        put_back: what the journals of a killed start had to undo, as text.
        failures: of the failed steps, each with its GPU and the reason.
        reason: why it stopped before the end; `None` if the target is reached.
    """

    was_set_up: bool = False
    earlier: int = 0
    done: int = 0
    put_back: list[str] = field(default_factory=list)
    failures: list[dict[str, str]] = field(default_factory=list)
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _LockedGpu:
    """A GPU locked by this process."""

    device: Device
    programs: Programs
    journal: Journal
    names: Mapping[int, str]  # of the MIG profiles, by id

    @property
    def control(self) -> MigSmi:
        """The MIG control of this GPU."""
        return MigSmi.locate(self.programs, self.device.uuid)

    def slices(self) -> set[Slice]:
        """Return its GPU instances as listed by the driver."""
        instances = self.control.read().instances or ()
        return {Slice(profile=self.names[instance.profile_id], start=instance.start) for instance in instances}

    def place(self, slice_: Slice) -> dict[str, int]:
        """Return a GPU instance with the driver's ids."""
        ids = {name: number for number, name in self.names.items()}
        return {"profile_id": ids[slice_.profile], "start": slice_.start}


class _Log:
    """The log of begun and ended steps and of new plans, one line each, in a folder next to the machine."""

    def __init__(self, machine: Path, transition: Transition) -> None:
        self._path = machine.with_name(f"{machine.name}.replay") / "steps.jsonl"
        lines = [json.loads(line) for line in journal_file.read(self._path)]
        digest = hashlib.sha256(json.dumps(json_decoder.encode(transition), sort_keys=True).encode()).hexdigest()
        if lines and lines[0]["transition"] != digest:
            if "reached" not in lines[-1]:
                raise ConfigError(
                    f"{machine} has an unfinished transition; finish its replay, or remove {self._path.parent}"
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
            self._hear(line)

    def write(self, line: Mapping[str, Any]) -> None:
        """Append a line; on return it is on disk."""
        journal_file.append(self._path, dict(line))
        self._hear(line)

    def _hear(self, line: Mapping[str, Any]) -> None:
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
    """Carry out the rest of a transition on a simulated machine, which is created if it does not exist.

    Raises:
        ConfigError: the machine has other GPUs, or its state is not the one from which the transition begins.
        CollocationError: the machine is in use, or a journal cannot be carried out.
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
    """One start. Before the first step, the expected state of each GPU is compared with the driver."""

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
        self._outcome, self._told = outcome, report
        self._now = gpu_progress.advance(log.transition, log.done)

    def run(self) -> None:
        """Set up, compare, and take all remaining steps."""
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
                self._told("failed", step)
                self._outcome.failures.append({"step": step.id, "gpu": step.gpu, "reason": str(error)})
                if not self._plan_anew(step):
                    return
                continue
            gpu_progress.apply_step(self._now, step)
            self._log.write({"done": step.id})
            self._outcome.done += 1
            self._told("done", step)
        self._log.write({"reached": True})

    def _next(self) -> Step | None:
        done = self._log.done
        remaining = (step for step in self._log.transition.steps if step.id not in done)
        return next((step for step in remaining if done.issuperset(step.after)), None)

    def _set_up(self) -> None:
        """Create the initial GPU instances on a machine without any, or complete them after a killed start."""
        present = {name: gpu.slices() for name, gpu in self._held.items()}
        if any(present[name] - state.slices for name, state in self._now.items()):
            self._compare()  # created by another program: report which
        for name, state in self._now.items():
            if state.mode == "mig" and state.slices != present[name]:
                self._outcome.was_set_up = True
                self._make(name, tuple(state.slices))
        self._log.write({"set_up": True})

    def _compare(self) -> None:
        begun = next((step for step in self._log.transition.steps if step.id == self._log.begun), None)
        for name, state in self._now.items():
            present, gone, added = self._held[name].slices(), set[Slice](), set[Slice]()
            if name in self._log.transition.set_aside:
                gone = set(state.idle)  # a later start may have removed what a failed step left incomplete
            if begun is not None and begun.kind == "repartition" and begun.gpu == name:
                gone, added = set(begun.destroyed), set(begun.made)
            if not (state.slices - gone <= present <= state.slices | added):
                raise ConfigError(
                    f"GPU {name} of the machine has {_list_slices(present)}, not {_list_slices(state.slices)} as "
                    "the transition expects; replay on a new machine"
                )

    def _take(self, step: Step) -> None:
        held = self._held[step.gpu]
        if step.kind == "repartition":
            for slice_ in sorted(set(step.destroyed) & held.slices(), key=lambda slice_: slice_.start):
                arguments: dict[str, Any] = {**held.control.to_record(), **held.place(slice_), "boot": boot_id()}
                destroy_instance(held.programs, **arguments)
            if step.mode == "mig":
                self._make(step.gpu, step.made)
            elif held.control.read().is_on:
                switch_off(held.programs, **held.control.to_record())
        elif step.instance is not None and step.instance.start is not None and step.kind != "delete":
            needed = Slice(profile=str(step.instance.profile), start=step.instance.start)
            if needed not in held.slices():
                raise SharingError(
                    f"{_list_slices({needed})} is not on GPU {step.gpu}, where {step.instance.service} is to start"
                )

    def _make(self, name: str, required: Sequence[Slice]) -> None:
        """Create missing GPU instances; each is in the journal until it is complete."""
        held = self._held[name]
        if not held.control.read().is_on:
            with _until_complete(held.journal, "mig_mode", held.control.to_record()):
                held.control.switch_on()
        size = {profile.name: profile.size for profile in profiles.load_model(held.device.name).profiles}
        missing = set(required) - held.slices()
        for slice_ in sorted(
            missing, key=lambda slice_: (size[slice_.profile], -slice_.start), reverse=True
        ):  # larger ones first
            arguments = {**held.control.to_record(), **held.place(slice_), "boot": boot_id()}
            with _until_complete(held.journal, "mig_instance", arguments):
                held.control.create(arguments["profile_id"], arguments["start"])

    def _plan_anew(self, failed: Step) -> bool:
        """Replan, leaving the GPU of a failed step as it is; return whether there is a plan."""
        self._now[failed.gpu].slices = self._held[failed.gpu].slices()
        old = self._log.transition
        known = set(self._now)
        extra = {str(gpu.id): GpuProgress(gpu=gpu, mode=gpu.mode) for gpu in self._spare if gpu.id not in known}
        begin = gpu_progress.restart_from(self._now | extra, {*old.set_aside, failed.gpu})
        count = Counter(get_kind(gpu) for gpu in begin.gpus)
        terms = Constraints(
            old_rates_per_s=old.old_rates_per_s,
            new_rates_per_s=old.new_rates_per_s,
            spare=old.spare,
            durations_s=old.durations_s,
            is_simulated=old.is_simulated,
        )
        most = {kind: min(number, count[kind]) for kind, number in self._most.items()}
        try:
            planned = transition_plan.plan_onward(begin, old.tomorrow.gpus, terms, most)
        except NoTransitionError as error:
            self._outcome.reason = f"step {failed.id} failed on GPU {failed.gpu}, and without that GPU {error}"
            return False
        self._log.write({"planned": json_decoder.encode(planned)})
        self._now = gpu_progress.begin(planned)
        return True


@contextmanager
def _until_complete(book: Journal, kind: str, arguments: Mapping[str, Any]) -> Iterator[None]:
    """Keep a step in the journal while the body takes it; undo it if the body fails."""
    with UndoStack() as stack:
        step = book.add(kind, **arguments)
        stack.callback(book.undo, step)
        yield
        stack.pop_all()
        book.discard(step)


def _list_models(transition: Transition, most: Mapping[Kind, int]) -> list[str]:
    """Return the GPUs of a new machine: those of the transition, in their order, and unused spare ones."""
    count = Counter(get_kind(gpu) for gpu in transition.today.gpus)
    more = [kind.model for kind, number in most.items() for _ in range(number - count[kind])]
    return [*(gpu.model for gpu in transition.today.gpus), *more]


def _find_gpus(
    transition: Transition, machine: Path, most: Mapping[Kind, int]
) -> tuple[dict[str, tuple[Gpu, Device]], list[Gpu]]:
    """Find the GPUs of a transition by id, index or UUID, and unused spare ones of the machine."""
    devices = nvml.list_devices()
    models = [gpu.model for gpu in StateFile(machine).read().gpus]
    by_name = {device.uuid: device for device in devices} | {str(device.index): device for device in devices}
    gpus: dict[str, tuple[Gpu, Device]] = {}
    for gpu in transition.today.gpus:
        device = by_name.get(str(gpu.id))
        if device is None or device.index is None:
            raise ConfigError(f"GPU {gpu.id} is not on the machine {machine}, which has {len(devices)} GPUs, from 0")
        if models[device.index] != mig_table.find(gpu.model).name:
            raise ConfigError(f"GPU {gpu.id} of the machine {machine} is a {models[device.index]}, not {gpu.model}")
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
    return (
        ", ".join(f"{slice_.profile}@{slice_.start}" for slice_ in sorted(slices, key=lambda s: s.start))
        or "no instances"
    )
