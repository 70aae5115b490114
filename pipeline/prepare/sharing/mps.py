"""MPS: the jobs of a group are clients of one MPS server, whose daemon runs only for this group.

By default, the compute mode of the GPU is not changed, so a program could bypass MPS. The daemon's list of clients
proves that every job is a client.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.base.domain.driver_programs import find_group_programs
from pipeline.base.domain.protocols import Slots
from pipeline.base.domain.records import Commands, Group, Slot
from pipeline.base.system.errors import ConfigError
from pipeline.base.system.interrupts import UndoStack
from pipeline.base.system.option_fields import option
from pipeline.base.system.words import format_count
from pipeline.clean.journal import Journal
from pipeline.prepare.device import compute_mode, refusals
from pipeline.prepare.device.smi_commands import Smi
from pipeline.prepare.mig import assignment
from pipeline.prepare.mps import faulty_shares
from pipeline.prepare.mps.client_proof import MpsSlots
from pipeline.prepare.mps.control_program import CONTROL, ControlProgram
from pipeline.prepare.mps.mps_daemon import MpsDaemon, run_daemon

# Largest number of MPS clients on one GPU, by lowest version of CUDA. Source: MPS documentation, release 615,
# architecture. On a MIG device, the limit is reduced in proportion to its size (MIG User Guide, concepts). The rounding
# is not documented. This module rounds up, because rounding down might refuse groups that can run.
_MOST_CLIENTS = (((13, 1), 60), ((0, 0), 48))


@dataclass
class MpsOptions:
    """Options of an MPS server's clients, each with one value for all jobs, or a list with one value per job."""

    pinned_mem_limit: Any = option("device memory that a job may allocate, such as `10G`", None, values="text or list")
    priority: Any = option("0 (normal) or 1 (below normal)", None, values="0, 1 or list")


