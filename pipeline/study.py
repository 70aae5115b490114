"""One study from composed configurations to an exit status. The only module that knows every stage."""

from __future__ import annotations

import dataclasses
import json
import logging
import operator
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import DictConfig

from pipeline import executor, outcome, rehearsal, summary
from pipeline.base import factory, host, interrupts, layout, programs, tracking_root, words
from pipeline.base.errors import CollocationError, ConfigError, InUseError, TrackingError
from pipeline.base.host import cpu_device
from pipeline.base.interrupts import Interrupted, UndoStack
from pipeline.base.paths import expanded
from pipeline.base.protocols import Exporter, Showing
from pipeline.base.records import Device, Group, Plan, Result, Resume
from pipeline.base.words import counted, duration
from pipeline.clean import leftovers
from pipeline.clean.journal import Journal, replay
from pipeline.launch.warm_start import WarmStart
from pipeline.observe import failures, phases
from pipeline.observe.compare import Comparison
from pipeline.observe.forecast import forecast
from pipeline.observe.group_result import GroupResult
from pipeline.observe.observation import Watched
from pipeline.observe.progress import Progress, Ran
from pipeline.observe.view import PlainView, make_view
from pipeline.plan import check, describe, feasible, read, units
from pipeline.plan import plan as planning
from pipeline.plan.experiment_names import separate_rehearsals
from pipeline.plan.inventory import Inventory, take
from pipeline.plan.programs import refuse_unread
from pipeline.plan.schema import AUTO_DEVICE, Config, ForeignLoad, GpuConfig, GpuKind
from pipeline.prepare.device import chosen, lease
from pipeline.prepare.device.waiting import Patience
from pipeline.record import group_folder, provenance, resume
from pipeline.record.group_folder import Survey
from pipeline.record.original import FinishedGroup
from pipeline.record.owner import close_command
from pipeline.record.sender import Sender
from pipeline.record.sender import take as take_sender
from pipeline.record.spool import Spool
from pipeline.record.store import local, overview
from pipeline.rehearsal import Rehearsal
from pipeline.reproduce import reproduce, unused
from pipeline.reproduce.agreement import agree
from pipeline.reproduce.reproduce import Reproduction

log = logging.getLogger(__name__)

_BUSY_SHARE = 0.25
"""Of the CPUs: other programs that use more are said before anything is measured."""
_AFTER_SIGNAL_S, _AFTER_SIGNAL_WHILE_SENDING_S = 20.0, 5.0
"""How long what was measured is still sent; a scheduler kills half a minute after its first signal."""

# Keys that belong to the study as a whole, so that a sweep cannot vary them.
_STUDY_KEYS = (
    *("tracking", "listeners", "exporter", "order", "resume", "warm_start", "dry_run", "time_limit_s", "reproduce"),
    *("wait", "wait_limit_s", "foreign_load", "unit", "unit_of", "plan_file", "only"),
    *("gpu.admin", "gpu.lock_dir", "gpu.tolerate"),
)

_SIGNAL_EARLY_S = 90.0


