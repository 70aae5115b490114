"""Proof that each job is a client of the MPS server that was started for this job."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from pipeline.base.domain.records import Job, Slot
from pipeline.base.system.errors import SharingError
from pipeline.clean.processes import list_tree
from pipeline.prepare.mps.mps_daemon import MpsDaemon

log = logging.getLogger(__name__)

_PROOF_LIMIT_S = 5.0
_LOOK_S = 0.05
_WATCH_S = 0.5


class MpsSlots:
    """One slot per job, and the proof that each job is a client of its server.

    Slots and servers are in the order of the jobs. `verify` is called once, or in a pack for each trial; there, one
    trial that is a client proves all, because the others may fail before they use the GPU.
    """

    def __init__(
        self, slots: Sequence[Slot], servers: Sequence[MpsDaemon], jobs: Sequence[Job], *, is_pack: bool = False
    ) -> None:
        self._is_pack, self._is_pack_proved = is_pack, False
        self.slots = slots
        self._servers = servers
        # Unmodified scripts do not wait at the barrier, and initialise CUDA at an unknown time.
        self._late = {job.index for job in jobs if job.workload.ends_by_itself}
        self._names = {job.index: job.name for job in jobs}
        self._unproved: dict[int, int] = {}
        self._stop = threading.Event()
        self._watcher: threading.Thread | None = None

    def verify(self, pids: Mapping[int, int]) -> None:
        """Check the jobs now, but unmodified scripts while they run: they do not report when they initialise CUDA."""
        if self._is_pack_proved:
            return
        due = {index: pid for index, pid in pids.items() if index not in self._late}
        deadline = time.monotonic() + _PROOF_LIMIT_S
        while due := self._find_bypassing(due):
            if time.monotonic() > deadline:
                raise self._explain_bypass(due)
            time.sleep(_LOOK_S)
        self._unproved = self._unproved | {index: pid for index, pid in pids.items() if index in self._late}
        if self._unproved and self._watcher is None:
            self._watcher = threading.Thread(target=self._look_for_clients, name="mps-clients", daemon=True)
            self._watcher.start()

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Run the body, then stop the thread that `verify` started."""
        try:
            yield
        finally:
            self._stop.set()
            if self._watcher is not None:
                self._watcher.join()

    def check_scripts(self) -> None:
        """Raise SharingError if an unmodified script was never a client while it ran."""
        if self._unproved and not self._is_pack_proved:
            raise self._explain_bypass(self._unproved)

    def _look_for_clients(self) -> None:
        while not self._stop.wait(_WATCH_S):
            try:
                watched = self._unproved
                remaining = self._find_bypassing(watched)
                if self._is_pack:
                    self._is_pack_proved = len(remaining) < len(watched)
                else:
                    self._unproved = remaining
            except SharingError as error:
                log.debug("looking for MPS clients: %s", error)  # `MpsDaemon.check_health` reports the cause
                return
            if self._is_pack_proved or not self._unproved:
                return

    def _find_bypassing(self, pids: Mapping[int, int]) -> dict[int, int]:
        if not pids:
            return {}
        clients = {server.server: server.list_clients() for server in {self._servers[index] for index in pids}}
        return {
            index: pid for index, pid in pids.items() if clients[self._servers[index].server].isdisjoint(list_tree(pid))
        }

    def _explain_bypass(self, pids: Mapping[int, int]) -> SharingError:
        jobs = ", ".join(f"{self._names[index]} (pid {pid})" for index, pid in pids.items())
        return SharingError(
            f"these jobs are not clients of MPS: {jobs}; check that these programs use CUDA and do not change "
            "CUDA_MPS_PIPE_DIRECTORY"
        )
