"""The GPUs of this host as workers: each free one gets a unit of the study, and the next one when that is done.

A worker is a `run.py ... unit=K gpu.device=UUID` of its own, as on a command line: it holds its GPU, sends what it
measured, and undoes what it did. It is a fork of a process that has imported what it needs (`template.py`), where that
can be. Nothing here touches a GPU.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import selectors
import shlex
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from pipeline import outcome, study
from pipeline.base import cpu_limit, factory, forked, interrupts, mig_table, startup, words
from pipeline.base.errors import ConfigError, InUseError
from pipeline.base.forked import Forked
from pipeline.base.interrupts import Interrupted, UndoStack
from pipeline.base.modes import PROFILE, mode_of
from pipeline.base.protocols import Exporter
from pipeline.base.records import Device, Plan
from pipeline.base.words import counted
from pipeline.clean.journal import Journal
from pipeline.plan import units
from pipeline.plan.schema import GpuKind
from pipeline.prepare.device import chosen, lease, nvml
from pipeline.scale import cpus, workers
from pipeline.scale.template import Template
from pipeline.study import Asked

ALL = "all"
_REFUSED = 2

log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Worker:
    """A run.py on one GPU.

    Attributes:
        what: it runs, in words.
        unit: that it was given; 0 for none.
        has_begun: whether it has announced a group.
        is_quiet: what it says is not passed on; `said_last` is the end of it.
        pending: of each of its outputs, what is no whole line yet.
        num_open: outputs that it has not closed.
        begin_s: when it was started, monotonic.
    """

    device: Device
    what: str
    process: subprocess.Popen[bytes] | Forked
    unit: int = 0
    has_begun: bool = False
    is_quiet: bool = False
    said_last: str = ""
    pending: dict[str, bytes] = field(default_factory=dict)
    num_open: int = 2
    begin_s: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        return f"GPU {self.device.index} {self.what}"


def run(asked: Asked, _: UndoStack, wanted: Any, template: Template | None) -> int:
    """Run the units of a study on the GPUs that are wanted; the worst exit status of the workers."""
    devices = free(asked, wanted, "gpus")
    asked = dataclasses.replace(asked, gpus=devices)
    refuse_taken_ports(asked, devices)
    by_model: dict[str, list[Device]] = {}
    for device in devices:
        by_model.setdefault(device.name, []).append(device)
    num_units = len(workers.planned(asked, lambda _: devices[0]).unit_sizes)
    beside = sum(min(len(members), num_units) for members in by_model.values()) - 1
    of_models = [_for_model(asked, members[0], beside, len(by_model)) for members in by_model.values()]
    plans = [study.planned(each) for each in of_models]
    of_gpus = [(members, plan) for members, (_, plan) in zip(by_model.values(), plans, strict=True)]
    refuse_mode_switches(of_gpus, "name one GPU with 'hydra.launcher.devices=[0]'")
    if asked.config.dry_run:
        status = study.preview(*((each, *planned) for each, planned in zip(of_models, plans, strict=True)))
        words.say(f"its units go to {_listed(devices)}; the time is that of one GPU")
        return status
    parts = []
    for of_model, members, (inventory, plan) in zip(of_models, by_model.values(), plans, strict=True):
        groups, known = study.open_store(of_model, plan, inventory)
        waiting = deque(units.of(groups))
        begun = {row.group.unit: row.gpu_uuid for row in known}
        parts.append(Part(asked=of_model, devices=members, waiting=waiting, begun=begun))
        words.say(
            f"{counted(len(waiting), 'unit')} of {len(units.of(plan.groups))} to run on "
            f"{_listed(members)}"
            f"{f' ({members[0].name})' if len(by_model) > 1 else ''}"
        )
    fleet = Fleet(asked, devices, parts, template)
    try:
        fleet.run()
    finally:
        with interrupts.held():
            is_whole = study.show_all(asked, [plan for _, plan in plans])
    return fleet.status(is_whole=is_whole)


def _listed(devices: Sequence[Device]) -> str:
    return ", ".join(f"GPU {device.index}" for device in devices)


def _for_model(asked: Asked, first: Device, beside: int, num_models: int) -> Asked:
    """The study as it is asked of the GPUs of one model, with so many at work beside: the plan is the first one's."""
    model = mig_table.find(first.name).name if first.is_simulated else None
    plan_file = workers.new_plan_file(asked.root)
    configs = [
        dataclasses.replace(
            config,
            gpu=dataclasses.replace(config.gpu, device=first.uuid, model=model, beside=beside, models=num_models),
            plan_file=plan_file,
        )
        for config in asked.configs
    ]
    return dataclasses.replace(asked, configs=configs)