def execute(configs: Sequence[DictConfig], *, is_sweep: bool, engine: Engine | None = None) -> int:
    """Plan and run a study from its composed configurations.

    Args:
        configs: one a combination.
        is_sweep: whether they are a sweep, which has baselines of its own.
        engine: what runs the study, once it is read, instead of this process; its devices are not taken.

    Returns:
        0 when every group ended in a result; 1 when some failed, timed out or were left for later by `time_limit_s`;
        2 when nothing could be started. It is also kept in `pipeline.outcome`.

    Raises:
        Interrupted: after the user's signal, once everything is cleaned up and recorded.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    outcome.is_composed = True
    status = _execute(configs, engine, is_sweep=is_sweep)
    outcome.exit_status = max(outcome.exit_status, status)
    return status


def _execute(composed: Sequence[DictConfig], engine: Engine | None, *, is_sweep: bool) -> int:
    try:
        with UndoStack() as stack:
            asked = _read(composed, stack, is_sweep=is_sweep)
            if engine is not None:
                return engine(asked, stack)
            if asked.config.dry_run:
                return preview((asked, *planned(asked)))
            showing = stack.enter_context(asked.exporter.serving())
            return _begun(asked, stack).run(stack, showing)
    except CollocationError as error:
        words.say(f"error: {error}")
        return 1 if outcome.has_started else 2


def _begun(asked: Asked, stack: UndoStack) -> _Study:
    """The study, planned, with its environments and its devices, which are its own until the stack is left.

    Whoever has to wait for a device lets go of the others, and then plans anew: the machine may be another one.
    """
    config = asked.config
    patience = Patience(is_wanted=config.wait, limit_s=config.wait_limit_s, time_limit_s=config.time_limit_s)
    while True:
        try:
            with UndoStack() as taken:
                study = _Study(asked, *planned(asked), waited_s=patience.waited_s)
                study.take_devices(taken)
                with interrupts.held():
                    stack.enter_context(taken.pop_all())
                return study
        except InUseError as error:
            patience.wait(error)


def planned(asked: Asked) -> tuple[Inventory, Plan]:
    """What the machine has and the plan for it.

    But for a dry run, environments are built and other workers of the study have agreed to the plan.
    """
    inventory = _take_stock(asked)
    plan = asked.plan(inventory)
    if asked.config.dry_run:
        return inventory, plan
    if any(interpreter.to_build for interpreter in inventory.interpreters.values()):
        # The first plan showed that the study can run at all, before minutes are spent on its environments.
        inventory = inventory.with_environments()
        plan = asked.plan(inventory)
    if asked.config.plan_file is not None:
        tracking_root.make(asked.root)  # below which a launcher has it
        agree(expanded("plan_file", asked.config.plan_file).absolute(), plan, inventory)
    return inventory, plan


@dataclass(slots=True, kw_only=True)
class Asked:
    """What a user asked for.

    Attributes:
        sender: the process that speaks to the store; `None` for a dry run that asks it nothing.
        simulated: the machine to rehearse on, if it is not a real one.
        exporter: what shows the study while it runs.
        reproduction: the group to run again, if it is only that.
        differences: what was said of how that group differs from the original.
        gpus: those on which a launcher runs units; none where the study runs on that of its plan.
        planned: digests of the groups of all plans, where a launcher measures a study as several.
        begin_ms: when it was asked, since the epoch.
    """

    configs: Sequence[Config]
    is_sweep: bool
    sender: Sender | None
    simulated: Rehearsal | None
    exporter: Exporter
    reproduction: Reproduction | None
    differences: str = ""
    gpus: Sequence[Device] = ()
    planned: Collection[str] = ()
    begin_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)

    @property
    def config(self) -> Config:
        """The first of them: settings of the whole study are alike in all."""
        return self.configs[0]

    @property
    def root(self) -> Path:
        return expanded("tracking.root", self.config.tracking.root).resolve()

    def plan(self, inventory: Inventory) -> Plan:
        """The plan, checked; of a reproduction its one group, and it is said how that differs from the original."""
        if self.reproduction is None:
            whole = planning.build_plan(self.configs, inventory, is_sweep=self.is_sweep)
            return units.only(feasible.checked(whole), self.config.unit)
        # As in a sweep, so that the original may be a baseline that nobody asked for.
        whole = planning.build_plan(self.configs, inventory, is_sweep=True)
        plan = feasible.checked(self.reproduction.only_its_group(whole))
        differences = self.reproduction.describe(plan, inventory, provenance.collect(inventory.interpreters))
        if differences != self.differences:
            words.say(differences)
            self.differences = differences
        return plan


def _read(composed: Sequence[DictConfig], stack: UndoStack, *, is_sweep: bool) -> Asked:
    configs = read.read(composed)
    first = configs[0]
    _check_same(configs)
    separate_rehearsals(configs)
    if first.reproduce is None:
        refuse_unread(outcome.command_line()[1:], configs, composed)
    reproduce.refuse_sweep(configs, is_sweep=is_sweep)
    exporter: Exporter = factory.instance(factory.spec_of(first.exporter, without=frozenset({"name"})))
    sender = reproduction = None
    resumes, reproduces = first.resume != Resume.NO, first.reproduce is not None
    if not first.dry_run or resumes or reproduces or _has_store(first):
        # MLflow takes seconds to import, so its process starts first; it touches nothing until it is told to.
        sender = stack.enter_context(take_sender())
        if first.reproduce is not None:
            reproduction = reproduce.prepare(composed[0], first, sender, stack)
            configs = [reproduction.config]
    simulated = stack.enter_context(rehearsal.prepared(configs))
    return Asked(
        configs=configs,
        is_sweep=is_sweep,
        sender=sender,
        simulated=simulated,
        exporter=exporter,
        reproduction=reproduction,
    )


Engine = Callable[[Asked, UndoStack], int]
"""Runs a study that was read; the exit status."""


def _has_store(config: Config) -> bool:
    """Whether there is a store that a dry run may read: it must neither make one nor bring one up to date."""
    tracking = config.tracking
    return tracking.uri is not None or local.is_ready(expanded("tracking.root", tracking.root), tracking.experiment)


def _take_stock(asked: Asked) -> Inventory:
    """What the machine has, once what killed orchestrators left on it is undone; a dry run undoes nothing."""
    find = asked.simulated.find_device if asked.simulated else find_device
    # A dry run on a simulated GPU is the plan for another machine, which may have the data.
    needs_data = not (asked.config.dry_run and asked.simulated)
    inventory = take(asked.configs, find, needs_data=needs_data)
    if not asked.config.dry_run and _undo_leftovers(asked.configs, inventory, asked.root):
        inventory = take(asked.configs, find)
    return inventory


def find_device(gpu: GpuConfig) -> Device:
    """Find the real device that a configuration asks for."""
    assert gpu.kind is not GpuKind.simulated, "NVML would answer with a real GPU"
    if gpu.kind is GpuKind.cpu:
        return cpu_device()
    name = None if gpu.device == AUTO_DEVICE else gpu.device
    return chosen.find_device(name, needs_gpu=gpu.kind is GpuKind.nvidia)


def _ran_before(asked: Asked) -> Sequence[Ran]:
    """The groups of the store, if there is one; a plan needs none."""
    if asked.sender is None:
        return ()
    try:
        return asked.sender.groups_that_ran(asked.config.tracking.uri or str(asked.root))
    except TrackingError as error:
        words.say(f"no estimate from groups that ran before: {error}")
        return ()


def preview(*planned: tuple[Asked, Inventory, Plan]) -> int:
    """Print each plan, or with `resume` what is left of it, and how long it will take; as JSON, a list of several."""
    shown = [_shown(*each) for each in planned]
    if planned[0][0].config.dry_run == check.JSON:
        sys.stdout.write(f"{json.dumps(shown if len(shown) > 1 else shown[0], indent=2)}\n")
    else:
        sys.stdout.writelines(f"{text}\n" for text in shown)
    return 0


def _shown(asked: Asked, inventory: Inventory, plan: Plan) -> dict[str, object] | str:
    """A plan as JSON has it, or in words."""
    if asked.config.resume != Resume.NO:
        groups, _ = _what_is_left(asked, plan, inventory)
        plan = dataclasses.replace(plan, groups=groups)
    ahead = forecast(plan.groups, _ran_before(asked))
    if asked.config.dry_run == check.JSON:
        bounds = {"at_least": ahead.least_s, "at_most": ahead.most_s, "num_unknown_groups": ahead.num_unknown}
        loosely = {"num_other_packages": ahead.num_other_packages, "other_programs": ahead.other_programs}
        told = {key: value for key, value in loosely.items() if value}
        return describe.as_dict(plan, ahead.of_each) | {"seconds": bounds | told}
    return f"{describe.as_text(plan)}\n{ahead.words}"


def _undo_leftovers(configs: Sequence[Config], inventory: Inventory, root: Path) -> bool:
    """Undo what killed orchestrators left on the devices before a plan is made for them; returns whether there was any.

    A MIG mode that is still on would otherwise be a reason to refuse whatever needs the whole GPU.
    """
    folder = Path(configs[0].gpu.lock_dir)
    devices = dict.fromkeys(inventory.device_of(config.gpu) for config in configs if not _goes(config.gpu))
    dirty = [device for device in devices if device.is_gpu and Journal(folder, device.uuid).steps()]
    for device in dirty:
        with lease.hold(device, folder):
            end_leftovers(root)  # jobs that are still there hold what is to be undone
            _undo(device, configs[0].gpu)
    return bool(dirty)


def end_leftovers(root: Path) -> Survey:
    """End what killed orchestrators of this user left running, of whatever study; gives what this one's spool holds."""
    survey = group_folder.survey(root / layout.SPOOL)
    leftovers.clear_all_abandoned()
    return survey


