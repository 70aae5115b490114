"""MPS inside MIG: jobs share MIG devices, each of which has a separate MPS daemon.

Each instance is a fault domain: a job that crashes its MPS server affects only the jobs on the same instance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pipeline.base.domain import mig_table
from pipeline.base.domain.driver_programs import find_group_programs
from pipeline.base.domain.protocols import Slots
from pipeline.base.domain.records import Group
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.interrupts import UndoStack
from pipeline.base.system.words import format_count
from pipeline.clean.journal import Journal
from pipeline.prepare.mig.layouts import AUTO, Layout
from pipeline.prepare.mig.profiles import read_gpu
from pipeline.prepare.mps.control_program import CONTROL
from pipeline.prepare.mps.mps_daemon import run_daemon
from pipeline.prepare.sharing.mig import Mig, check_places
from pipeline.prepare.sharing.mps import Mps, MpsPercent, refuse_too_many


class MigMps(Mig):
    """MIG devices that jobs share under MPS. Options: `pipeline.plan.config_schema.MigMpsConfig`."""

    def __init__(
        self,
        profiles: Sequence[str] | None = None,
        profile: str = AUTO,
        num_instances: int = 2,
        instance_of: Sequence[int] | None = None,
        active_thread_pct: float | Sequence[float] | None = None,
        pinned_mem_limit: str | Sequence[str] | None = None,
        priority: int | Sequence[int] | None = None,
        mps_program: str | None = None,
        program: str | None = None,
    ) -> None:
        super().__init__(profile=profile, profiles=profiles, program=program)
        if num_instances < 1:
            raise ConfigError(f"scenario.num_instances={num_instances} must be at least 1")
        self._num_instances, self._instance_of = num_instances, instance_of
        self._control_program = mps_program
        if active_thread_pct is None:
            self._mps = Mps(pinned_mem_limit, priority)
        else:
            self._mps = MpsPercent(active_thread_pct, pinned_mem_limit, priority)

    def _check_request(self, group: Group) -> None:
        num_instances, dealt = len(self.list_sizes(group)), self._deal(group)
        if len(dealt) != group.degree:
            raise ConfigError(
                f"scenario.instance_of has {format_count(len(dealt), 'value')} for "
                f"{format_count(group.degree, 'job')}; list one value for each job"
            )
        if sorted(set(dealt)) != list(range(num_instances)):
            used = ", ".join(map(str, sorted(set(dealt))))
            raise ConfigError(
                f"the jobs use only the instances {used} (counted from 0) of {num_instances} instances; set "
                "scenario.instance_of so that each instance has a job, or use fewer scenario.profiles or more jobs"
            )
        for position in range(group.degree):
            self._mps.list_variables(position, group.degree)
        super()._check_request(group)

    def list_sizes(self, group: Group) -> Sequence[str | None]:
        """List `None` for each instance, because the profiles do not depend on the sizes of jobs."""
        return [None] * (len(self._profiles) or min(self._num_instances, group.degree))

    def _plan_layout(self, group: Group) -> Layout:
        gpu = read_gpu(group.device)
        layout, num_jobs = super()._plan_layout(group), Counter(self._deal(group))
        for position, (instance, name) in enumerate(layout.devices):
            slices = mig_table.split_name(name)[1] or instance.profile.compute_slices
            refuse_too_many(group, num_jobs[position], f"a {name}", slices / gpu.compute_slices)
        return layout

    @contextmanager
    def prepare(self, group: Group, scratch: Path) -> Iterator[Slots]:
        programs = find_group_programs(group, {CONTROL: self._control_program})
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
        return self._instance_of or [index % num_instances for index in range(group.degree)]