def refuse_mode_switches(planned: Sequence[tuple[Sequence[Device], Plan]], instead: str) -> None:
    """Refuse by a ConfigError groups that would switch MIG mode where that resets a GPU that other workers hold."""
    if sum(len(devices) for devices, _ in planned) < 2:
        return
    for devices, plan in planned:
        is_divided = any(
            mode_of(group.scenario).placed_by == PROFILE and not group.skip_reason for group in plan.groups
        )
        switched = [device for device in devices if is_divided and not device.mig_enabled and _needs_reset(device)]
        if switched:
            raise ConfigError(
                f"MIG mode of {switched[0].name} ({switched[0].uuid}) is switched by a reset, which any other process "
                f"that speaks to the driver prevents, as workers on several GPUs do; {instead}"
            )


def _needs_reset(device: Device) -> bool:
    try:
        return mig_table.find(device.name).mode_needs_reset
    except ConfigError:  # a model that is not known
        return False


def free(asked: Asked, wanted: Any, launcher: str, *, of_one_model: bool = False) -> list[Device]:
    """Return the GPUs that are wanted and free: of `all` those that are, else it is an error if one is not.

    Errors name `launcher`. With `of_one_model`, those of another model than the first that is free are left out, or an
    error, as well.
    """
    config = asked.config.gpu
    if config.kind is GpuKind.cpu:
        raise ConfigError(
            f"hydra/launcher={launcher} runs a study on several GPUs, and gpu=cpu was chosen; leave one of them out"
        )
    workers.refuse_what_is_decided(asked.configs, launcher)
    if asked.config.wait:
        raise ConfigError(
            f"wait=true: hydra/launcher={launcher} takes the GPUs that are free now, and waits for none; leave it out"
        )
    if asked.simulated is not None and config.machine is None:
        raise ConfigError(
            f"hydra/launcher={launcher} on simulated GPUs needs a machine that all workers see: gpu.machine=FILE, with "
            "as many GPUs as gpu.count=NUMBER says"
        )
    there = _there(asked)
    if not there:
        raise ConfigError(
            f"hydra/launcher={launcher} found no NVIDIA GPU; leave it out to run on the CPUs, or rehearse it with "
            "gpu=simulated_h100_80gb gpu.count=2 gpu.machine=FILE"
        )
    named = [] if wanted == ALL else _named(wanted)
    asked_for = [chosen.choose("hydra.launcher.devices", each, there) for each in named] or list(there)
    if twice := [device for device in asked_for if asked_for.count(device) > 1]:
        raise ConfigError(f"hydra.launcher.devices={wanted} names {twice[0].name} {twice[0].uuid} twice")
    folder = Path(config.lock_dir)
    if not asked.config.dry_run:
        study.end_leftovers(asked.root)  # it is no stranger's
    taken = {device: _why_not_free(device, folder, config.tolerate) for device in asked_for}
    model = next((device.name for device in asked_for if not taken[device]), "")
    taken |= {
        device: f"it is another model than the {model} that the study runs on"
        for device in asked_for
        if of_one_model and not taken[device] and device.name != model
    }
    said = [f"GPU {device.index} ({device.uuid}): {why}" for device, why in taken.items() if why]
    if said and (named or len(said) == len(asked_for)):
        raise ConfigError(f"hydra/launcher={launcher}: {'; '.join(said)}")
    for each in said:
        words.say(f"left out: {each}")
    return [device for device in asked_for if not taken[device]]