def _undo(device: Device, gpu: GpuConfig) -> None:
    journal = Journal(Path(gpu.lock_dir), device.uuid, programs.of_device(device))
    if _goes(gpu):
        journal.device_is_gone()  # the machine that it speaks of went with its study
    if undone := replay(journal):
        words.say(f"undid {counted(len(undone), 'step')} that a killed orchestrator had left on {device.name}")


def _goes(gpu: GpuConfig) -> bool:
    """Whether the machine is a simulated one that goes with its study."""
    return gpu.kind is GpuKind.simulated and gpu.machine is None


def _what_is_left(asked: Asked, plan: Plan, inventory: Inventory) -> tuple[tuple[Group, ...], list[GroupResult]]:
    """The groups to run and the rows of the others; says how many there are, and why what is stored does not count."""
    sender, store = asked.sender, asked.config.tracking.uri or str(asked.root)
    assert sender is not None
    finished = sender.finished(plan.experiment, store if asked.config.dry_run else None)
    groups, known = _remaining(asked, plan, finished)
    words.say(f"resume: {len(known)} of {len(plan.groups)} groups are finished")
    for line in resume.begun_again(groups, finished, gpus=asked.gpus):
        words.say(line)
    if outcome.typed_for_study is None or outcome.slurm_task:  # else the launcher on this host has said it
        # What the same study found on other GPU models, or with other GPUs at work, belongs beside it, where asked for.
        on_other_models = plan.any_gpu_digest if asked.config.gpu.models > 1 else ""
        others = [
            each for each in finished if each.digest not in asked.planned and on_other_models not in each.plans_any_gpu
        ]
        for line in unused.explain(plan, groups, others, inventory, lambda run_id: sender.recall(run_id, store)):
            words.say(line)
    if not asked.config.dry_run:
        _take_over(asked, plan, known, finished)
    return groups, known