@dataclass
class Mps(MpsOptions):
    """One MPS server whose clients are all jobs of a group."""

    program: str | None = option("path of `nvidia-cuda-mps-control`, if not on PATH", None, values="path")

    def __post_init__(self) -> None:
        for limit in list_values(self.pinned_mem_limit):
            if not re.fullmatch(r"[1-9]\d*(G|M|GB|MB)", str(limit)):
                raise ConfigError(
                    f"scenario.pinned_mem_limit={limit} is not a size; use a number with G or M, such as 10G"
                )
        for value in list_values(self.priority):
            if isinstance(value, bool) or value not in (0, 1):
                raise ConfigError(f"scenario.priority={value} is unknown; use 0 (normal) or 1 (below normal)")

    def check(self, group: Group) -> None:
        device = group.device
        refusals.refuse_cpus(group)
        refusals.refuse_mig(group)
        if device.parent is None:
            refuse_too_many(group, group.most_at_once)
        else:
            refuse_too_many(group, group.most_at_once, device.name, assignment.read_share(device))
        compute_mode.refuse_forbidden(group, at_once=1)  # the server
        gpu = group.gpu
        if gpu.exclusive_process and device.parent is not None:
            raise ConfigError("gpu.exclusive_process does not work on a MIG device; remove gpu.exclusive_process")
        if gpu.exclusive_process:
            refusals.refuse_without_admin(group, f"gpu.exclusive_process changes a setting of {device.name}")
        for position in range(len(group.jobs)):
            self.list_variables(position, len(group.jobs))

    def warnings(self, group: Group) -> tuple[str, ...]:
        return ()

    def list_setting_commands(self, group: Group) -> Commands:
        previous = group.device.facts.compute_mode or "default"
        if not group.gpu.exclusive_process or previous == compute_mode.EXCLUSIVE:
            return Commands()
        command = Smi.locate(find_group_programs(group), group.device.uuid).compute_mode_command
        return Commands(do=(command(compute_mode.EXCLUSIVE),), undo=(command(previous),))

    @contextmanager
    def prepare(self, group: Group, scratch: Path) -> Iterator[Slots]:
        places = [Slot.from_device(group.device)] * len(group.jobs)
        with (
            self.run_server(group, scratch) as server,
            self.as_clients(places, [server] * len(group.jobs), group) as clients,
        ):
            yield Slots(clients.slots, clients.verify)

    @contextmanager
    def run_server(
        self, group: Group, scratch: Path, divide: Callable[[ControlProgram], None] | None = None
    ) -> Iterator[MpsDaemon]:
        """Set the compute mode if `gpu.exclusive_process` is set, and run a daemon for the whole device."""
        self.check(group)
        uuid = group.device.uuid
        programs = find_group_programs(group, {CONTROL: self.program})
        program = programs.find(CONTROL)
        journal = Journal(group.gpu.lock_dir, uuid, programs)
        with UndoStack() as stack:
            if group.gpu.exclusive_process:
                stack.enter_context(compute_mode.hold_exclusive(Smi.locate(programs, uuid), journal))
            yield stack.enter_context(run_daemon(uuid, scratch, program, journal, divide))

    @contextmanager
    def as_clients(self, places: Sequence[Slot], servers: Sequence[MpsDaemon], group: Group) -> Iterator[MpsSlots]:
        """Yield slots in which the jobs are clients of their servers; places and servers are in the order of the jobs.

        Raises:
            SharingError: after the body, a server is not healthy, or a job was never a client.
        """
        slots = []
        for position, (place, server) in enumerate(zip(places, servers, strict=True)):
            variables = self.list_variables(position, len(group.jobs))
            pipes = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_MPS_PIPE_DIRECTORY": str(server.control.pipes)}
            facts = (*place.facts, *((name.removeprefix("CUDA_").lower(), value) for name, value in variables.items()))
            environ = dict(place.environ) | pipes | variables
            slots.append(dataclasses.replace(place, environ=tuple(environ.items()), facts=facts))
        under_mps = MpsSlots(slots, servers, group.jobs, is_pack=group.pack is not None)
        with under_mps.watch():
            yield under_mps
        for server in dict.fromkeys(servers):
            server.check_health()
        under_mps.check_scripts()

    def list_variables(self, position: int, num_jobs: int) -> dict[str, str]:
        limit = value_at("pinned_mem_limit", self.pinned_mem_limit, position, num_jobs)
        priority = value_at("priority", self.priority, position, num_jobs)
        return {
            # Each daemon serves one device, which has the number 0 for its clients.
            **({} if limit is None else {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={limit}"}),
            **({} if priority is None else {"CUDA_MPS_CLIENT_PRIORITY": str(priority)}),
        }


@dataclass
class MpsPercent(Mps):
    """MPS with an active thread percentage for each job.

    An invalid percentage is refused here, because MPS would ignore it and report it only in its log.
    """

    active_thread_pct: Any = option(
        "active thread percentage of each job; `null`: equal percentages", None, values="number or list"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for share in list_values(self.active_thread_pct):
            if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 100:
                raise ConfigError(f"scenario.active_thread_pct={share} must be greater than 0 and at most 100")

    def share_pct(self, position: int, num_jobs: int) -> float:
        """Return the active thread percentage of the job at a position."""
        share = value_at("active_thread_pct", self.active_thread_pct, position, num_jobs)
        return 100 / num_jobs if share is None else share

    def warnings(self, group: Group) -> tuple[str, ...]:
        return tuple(
            warning
            for position, job in enumerate(group.jobs)
            if (warning := faulty_shares.describe_fault(job, group.device, self.share_pct(position, len(group.jobs))))
            is not None
        )

    def list_variables(self, position: int, num_jobs: int) -> dict[str, str]:
        share = f"{self.share_pct(position, num_jobs):g}"
        return super().list_variables(position, num_jobs) | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": share}


def parse_version(version: str) -> tuple[int, int]:
    """Parse the two numbers of a version, `13.1`."""
    major, _, minor = version.partition(".")
    return int(major), int(minor or 0)


def refuse_too_many(group: Group, num_jobs: int, target: str = "one GPU", share: float = 1.0) -> None:
    """Raise ConfigError if MPS supports fewer clients than jobs on a device with this share of its GPU.

    The check is skipped if the device was not read.
    """
    if (cuda := group.device.facts.cuda_version) is None:
        return
    most = math.ceil(share * next(most for since, most in _MOST_CLIENTS if parse_version(cuda) >= since))
    if num_jobs > most:
        larger = "" if share == 1 else " or larger MIG devices"
        raise ConfigError(
            f"scenario={group.scenario}: MPS of CUDA {cuda} supports at most {most} clients on {target}, not "
            f"{num_jobs}; use a lower degree{larger}"
        )


def list_values(option: object) -> Sequence[object]:
    """List the values of an option that is `None`, one value, or a list with one value per job."""
    if option is None:
        return ()
    return option if isinstance(option, list | tuple) else (option,)


def value_at(key: str, option: Any, position: int, num_jobs: int) -> Any:
    """Return the value for one job of an option that is `None`, one value, or a list with one value per job."""
    if not isinstance(option, list | tuple):
        return option
    if len(option) != num_jobs:
        raise ConfigError(
            f"scenario.{key} has {format_count(len(option), 'value')} for {format_count(num_jobs, 'job')}; list "
            "one value for each job"
        )
    return option[position]
