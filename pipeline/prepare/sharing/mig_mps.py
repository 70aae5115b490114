"""MPS inside MIG: jobs share MIG devices, each of which has a separate MPS daemon.

Each instance is a fault domain: a job that crashes its MPS server affects only the jobs on the same instance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.base.domain import mig_table
from pipeline.base.domain.driver_programs import find_group_programs
from pipeline.base.domain.protocols import Slots
from pipeline.base.domain.records import Group
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.interrupts import UndoStack
from pipeline.base.system.option_fields import option
from pipeline.base.system.words import format_count
from pipeline.clean.journal import Journal
from pipeline.prepare.mig.layouts import Layout
from pipeline.prepare.mig.profiles import read_gpu
from pipeline.prepare.mps.control_program import CONTROL
from pipeline.prepare.mps.mps_daemon import run_daemon
from pipeline.prepare.sharing.mig import Mig, check_places
from pipeline.prepare.sharing.mps import Mps, MpsOptions, MpsPercent, refuse_too_many


@dataclass
class MigMps(Mig, MpsOptions):
    """MIG devices that jobs share under MPS. Options of MIG are per instance, options of MPS are per job."""

    size_profile: dict[str, str] = field(init=False, default_factory=dict)
    layout: str | None = field(init=False, default=None)
    instances_per_job: int | None = field(init=False, default=None)
    num_instances: int = option("number of instances, if `profiles` is not set; at most the number of jobs", 2)
    instance_of: list[int] | None = option(
        "instance of each job by position; the first is 0; `null`: round-robin", None, values="list of int"
    )
    active_thread_pct: Any = option(
        "active thread percentage of each job; `null`: no limit", None, values="number or list"
    )
    mps_program: str | None = option("path of `nvidia-cuda-mps-control`, if not on PATH", None, values="path")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_instances < 1:
            raise ConfigError(f"scenario.num_instances={self.num_instances} must be at least 1")
        options = {"pinned_mem_limit": self.pinned_mem_limit, "priority": self.priority}
        if self.active_thread_pct is None:
            self._mps = Mps(**options)
        else:
            self._mps = MpsPercent(**options, active_thread_pct=self.active_thread_pct)

    def _check_request(self, group: Group) -> None:
        num_instances, dealt = len(self.list_sizes(group)), self._deal(group)
        if len(dealt) != len(group.jobs):
            raise ConfigError(
                f"scenario.instance_of has {format_count(len(dealt), 'value')} for "
                f"{format_count(len(group.jobs), 'job')}; list one value for each job"
            )
        if sorted(set(dealt)) != list(range(num_instances)):
            used = ", ".join(map(str, sorted(set(dealt))))
            raise ConfigError(
                f"the jobs use only the instances {used} (counted from 0) of {num_instances} instances; set "
                "scenario.instance_of so that each instance has a job, or use fewer scenario.profiles or more jobs"
            )
        for position in range(len(group.jobs)):
            self._mps.list_variables(position, len(group.jobs))
        super()._check_request(group)

    def list_sizes(self, group: Group) -> Sequence[str | None]:
        """List `None` for each instance, because the profiles do not depend on the sizes of jobs."""
        return [None] * (len(self._profiles) or min(self.num_instances, len(group.jobs)))

    def _plan_layout(self, group: Group) -> Layout:
        gpu = read_gpu(group.device)
        layout, num_jobs = super()._plan_layout(group), Counter(self._deal(group))
        for position, (instance, name) in enumerate(layout.devices):
            slices = mig_table.split_name(name)[1] or instance.profile.compute_slices
            refuse_too_many(group, num_jobs[position], f"a {name}", slices / gpu.compute_slices)
        return layout

    @contextmanager
    def prepare(self, group: Group, scratch: Path) -> Iterator[Slots]:
        programs = find_group_programs(group, {CONTROL: self.mps_program})
        program = programs.find(CONTROL)
        journal = Journal(group.gpu.lock_dir, group.device.uuid, programs)
        with self.divide(group) as places, UndoStack() as stack:
            servers = [
                stack.enter_context(run_daemon(place.visible_devices, scratch, program, journal, number=number))
                for number, place in enumerate(places)
            ]
            dealt = self._deal(group)
            of_jobs = [places[position] for position in dealt]
            with self._mps.as_clients(of_jobs, [servers[position] for position in dealt], group) as clients:

                def verify(pids: Mapping[int, int]) -> None:
                    check_places(clients.slots, group.jobs, pids)
                    clients.verify(pids)

                yield Slots(clients.slots, verify)

    def _deal(self, group: Group) -> Sequence[int]:
        num_instances = len(self.list_sizes(group))
        return self.instance_of or [index % num_instances for index in range(len(group.jobs))]