def _take_over(asked: Asked, plan: Plan, known: Sequence[GroupResult], finished: Sequence[FinishedGroup]) -> None:
    """Have the store count in this plan what another one measured: nothing of this one would say that it is there."""
    assert asked.sender is not None
    of_others = {each.spool_id: each.run_id for each in finished if each.spool_id and plan.digest not in each.plans}
    units_of_runs = {of_others[row.spool_id]: row.group.unit for row in known if row.spool_id in of_others}
    if units_of_runs:
        facts = _facts_of_plan(asked, plan) | {"command_line": provenance.command_line()}
        asked.sender.take_over(units_of_runs, facts)


def _facts_of_plan(asked: Asked, plan: Plan) -> dict[str, str]:
    """What each run says of the plan that it is of."""
    return {
        "plan": plan.digest,
        "plan_groups": str(plan.num_planned),
        "plan_any_gpu": plan.any_gpu_digest,
        "plan_models": str(asked.config.gpu.models),
        "plan_units": overview.sizes_in_words(plan.unit_sizes),
    }


def _remaining(
    asked: Asked, plan: Plan, finished: Sequence[FinishedGroup]
) -> tuple[tuple[Group, ...], list[GroupResult]]:
    accepts = asked.config.resume == Resume.ACCEPT_ENVIRONMENT
    return resume.remaining(plan, finished, gpus=asked.gpus, accept_environment=accepts)


def open_store(asked: Asked, plan: Plan, inventory: Inventory) -> tuple[tuple[Group, ...], list[GroupResult]]:
    """Open the store, made if need be; the groups of a plan that are to run, and the rows of the others."""
    assert asked.sender is not None
    tracking = asked.config.tracking
    asked.sender.open(plan.experiment, asked.root, tracking.uri, tracking.series_points)
    asked.sender.store()
    return (plan.groups, []) if asked.config.resume == Resume.NO else _what_is_left(asked, plan, inventory)


def show_all(asked: Asked, plans: Sequence[Plan]) -> bool:
    """Show what the store has of the plans of a study that others ran; whether each of their groups has a finding."""
    assert asked.sender is not None
    experiment = plans[0].experiment
    try:
        finished = asked.sender.finished(experiment, None)
    except TrackingError as error:
        words.say(f"error: {error}; what was not sent waits in the spool; to go on: {provenance.command_to_resume()}")
        return False
    if asked.config.resume == Resume.NO:
        finished = [each for each in finished if each.start_ms >= asked.begin_ms]
    rows, num_left = [], 0
    comparison = Comparison()
    for plan in plans:
        left, known = _remaining(asked, plan, finished)
        num_left += len(left)
        rows += [*known, *resume.latest(left, finished)]
    for row in rows:
        comparison.add(row)
    if rows:
        summary.show(experiment, [comparison.latest(row) for row in rows])
        summary.show_where(experiment, asked.config.tracking, asked.sender, asked.root)
    if num_left:
        all_groups = counted(sum(len(plan.groups) for plan in plans), "group")
        words.say(f"{num_left} of {all_groups} without a result; to run what is left: {provenance.command_to_resume()}")
    return not num_left


