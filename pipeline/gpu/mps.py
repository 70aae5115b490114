"""MPS: the jobs of a group are clients of one MPS server, whose daemon is ours and lives as long as the group.

The compute mode of the GPU is not changed, so a program that bypasses MPS would run: that every job is a client is
proved by asking the daemon.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.errors import ConfigError, SharingError
from pipeline.gpu import compute_mode, programs
from pipeline.gpu.mps_daemon import MpsDaemon, daemon
from pipeline.gpu.naive import refuse_mig
from pipeline.interrupts import UndoStack
from pipeline.journal import Journal
from pipeline.processes import tree_of
from pipeline.types import Device, Group, Job, Slot

log = logging.getLogger(__name__)

CONTROL = "nvidia-cuda-mps-control"
_PROOF_LIMIT_S = 5.0
_LOOK_S = 0.05
_WATCH_S = 0.5
# Multiprocessors left to a client at which fp16 and bf16 matrix products came out wrong or unwritten, with no error.
# Source: measured on an H100 80GB HBM3 (132 multiprocessors, driver 580.159.04, torch 2.11.0+cu130); docs/mps.md.
_FAULTY_MULTIPROCESSORS = frozenset(
    {18, 20, 22, 26, 28, 36, 38, 42, 46, 52, 54, 58, 68, 72, 78, 86, 92, 98, 104, 112, 116}
)
_MEASURED_ON = {"compute_capability": "9.0", "multiprocessors": "132"}


class MpsSlots:
    """One slot a job, and the proof that each job is a client of its server.

    Args:
        slots: in the order of the jobs.
        servers: whose clients they are to be, in the same order.
        jobs: who takes them.
    """

    def __init__(self, slots: Sequence[Slot], servers: Sequence[MpsDaemon], jobs: Sequence[Job]) -> None:
        self.slots = slots
        self._servers = servers
        # A program that knows nothing of the barrier initialises CUDA some time after it.
        self._late = {job.index for job in jobs if job.workload.ends_by_itself}
        self._names = {job.index: job.name for job in jobs}
        self._unproved: dict[int, int] = {}
        self._stop = threading.Event()
        self._watcher: threading.Thread | None = None

    def verify(self, pids: Mapping[int, int]) -> None:
        """Check that some process of every job is a client; a script unchanged is looked for while it runs instead.

        Raises:
            SharingError: a job runs without MPS, although it was told to use it; or the server cannot be asked.
        """
        due = {index: pid for index, pid in pids.items() if index not in self._late}
        deadline = time.monotonic() + _PROOF_LIMIT_S
        while due := self._not_clients(due):
            if time.monotonic() > deadline:
                raise self._bypassed(due)
            time.sleep(_LOOK_S)
        self._unproved = {index: pid for index, pid in pids.items() if index in self._late}
        if self._unproved:
            self._watcher = threading.Thread(target=self._watch, name="mps-clients", daemon=True)
            self._watcher.start()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """The time in which `verify` may look for clients."""
        try:
            yield
        finally:
            self._stop.set()
            if self._watcher is not None:
                self._watcher.join()

    def check_scripts(self) -> None:
        """Check that every script that `verify` left to be looked for was seen as a client.

        Raises:
            SharingError: one never was.
        """
        if self._unproved:
            raise self._bypassed(self._unproved)

    def _watch(self) -> None:
        while not self._stop.wait(_WATCH_S):
            try:
                self._unproved = self._not_clients(self._unproved)
            except SharingError as error:
                log.debug("looking for MPS clients: %s", error)  # the check of the server's health says what is wrong
                return
            if not self._unproved:
                return

    def _not_clients(self, pids: Mapping[int, int]) -> dict[int, int]:
        """Those of the jobs of which no process is a client now."""
        if not pids:
            return {}
        clients = {server.server: server.clients() for server in {self._servers[index] for index in pids}}
        return {
            index: pid for index, pid in pids.items() if clients[self._servers[index].server].isdisjoint(tree_of(pid))
        }

    def _bypassed(self, pids: Mapping[int, int]) -> SharingError:
        jobs = ", ".join(f"{self._names[index]} (pid {pid})" for index, pid in pids.items())
        return SharingError(
            f"not under MPS: {jobs}; no process of it was a client of the MPS server that was started for it. "
            "A program that does not use CUDA, or drops CUDA_MPS_PIPE_DIRECTORY from its environment, runs without MPS "
            "and says nothing"
        )


class Mps:
    """Jobs share the GPU under MPS.

    Args:
        pinned_mem_limit: device memory that a client may allocate, such as `10G` or `512M`; one value for all jobs or
            a list by position. No limit if not given.
        priority: 0 (normal) or 1 (below normal), a hint to the hardware; one value or a list by position.
        program: absolute path of nvidia-cuda-mps-control; looked for on PATH if not given.

    Raises:
        ConfigError: a value that MPS does not know.
    """

    def __init__(
        self,
        pinned_mem_limit: str | Sequence[str] | None = None,
        priority: int | Sequence[int] | None = None,
        program: str | None = None,
    ) -> None:
        self._limits, self._priorities, self._program = pinned_mem_limit, priority, program
        for limit in _each(pinned_mem_limit):
            if not re.fullmatch(r"[1-9]\d*(G|M|GB|MB)", str(limit)):
                raise ConfigError(f"scenario.pinned_mem_limit={limit}: a number with G or M, such as 10G")
        for value in _each(priority):
            if isinstance(value, bool) or value not in (0, 1):
                raise ConfigError(f"scenario.priority={value}: 0 (normal) or 1 (below normal)")

    def check(self, group: Group) -> None:
        """Check what can be checked without touching anything.

        Raises:
            ConfigError: the device is no GPU or has MIG mode on; a list with another length than the group has jobs.
        """
        device, what = group.device, f"scenario={group.scenario}"
        if not device.is_gpu:
            raise ConfigError(f"{what} needs an NVIDIA GPU, not {device.name}: choose gpu=nvidia, or scenario=naive")
        refuse_mig(group)
        compute_mode.refuse_prohibited(group)
        gpu = group.gpu
        if gpu.exclusive_process and gpu.admin is None:
            raise ConfigError("gpu.exclusive_process changes a setting of the GPU, which gpu.admin=null forbids")
        for position in range(group.degree):
            self.variables(position, group.degree)

    def warnings(self, group: Group) -> tuple[str, ...]:
        """What a user should know before the group runs."""
        return ()

    def privileged(self, group: Group) -> tuple[tuple[str, ...], ...]:
        """None, unless `gpu.exclusive_process` asks for it.

        Raises:
            SharingError: there is no nvidia-smi.
        """
        found = dict(group.device.details).get("compute_mode", "default")
        if not group.gpu.exclusive_process or found == compute_mode.EXCLUSIVE:
            return ()
        device = group.device
        smi = programs.find("nvidia-smi", device, group, None)
        return compute_mode.commands(device.uuid, smi, programs.admin(device, group), found)

    @contextmanager
    def prepare(self, device: Device, group: Group, scratch: Path) -> Iterator[MpsSlots]:
        """Run a daemon for the group; one slot a job, all clients of its server.

        Raises:
            ConfigError: as `check`.
            SharingError: there is no control program, or the daemon does not work; at the end, the server is not
                healthy, or a job was never seen as its client.
        """
        self.check(group)
        program = programs.find(CONTROL, device, group, self._program)
        for warning in self.warnings(group):
            log.warning("%s", warning)
        journal = Journal(group.gpu.lock_dir, device.uuid)
        with UndoStack() as stack:
            if group.gpu.exclusive_process:
                smi = programs.find("nvidia-smi", device, group, None)
                admin = programs.admin(device, group)
                stack.enter_context(compute_mode.exclusive(device.uuid, smi, admin, journal))
            server = stack.enter_context(daemon(device.uuid, scratch / "mps", program, journal))
            places = [Slot(visible_devices=device.uuid, gpu_uuid=device.uuid) for _ in group.jobs]
            with self.clients(places, [server] * group.degree, group) as slots:
                yield slots

    @contextmanager
    def clients(self, places: Sequence[Slot], servers: Sequence[MpsDaemon], group: Group) -> Iterator[MpsSlots]:
        """The places of the jobs as clients of their servers, which must be as they were when the jobs have ended.

        Args:
            places: where each job runs.
            servers: whose client each job is.
            group: the jobs.

        Raises:
            SharingError: at the end, a server is not healthy, or a job was never seen as its client.
        """
        slots = []
        for position, (place, server) in enumerate(zip(places, servers, strict=True)):
            variables = self.variables(position, group.degree)
            environ = {
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                "CUDA_MPS_PIPE_DIRECTORY": str(server.control.pipes),
                **variables,
            }
            facts = (*place.facts, *((name.removeprefix("CUDA_").lower(), value) for name, value in variables.items()))
            slots.append(dataclasses.replace(place, environ=tuple(environ.items()), facts=facts))
        under_mps = MpsSlots(slots, servers, group.jobs)
        with under_mps.watching():
            yield under_mps
        for server in dict.fromkeys(servers):
            server.check_health()
        under_mps.check_scripts()

    def variables(self, position: int, num_jobs: int) -> dict[str, str]:
        """What the client at a position gets in its environment."""
        limit = _at("pinned_mem_limit", self._limits, position, num_jobs)
        priority = _at("priority", self._priorities, position, num_jobs)
        return {
            # A daemon serves one device here, which its clients know as number 0.
            **({} if limit is None else {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={limit}"}),
            **({} if priority is None else {"CUDA_MPS_CLIENT_PRIORITY": str(priority)}),
        }


class MpsPercent(Mps):
    """Jobs share the GPU under MPS, each capped to a share of its multiprocessors.

    Args:
        active_thread_pct: the cap in per cent, greater than 0 and at most 100; one value for all jobs or a list by
            position. Equal shares, 100 / number of jobs, if not given.
        pinned_mem_limit, priority, program: as for `Mps`.

    Raises:
        ConfigError: a value that MPS does not know; it would ignore it and say so in its log only.
    """

    def __init__(
        self,
        active_thread_pct: float | Sequence[float] | None = None,
        pinned_mem_limit: str | Sequence[str] | None = None,
        priority: int | Sequence[int] | None = None,
        program: str | None = None,
    ) -> None:
        super().__init__(pinned_mem_limit, priority, program)
        self._shares_pct = active_thread_pct
        for share in _each(active_thread_pct):
            if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 100:
                raise ConfigError(f"scenario.active_thread_pct={share}: a number greater than 0 and at most 100")

    def share_pct(self, position: int, num_jobs: int) -> float:
        """The cap of the job at a position. Unit: per cent of the multiprocessors."""
        share = _at("active_thread_pct", self._shares_pct, position, num_jobs)
        return 100 / num_jobs if share is None else share

    def warnings(self, group: Group) -> tuple[str, ...]:
        """Names the shares under which a job of the group is known to compute wrong results."""
        return tuple(
            warning
            for position, job in enumerate(group.jobs)
            if (warning := _warning(job, group.device, self.share_pct(position, group.degree))) is not None
        )

    def variables(self, position: int, num_jobs: int) -> dict[str, str]:
        """What the client at a position gets in its environment."""
        share = f"{self.share_pct(position, num_jobs):g}"
        return super().variables(position, num_jobs) | {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": share}


def _each(option: object) -> Sequence[object]:
    """The values of an option that is nothing, one value, or a list by position."""
    if option is None:
        return ()
    return option if isinstance(option, list | tuple) else (option,)


def _at(key: str, option: Any, position: int, num_jobs: int) -> Any:
    """The value of such an option for one job."""
    if not isinstance(option, list | tuple):
        return option
    if len(option) != num_jobs:
        raise ConfigError(f"scenario.{key} has {len(option)} values for {num_jobs} jobs; give one for each job")
    return option[position]


def _warning(job: Job, device: Device, share_pct: float) -> str | None:
    """What is known of the job's arithmetic under its share."""
    precision = dict(job.workload.params).get("precision")
    if precision in ("fp32", "tf32") or not _MEASURED_ON.items() <= dict(device.details).items():
        return None
    multiprocessors = _multiprocessors(share_pct)
    if multiprocessors not in _FAULTY_MULTIPROCESSORS:
        return None
    return (
        f"job {job.name}: under active_thread_pct={share_pct:g} ({multiprocessors} of 132 multiprocessors) matrix "
        f"products in {precision or 'fp16 and bf16'} are known to come out wrong on this GPU, without an error; "
        "fp32 is not affected (docs/mps.md)"
    )


def _multiprocessors(share_pct: float) -> int:
    """Multiprocessors of 132 that a share leaves to a client: pairs, rounded down, at least four of them."""
    return max(8, int(share_pct * 132 / 200) * 2)
