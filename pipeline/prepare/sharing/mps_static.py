"""MPS with static partitions: each job has reserved multiprocessors, without MIG and active thread percentages."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.base.domain import mig_table
from pipeline.base.domain.protocols import Slots
from pipeline.base.domain.records import Group, Job, Slot
from pipeline.base.domain.sharing_modes import PARTITION
from pipeline.base.system.errors import ConfigError, SharingError
from pipeline.base.system.option_fields import option
from pipeline.prepare.device import refusals
from pipeline.prepare.mps import sm_partitions
from pipeline.prepare.mps.control_program import ControlProgram
from pipeline.prepare.mps.sm_partitions import Partition
from pipeline.prepare.sharing.mps import Mps, list_values, parse_version, value_at

_SINCE_CUDA = (13, 1)  # source: NVIDIA's MPS documentation, release 615
_PROOF_LIMIT_S, _LOOK_S = 5.0, 0.1


@dataclass
class MpsStatic(Mps):
    """MPS with a static partition for each job."""

    chunks: Any = option(
        "chunks of multiprocessors in a job's static partition "
        "([mps.md](mps.md#separate-multiprocessors-for-each-job)); `null`: equal numbers",
        None,
        values="int or list",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for number in list_values(self.chunks):
            if isinstance(number, bool) or not isinstance(number, int) or number < 1:
                raise ConfigError(f"scenario.chunks={number} must be a whole number, at least 1")

    def check(self, group: Group) -> None:
        device, setting, facts = group.device, f"scenario={group.scenario}", group.device.facts
        if device.parent is not None:
            raise ConfigError(
                f"{setting} divides a whole GPU, but {device.name} ({device.uuid}) is a MIG device; use "
                "scenario=serial, naive or mps"
            )
        refusals.refuse_cpus(group, rehearsal="gpu=simulated_h100_80gb gpu.driver=590")
        super().check(group)
        chunks = self._list_chunks(len(group.jobs))
        if not device.was_read:  # the device was not read, so its capabilities are unknown
            return
        size = mig_table.find_chunk_size(facts.compute_capability or (0, 0))
        if size is None:
            raise ConfigError(f"{setting} needs an Ampere GPU or newer, not {device.name}; use scenario=mps_percent")
        if parse_version(facts.cuda_version or "0.0") < _SINCE_CUDA:
            remedy = ", or rehearse it with gpu.driver=590" if device.is_simulated else ""
            raise ConfigError(
                f"{setting} needs a driver with CUDA 13.1 or newer (R590), not {facts.driver_version} with CUDA "
                f"{facts.cuda_version}; use scenario=mps or mps_percent{remedy}"
            )
        if device.is_simulated and facts.multiprocessors is None:
            raise ConfigError(
                f"{setting}: the number of multiprocessors of {device.name} is unknown; choose another gpu.model"
            )
        num_needed = sum(chunks or [1] * len(group.jobs))
        if facts.multiprocessors and num_needed > (most := mig_table.count_chunks(size, facts.multiprocessors)):
            raise ConfigError(
                f"{setting}: {device.name} has at most {most} chunks of {size} multiprocessors, but the jobs need "
                f"{num_needed}; lower scenario.chunks, or use fewer jobs"
            )

    @contextmanager
    def prepare(self, group: Group, scratch: Path) -> Iterator[Slots]:
        created: list[Partition] = []
        device = group.device

        def divide(control: ControlProgram) -> None:
            created.extend(
                sm_partitions.divide(control, device.uuid, self._list_chunks(len(group.jobs)), len(group.jobs))
            )

        with self.run_server(group, scratch, divide) as server:
            places = [_place_in_partition(Slot.from_device(device), partition) for partition in created]
            with self.as_clients(places, [server] * len(group.jobs), group) as clients:

                def verify(pids: Mapping[int, int]) -> None:
                    clients.verify(pids)
                    _check_partitions(server.control, created, group.jobs, pids)

                yield Slots(clients.slots, verify)

    def _list_chunks(self, num_jobs: int) -> list[int] | None:
        if self.chunks is None:
            return None
        return [value_at("chunks", self.chunks, position, num_jobs) for position in range(num_jobs)]


def _check_partitions(
    control: ControlProgram, partitions: Sequence[Partition], jobs: Sequence[Job], pids: Mapping[int, int]
) -> None:
    """Check that each partition has a client; each job is a client, so each is in its partition.

    Partitions of unmodified scripts are not checked, because scripts do not report when they initialise CUDA.
    """
    due = {partitions[job.index]: job for job in jobs if job.index in pids and not job.workload.ends_by_itself}
    deadline = time.monotonic() + _PROOF_LIMIT_S
    while due and (unused := sm_partitions.list_unused(control, list(due))):
        if time.monotonic() > deadline:
            names = ", ".join(f"{due[partition].name} (pid {pids[due[partition].index]})" for partition in unused)
            raise SharingError(
                f"these jobs are not in their MPS static partitions: {names}; do not change CUDA_MPS_SM_PARTITION in a "
                "job"
            )
        time.sleep(_LOOK_S)


def _place_in_partition(place: Slot, partition: Partition) -> Slot:
    facts = {"mps_chunks": partition.chunks, PARTITION: partition.multiprocessors}
    return dataclasses.replace(
        place,
        environ=(("CUDA_MPS_SM_PARTITION", partition.name),),
        facts=tuple((key, str(value)) for key, value in facts.items()),
    )