def _check_same(configs: Sequence[Config]) -> None:
    for key in _STUDY_KEYS:
        value_of = operator.attrgetter(key)
        if any(value_of(config) != value_of(configs[0]) for config in configs):
            raise ConfigError(f"{key} applies to the whole study and cannot be swept; give it one value")


class _Study:
    """A plan on its way through the machine."""

    def __init__(self, asked: Asked, inventory: Inventory, plan: Plan, *, waited_s: float) -> None:
        assert asked.sender is not None
        self.waited_s = waited_s
        self.asked, self.inventory, self.plan = asked, inventory, plan
        self.config, self.sender, self.root = asked.config, asked.sender, asked.root
        self.comparison = Comparison()
        self.rows: list[GroupResult] = []
        self.cpu_use = host.read_cpu_use()
        self.ended_by: Interrupted | None = None  # what ended the sending of what was measured
        self.unsent: tuple[Path, ...] = ()  # folders of groups that earlier starts could not send

    def take_devices(self, stack: UndoStack) -> None:
        """Hold the devices, and clear what killed orchestrators left.

        Raises:
            InUseError: somebody else uses one of them.
        """
        gpu = self.config.gpu
        for device in self.plan.devices:
            stack.enter_context(lease.hold(device, Path(gpu.lock_dir)))
        # What a killed orchestrator left is cleared before anybody is called a stranger.
        found = end_leftovers(self.root)
        self.unsent = found.ready
        if self.config.unit is None:  # else other workers may well be at work there
            self._say_what_other_hosts_left(found)
        for device in self.plan.devices:
            _undo(device, gpu)
            lease.refuse_strangers(device, gpu.tolerate)

    def _say_what_other_hosts_left(self, found: Survey) -> None:
        for owner, number in Counter(found.elsewhere.values()).items():
            words.say(
                f"note: {counted(number, 'group')} in {self.root / layout.SPOOL} left alone: host {owner} may be at "
                f"work on it; if that is gone: {close_command(self.root)}"
            )

    def run(self, stack: UndoStack, showing: Showing) -> int:
        """Open the store, run what is to run, show what was found."""
        facts = self._facts()
        text = "".join(f"{key}: {value}\n" for key, value in sorted(facts.items()))
        programs = {job.workload.script: job.workload for group in self.plan.groups for job in group.jobs}
        origins = {script: provenance.origin_of(workload) for script, workload in programs.items()}
        artifacts = {layout.PLAN: f"{describe.as_text(self.plan)}\n", layout.PROVENANCE: text}
        tracking, interpreters = self.config.tracking, self.inventory.interpreters
        self.sender.open(self.plan.experiment, self.root, tracking.uri, tracking.series_points)
        if tracking.uri is not None or not local.is_ready(self.root, self.plan.experiment):
            self._wait_for_store()  # else the jobs are started while MLflow is imported
        self._send_what_others_left()
        groups, known = self.plan.groups, list[GroupResult]()
        if self.config.resume != Resume.NO:
            groups, known = _what_is_left(self.asked, self.plan, self.inventory)
        self.spool = Spool(self.root, self.sender, facts, artifacts, interpreters, tracking.uri, origins)
        for line in describe.remarks(self.plan):
            words.say(line)
        self._warn_of_other_programs()
        view = make_view(Progress(self.plan.groups, [row.result for row in known], groups))
        warm_start = self._warm_start(groups, stack)
        begin_s = time.monotonic()
        try:
            self._take_in(known)
            self._run(groups, view, warm_start, showing)
        except Interrupted as interrupted:
            if outcome.slurm_task:  # nobody is there who sent the signal
                words.say(f"{interrupted}{self._describe_limit(time.monotonic() - begin_s)}")
            raise
        finally:
            with interrupts.held():
                self._finish()
                self._say_where_time_went(time.monotonic() - begin_s, known)
                is_sent = self._say_what_waits()
            if self.ended_by is not None:
                raise self.ended_by
        is_whole = len(self.rows) == len(self.plan.groups)
        return 0 if is_sent and is_whole and all(row.result.is_finding for row in self.rows) else 1

    def _warn_of_other_programs(self) -> None:
        """Ask for a quiet machine while nothing has been measured."""
        used, num_cpus = host.read_cpu_use().foreign_since(self.cpu_use), len(os.sched_getaffinity(0))
        if used > _BUSY_SHARE * num_cpus:
            keep = "" if self.config.foreign_load is ForeignLoad.note else ", or foreign_load=note keeps them"
            words.say(
                f"warning: other programs use {used:.1f} of {num_cpus} CPUs ({host.load_in_words()}); groups whose "
                f"jobs wait for CPUs will be marked: measure on a quiet machine{keep}"
            )

    def _describe_limit(self, elapsed_s: float) -> str:
        """Say that the time limit is near, if it is: Slurm signals a task up to a minute before it was asked to."""
        limit_s = self.config.time_limit_s
        is_near = limit_s is not None and limit_s - elapsed_s - self.waited_s < _SIGNAL_EARLY_S
        return f", near the end of its time (time_limit_s={limit_s:g})" if is_near else ""

    def _facts(self) -> dict[str, str]:
        facts = provenance.collect(self.inventory.interpreters)
        facts |= _facts_of_plan(self.asked, self.plan) | {"beside": str(self.config.gpu.beside)}
        if self.config.unit is not None:
            facts["unit"] = str(self.config.unit)
        if self.config.resume == Resume.ACCEPT_ENVIRONMENT:
            facts["accepts_environment"] = "true"
        if self.asked.reproduction is not None:
            facts["reproduces"] = self.asked.reproduction.original.run_id
        return facts

    def _own_files(self) -> set[Path]:
        """What is written beside the store: a simulated machine, and what a launcher puts where its plan file lies."""
        machine = {self.asked.simulated.file} if self.asked.simulated is not None else set()
        found = machine | {file.with_name(f"{file.name}.bin") for file in machine}
        if self.config.plan_file is not None:
            plan_file = expanded("plan_file", self.config.plan_file).absolute()
            found |= {plan_file, plan_file.parent}
        return found

    def _wait_for_store(self) -> None:
        """Wait until the store is open. A worker of a launcher, which found it open, may find its server away.

        Of a unit, what earlier attempts left running is closed: their host may have died, which no lock here tells.
        """
        try:
            self.sender.store()
            if self.config.unit is not None:
                for name in self.sender.close_lost(self.plan, self.config.unit):
                    words.say(f"closed as interrupted: {name} of an earlier attempt of unit {self.config.unit}")
        except TrackingError as error:
            if self.config.plan_file is None or self.config.resume != Resume.NO:
                raise
            words.say(f"warning: {error}; what is measured waits in the spool")

    def _send_what_others_left(self) -> None:
        for folder in self.unsent:
            self.sender.send(folder)
        late = group_folder.amendments(self.root / layout.SPOOL)
        for file in late:
            self.sender.amend(file)
        if self.unsent or late:
            self.sender.rest()

    def _warm_start(self, groups: Sequence[Group], stack: UndoStack) -> WarmStart:
        warm_start = stack.enter_context(WarmStart(enabled=self.config.warm_start))
        to_fork = [group for group in groups if group.skip_reason is None and group.profiler.is_none]
        for workload in (job.workload for group in to_fork for job in group.jobs):
            warm_start.begin(workload, self.inventory.interpreters[workload.env])
        return warm_start

    def _run(self, groups: Sequence[Group], view: PlainView, warm_start: WarmStart, showing: Showing) -> None:
        @contextmanager
        def watch(group: Group, watched: Watched) -> Iterator[None]:
            with view.watch(group, watched), showing(group, watched):
                yield

        shared = executor.Shared(
            interpreters=self.inventory.interpreters,
            spool=self.spool,
            sender=self.sender,
            warm_start=warm_start,
            view=watch,
            rehearsal=self.asked.simulated,
            own_files=self._own_files(),
        )
        begin_s, limit_s = time.monotonic() - self.waited_s, self.config.time_limit_s
        for group in groups:
            if limit_s is not None and time.monotonic() - begin_s > limit_s:
                words.say(f"time_limit_s={limit_s:g} is over")
                break
            outcome.has_started = True
            view.begin(group)
            row = executor.run(group, shared)
            view.done(row)
            self._take_in([row])

    def _take_in(self, rows: Sequence[GroupResult]) -> None:
        """Compare rows with the others, and have the store told what is new by that."""
        self.rows += rows
        told = {row.group.digest: row for row in rows}
        found = {changed.group.digest: changed for row in rows for changed in self.comparison.add(row)}
        for digest, changed in found.items():
            known = told.get(digest)
            if (
                known is not None
                and changed.result is known.result
                and changed.metrics.items() <= known.metrics.items()
            ):
                continue  # of a resumed study: the store has it
            self.spool.amend(changed)
            if changed.result is not Result.OK:
                words.say(f"{changed.group.name}: {changed.result}: {changed.reason}")

    def _finish(self) -> None:
        try:
            if self.rows:
                latest = [self.comparison.latest(row) for row in self.rows]
                summary.show(self.plan.experiment, latest, self.asked.reproduction)  # while the last of them are sent
        finally:
            self._send_what_is_left()
        if self.rows:
            for line in failures.in_words(self.rows, self._error_log):
                sys.stdout.write(f"{line}\n")
            failed = {
                run: row.group.name
                for row in self.rows
                if row.result.mlflow_status == "FAILED" and (run := self.spool.run_of(row))
            }
            summary.show_where(self.plan.experiment, self.config.tracking, self.sender, self.root, failed)
        self._say_how_to_resume()

    def _send_what_is_left(self) -> None:
        """Send what is left; after a signal there is not much time for that, and the spool keeps what is not sent."""
        until_s = time.monotonic() + _AFTER_SIGNAL_S if interrupts.has_ended_work() else None
        try:
            with interrupts.let_through():
                self.sender.rest(until_s)
                for folder in list(self.sender.unsent):
                    self.sender.send(folder)  # the server may be back
                self.sender.rest(until_s)
                for file in self.spool.unsent_amendments():
                    self.sender.amend(file)
                self.sender.rest(until_s)
        except Interrupted as error:
            self.ended_by = error
            self.sender.rest(time.monotonic() + _AFTER_SIGNAL_WHILE_SENDING_S)
        self.spool.remove_if_empty()

    def _say_what_waits(self) -> bool:
        """Say what is not in the store yet, and how it gets there; returns whether all of this study is."""
        unsent, late = len(self.sender.unsent), len(self.spool.unsent_amendments())
        of_others = [folder for folder in self.sender.unsent if folder.parent.name != self.spool.study]
        if unsent or late:
            command = shlex.join([sys.executable, "-m", "pipeline.tracking", "flush", "--root", str(self.root)])
            figures = f"figures of {words.counted(late, 'group')}"
            what = words.counted(unsent, "group") + (f" and {figures}" if late else "") if unsent else figures
            words.say(
                f"warning: {what} could not be sent; "
                f"they wait in {self.root / layout.SPOOL} until the next start, or: {command}"
            )
        return unsent == len(of_others) and not late

    def _error_log(self, row: GroupResult, index: int) -> str:
        where = self.spool.where_job_is(row, index)
        if isinstance(where, Path) and where.is_relative_to(Path.cwd()):
            where = where.relative_to(Path.cwd())
        return f"{where}/{layout.STDERR}"

    def _say_how_to_resume(self) -> None:
        num_missing = len(self.plan.groups) - len(self.rows)
        num_failed = sum(not row.result.is_finding for row in self.rows)
        if self.asked.reproduction is None and (num_missing or num_failed):
            parts = [f"{num_missing} did not run to the end"] * bool(num_missing)
            parts += [f"{num_failed} failed"] * bool(num_failed)
            all_groups = counted(len(self.plan.groups), "group")
            is_worker = outcome.typed_for_study is not None  # then its launcher says how
            how = "" if is_worker else f"; to run them: {provenance.command_to_resume()}"
            words.say(f"of {all_groups}, {' and '.join(parts)}{how}")

    def _say_where_time_went(self, elapsed_s: float, known: Sequence[GroupResult]) -> None:
        ran = [row.metrics for row in self.rows[len(known) :]]
        if share := phases.share_in_words(ran, elapsed_s):
            words.say(f"{counted(len(ran), 'group')} in {duration(elapsed_s)}: {share}")
