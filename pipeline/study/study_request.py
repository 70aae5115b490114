"""The study request: the configurations of a user, read and checked."""

from __future__ import annotations

import dataclasses
import operator
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import DictConfig

from pipeline import rehearsal
from pipeline.base.domain.protocols import Exporter
from pipeline.base.domain.records import Device, Plan, Resume
from pipeline.base.system import factory, user_command, words
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.interrupts import UndoStack
from pipeline.base.system.paths import expand_path
from pipeline.plan import config_reader, overrides, plan_builder, shards
from pipeline.plan import plan_builder as planning
from pipeline.plan.config_reader import separate_rehearsals
from pipeline.plan.config_schema import Config
from pipeline.plan.inventory import Inventory
from pipeline.plan.job_entries import refuse_unread
from pipeline.record import invocation as invocations
from pipeline.record import provenance
from pipeline.record.invocation import Invocation
from pipeline.record.store import local_store
from pipeline.record.tracking_sender import Sender
from pipeline.rehearsal import Rehearsal
from pipeline.study import published_figures
from pipeline.study.reproduce.reproduction import Reproduction, prepare_reproduction, refuse_sweep

# Keys that apply to the complete study; a sweep cannot vary them.
_STUDY_KEYS = (
    *("tracking", "listeners", "exporter", "order", "resume", "warm_start", "dry_run", "time_limit_s", "reproduce"),
    *("wait", "wait_limit_s", "foreign_load", "shard", "shard_of", "plan_file", "only"),
    *("precision_goal_pct", "repeats_max", "advise_minutes", "memory", "on_failure", "on_end"),
    *("pack.trials", "pack.most", "pack.number", "pack.check_pct"),
    *("gpu.admin", "gpu.lock_dir", "gpu.tolerate", "gpu.idle_power_s", "gpu.waiting_power_s"),
)


@dataclass(slots=True, kw_only=True)
class StudyRequest:
    """A study request: the configurations of a user, read and checked; it is discarded after its study.

    Attributes:
        invocation: command line and launcher of this process.
        sender: handle of the tracking process; `None` for a dry run that needs no store.
        simulated: the simulated machine of a rehearsal; `None` on a real machine.
        exporter: component that shows the running study to other programs.
        reproduction: the recorded group to run again, if the study is a reproduction.
        differences: the printed differences of the reproduction from the original.
        gpus: GPUs on which a launcher runs shards; empty if the study runs on the device of its plan.
        planned: digests of the groups of all plans, if a launcher runs the study as several plans.
        begin_ms: time of the request in ms since the epoch.
        summary: the study in one line, once it has ended on this host.
        has_started: whether a group has begun; errors before the first group have another exit status.
    """

    configs: Sequence[Config]
    is_sweep: bool
    sender: Sender | None
    simulated: Rehearsal | None
    exporter: Exporter
    reproduction: Reproduction | None
    invocation: Invocation = field(default_factory=invocations.get_current)
    differences: str = ""
    gpus: Sequence[Device] = ()
    planned: Collection[str] = ()
    begin_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    summary: str = ""
    has_started: bool = False

    @property
    def config(self) -> Config:
        """First configuration; settings of the complete study are the same in all configurations."""
        return self.configs[0]

    @property
    def root(self) -> Path:
        return expand_path("tracking.root", self.config.tracking.root).resolve()

    def plan(self, inventory: Inventory) -> Plan:
        """Make and check the plan; for a reproduction, reduce it to one group and print its differences."""
        if self.reproduction is None:
            full_plan = planning.build_plan(self.configs, inventory, is_sweep=self.is_sweep)
            checked = plan_builder.check_plan(full_plan)
            warnings = (*published_figures.list_missing_sources(checked), *checked.warnings)
            return shards.select_shard(dataclasses.replace(checked, warnings=warnings), self.config.shard)
        # `is_sweep` adds baselines, because the original may be a baseline that was added to a sweep.
        full_plan = planning.build_plan(self.configs, inventory, is_sweep=True)
        plan = plan_builder.check_plan(self.reproduction.only_its_group(full_plan))
        facts = provenance.collect(inventory.interpreters, self.invocation)
        differences = self.reproduction.describe(plan, inventory, facts)
        if differences != self.differences:
            words.say(differences)
            self.differences = differences
        return plan


def read_request(
    composed: Sequence[DictConfig],
    stack: UndoStack,
    take_sender: Callable[[], AbstractContextManager[Sender]],
    *,
    is_sweep: bool,
) -> StudyRequest:
    """Read and check the configurations of a study, one per combination; `stack` ends the processes started here.

    Raises:
        ConfigError: the configurations are invalid.
    """
    invocation = invocations.get_current()
    configs = config_reader.read(composed)
    first = configs[0]
    _check_same(configs)
    separate_rehearsals(configs)
    if first.reproduce is None:
        refuse_unread(invocation.words[1:], configs, composed)
    overrides.refuse_integers(user_command.divide(invocation.words[1:])[0], composed[0])
    refuse_sweep(configs, is_sweep=is_sweep)
    exporter: Exporter = factory.build_object(factory.make_spec(first.exporter, without=frozenset({"name"})))
    sender = reproduction = None
    resumes, reproduces = first.resume != Resume.NO, first.reproduce is not None
    if not first.dry_run or resumes or reproduces or _has_store(first):
        # The tracking process is started first, because it imports MLflow for seconds. It opens no store by itself.
        sender = stack.enter_context(take_sender())
        if first.reproduce is not None:
            reproduction = prepare_reproduction(composed[0], first, sender, stack)
            configs = [reproduction.config]
    simulated = stack.enter_context(rehearsal.prepare_machine(configs))
    return StudyRequest(
        configs=configs,
        is_sweep=is_sweep,
        sender=sender,
        invocation=invocation,
        simulated=simulated,
        exporter=exporter,
        reproduction=reproduction,
    )


def _has_store(config: Config) -> bool:
    tracking = config.tracking
    return tracking.uri is not None or local_store.is_ready(
        expand_path("tracking.root", tracking.root), tracking.experiment
    )


def _check_same(configs: Sequence[Config]) -> None:
    for key in _STUDY_KEYS:
        value_of = operator.attrgetter(key)
        if any(value_of(config) != value_of(configs[0]) for config in configs):
            raise ConfigError(f"{key} applies to the whole study and cannot be swept; set it to one value")