def _named(wanted: Any) -> list[str]:
    """The GPUs that a user has named: by a list of indices and UUIDs, or one of these."""
    each = list(wanted) if isinstance(wanted, Sequence) and not isinstance(wanted, str) else [wanted]
    if not each or not all(isinstance(one, int | str) for one in each):
        raise ConfigError(f"hydra.launcher.devices={wanted}: give a list of GPUs by index or UUID, or {ALL}")
    return [str(one) for one in each]


def _there(asked: Asked) -> Sequence[Device]:
    """Every GPU that a worker could get; of a simulated machine those of the models that are asked for."""
    if asked.simulated is None:
        return chosen.all_granted(nvml.list_devices())
    asked_for = {mig_table.find(str(config.gpu.model)).name: config.gpu for config in asked.configs}.values()
    selected = [dataclasses.replace(gpu, device=str(index)) for gpu in asked_for for index in range(gpu.count)]
    return [dataclasses.replace(asked.simulated.find_device(gpu), index=index) for index, gpu in enumerate(selected)]


def _why_not_free(device: Device, folder: Path, tolerate: Sequence[str]) -> str:
    """Who holds or uses a GPU, in words; empty if nobody does."""
    if (holder := lease.held_by(device, folder)) is not None:
        return f"it is held by another study: {holder}"
    if Journal(folder, device.uuid).steps():
        return ""  # its worker undoes what a killed orchestrator left on it, and then looks for strangers itself
    try:
        lease.refuse_strangers(device, tolerate)
    except InUseError as error:
        return str(error)
    return ""


def ports_of(exporter: Any, devices: Sequence[Device]) -> Mapping[str, int]:
    """By UUID, the port of each GPU's exporter: from the one that was given on; empty if it takes none."""
    first = getattr(exporter, "port", None)
    return {} if first is None else {device.uuid: first + position for position, device in enumerate(devices)}


def refuse_taken_ports(asked: Asked, devices: Sequence[Device]) -> None:
    """Refuse by a ConfigError exporters of which a worker's could not listen; a dry run tries none."""
    config = asked.config.exporter
    for port in ports_of(config, devices).values():
        spec = factory.spec_of(dataclasses.replace(config, port=port), without=frozenset({"name"}))
        exporter: Exporter = factory.instance(spec)
        if not asked.config.dry_run:
            with exporter.serving():
                """It could; the worker will."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What of a study the GPUs of one model have to do.

    Attributes:
        asked: the study as it is asked of them.
        waiting: units that no GPU has.
        begun: by unit, the UUID of the GPU that has rows of it, which need not be run again there.
        took_s: how long each unit took that is done.
    """

    asked: Asked
    devices: Sequence[Device]
    waiting: deque[int]
    begun: Mapping[int, str] = field(default_factory=dict)
    took_s: list[float] = field(default_factory=list)

    def in_turn(self) -> list[Device]:
        """The GPUs, those first that have begun a unit."""
        begun = {self.begun.get(unit) for unit in self.waiting}
        return sorted(self.devices, key=lambda device: device.uuid not in begun)

    def take(self, device: Device) -> int:
        """The unit that a GPU gets: one that it has begun, or else one that no other has, or else the next one."""
        unit = min(self.waiting, key=lambda each: {device.uuid: 0, None: 1}.get(self.begun.get(each), 2))
        self.waiting.remove(unit)
        return unit

    def seconds_left(self, running_s: Sequence[float]) -> float | None:
        """How long the units will take, those that run for so long among them, as others did; `None` if none did."""
        if not self.took_s:
            return None
        mean_s = fmean(self.took_s)
        rests_s = [max(0.0, mean_s - each) for each in running_s] + [mean_s] * len(self.waiting)
        return max(sum(rests_s) / len(self.devices), max(rests_s, default=0.0))


class Fleet:
    """Workers on some GPUs, and the units that wait for one.

    Attributes:
        ENDS_WORKERS: whether they are told to end if this process is killed; else they finish their units.
    """

    ENDS_WORKERS = False

    def __init__(
        self, asked: Asked, devices: Sequence[Device], parts: Sequence[Part], template: Template | None
    ) -> None:
        self.asked, self.devices, self.parts, self.template = asked, devices, parts, template
        self.part_of = {device.uuid: part for part in parts for device in part.devices}
        self.cpus: Mapping[str, frozenset[int]] = cpus.divided(devices)
        self.num_units = sum(len(part.waiting) for part in parts)
        self.idle = deque(device for part in parts for device in part.in_turn())
        self.num_given_up = self.worst = 0
        self.was_refused = self.has_measured = False
        self.is_interrupted = False
        self.begin_s = time.monotonic()
        self.workers: list[Worker] = []

    def run(self) -> None:
        """Until no unit is left, or no GPU to run one on. After a signal the workers get it, and are waited for."""
        with selectors.DefaultSelector() as selector:
            try:
                while self.start_more(selector):
                    self._listen(selector)
            except Interrupted as interrupted:
                self.is_interrupted = True
                with interrupts.held():
                    for worker in self.workers:
                        worker.process.send_signal(interrupted.signum)
                    while self.workers:
                        self._listen(selector)
                raise

    def start_more(self, selector: selectors.BaseSelector) -> bool:
        """Give each idle GPU a unit; whether any worker runs."""
        for device in list(self.idle):
            part = self.part_of[device.uuid]
            if not part.waiting:
                continue
            if self.is_late(sum(len(each.waiting) for each in self.parts)):
                for each in self.parts:
                    self.num_given_up += len(each.waiting)
                    each.waiting.clear()
                break
            with interrupts.held():
                self.idle.remove(device)
                unit, config = part.take(device), part.asked.config
                decided = {"unit": unit, "gpu.beside": config.gpu.beside, "plan_file": config.plan_file}
                if config.gpu.models > 1:
                    decided |= {"gpu.models": config.gpu.models}
                    decided |= {"gpu.model": config.gpu.model} if device.is_simulated else {}
                self.start(device, f"unit {unit}", decided | self.in_the_time_left(), selector).unit = unit
        return bool(self.workers)

    def is_late(self, num_left: int) -> bool:
        """Whether the time limit of the study is over; if so, says that so many units are left."""
        limit_s, left_s = self.asked.config.time_limit_s, self._time_left_s()
        if left_s is None or left_s > 0:
            return False
        words.say(f"time_limit_s={limit_s:g} is over: {counted(num_left, 'unit')} left")
        self.worst = max(self.worst, 1)
        return True

    def in_the_time_left(self) -> dict[str, object]:
        """What is decided for each worker that measures."""
        left_s = self._time_left_s()
        limit = {} if left_s is None else {"time_limit_s": f"{max(0.1, left_s):.1f}"}
        return {"resume": self.asked.config.resume, **limit}

    def status(self, *, is_whole: bool) -> int:
        """The exit status of the study: what a refused worker was to run, another GPU may have run."""
        if is_whole:
            return self.worst
        return self.worst or (_REFUSED if self.was_refused and not self.has_measured else 1)

    def _time_left_s(self) -> float | None:
        limit_s = self.asked.config.time_limit_s
        return None if limit_s is None else limit_s - (time.monotonic() - self.begin_s)

    def start(
        self, device: Device, what: str, decided: Mapping[str, object], selector: selectors.BaseSelector
    ) -> Worker:
        """Start a worker on a GPU, with these keys decided for it."""
        ports = ports_of(self.asked.config.exporter, self.devices)
        port = {"exporter.port": ports[device.uuid]} if ports else {}
        of_worker = {**decided, **port, "gpu.device": device.uuid}
        argv = workers.command(outcome.command_line(), of_worker)
        pipes = {name: os.pipe() for name in ("stdout", "stderr")}
        outputs = [theirs for _, theirs in pipes.values()]
        try:
            process = self._process(argv, of_worker, self.cpus[device.uuid], outputs)
        finally:
            for descriptor in outputs:
                os.close(descriptor)
        worker = Worker(device=device, what=what, process=process)
        self.workers.append(worker)
        outcome.has_started = True
        for name, (ours, _) in pipes.items():
            selector.register(ours, selectors.EVENT_READ, (worker, name))
        return worker

    def _process(
        self, argv: Sequence[str], decided: Mapping[str, object], on_cpus: frozenset[int], outputs: Sequence[int]
    ) -> subprocess.Popen[bytes] | Forked:
        """A worker's process: a fork of the template, or else a new one."""
        if self.template is not None:
            try:
                return self.template.start(argv, decided, on_cpus, outputs, ends_with_launcher=self.ENDS_WORKERS)
            except OSError as error:
                log.info("workers start from nothing: %s", error)
                self.template = None
        out, err = outputs
        with cpus.of_children(on_cpus), interrupts.inherit_ignored():
            worker = subprocess.Popen(
                [sys.executable, *argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=os.environ | startup.job_variables | {outcome.STUDY: shlex.join(outcome.command_line())},
                start_new_session=True,  # Ctrl-C comes from here alone
                preexec_fn=forked.end_with_parent if self.ENDS_WORKERS else None,
            )
        cpu_limit.hand_on_limit(worker.pid)
        return worker

    def _listen(self, selector: selectors.BaseSelector) -> None:
        """Pass on what the workers say, and take note of those that end."""
        ready = selector.select()
        with interrupts.held():
            for key, _ in ready:
                worker, name = key.data
                data = os.read(key.fd, 65536)
                *lines, worker.pending[name] = (worker.pending.get(name, b"") + (data or b"\n")).split(b"\n")
                for line in filter(None, lines):
                    _relay(worker, name, line)
                if not data:
                    selector.unregister(key.fileobj)
                    os.close(key.fd)
                    worker.num_open -= 1
                    if worker.num_open == 0:
                        status = worker.process.wait()
                        self.workers.remove(worker)
                        self.ended(worker, 128 - status if status is not None and status < 0 else status)

    def ended(self, worker: Worker, status: int | None) -> None:
        """Take note of how a worker ended, if that is known; its GPU gets the next unit."""
        part = self.part_of[worker.device.uuid]
        if status == _REFUSED:
            part.waiting.appendleft(worker.unit)
        else:
            self.idle.append(worker.device)
        if status == 0:
            part.took_s.append(time.monotonic() - worker.begin_s)
        progress = "" if self.is_interrupted else f"; {self._progress()}"
        words.say(f"{worker.name} | {ending_of(status)}{progress}")
        if status == _REFUSED:
            words.say(f"GPU {worker.device.index} gets no more units; unit {worker.unit} waits for another GPU")
            self.was_refused = True
        else:
            self.has_measured = True
            self.count(status)

    def count(self, status: int | None) -> None:
        """Let the exit status of the study be no better than that of a worker; one that was killed has failed."""
        was_killed = status is not None and status > 128 and status - 128 not in interrupts.SIGNALS
        self.worst = max(self.worst, 1 if was_killed else status or 0)

    def _progress(self) -> str:
        """How many units have ended, and how long the others will take."""
        num_left = self.num_given_up + len(self.workers) + sum(len(part.waiting) for part in self.parts)
        now_s = time.monotonic()
        left_s = [
            part.seconds_left([now_s - each.begin_s for each in self.workers if each.device in part.devices])
            for part in self.parts
        ]
        known_s = [seconds for seconds in left_s if seconds is not None]
        is_known = len(known_s) == len(left_s) and max(known_s) >= 1
        left = f", about {words.duration(max(known_s))} left" if is_known else ""
        return f"{self.num_units - num_left} of {counted(self.num_units, 'unit')} ended{left}"


def ending_of(status: int | None) -> str:
    """How a worker ended, in words; its exit status may not be known."""
    return "ended" if status is None else f"ended with exit status {status}"


def _relay(worker: Worker, name: str, line: bytes) -> None:
    """What a worker says while it runs; its tables are those of one unit and stay unsaid."""
    if name == "stderr":
        worker.has_begun |= line.startswith(b"[")
        worker.said_last = line.decode(errors="replace")
        if not worker.is_quiet:
            words.say(f"{worker.name} | {worker.said_last}")
