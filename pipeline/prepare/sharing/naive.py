"""Naive sharing: every job uses the whole device, and the driver switches between the jobs by time slices."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.domain.records import Commands, Device, Group, Slot
from pipeline.prepare.device import compute_mode, refusals


@dataclass(frozen=True, slots=True)
class WholeDevice:
    """One slot per job, all on the same device."""

    slots: Sequence[Slot]
    device: Device
    tolerated: Sequence[str] = ()

    def verify(self, pids: Mapping[int, int]) -> None:
        """Check that no job is a client of an MPS daemon that runs on the machine."""
        if self.device.is_gpu:
            refusals.refuse_mps_clients(self.device, self.tolerated)


class Naive:
    """Sharing without settings of the GPU; also used for serial groups, which run one job at a time."""

    def check(self, group: Group) -> None:
        refusals.refuse_mig(group)
        compute_mode.refuse_exclusive(group)
        compute_mode.refuse_forbidden(group, 1 if group.sequential else group.degree)

    def warnings(self, group: Group) -> tuple[str, ...]:
        return ()

    def privileged(self, group: Group) -> Commands:
        return Commands()

    @contextmanager
    def prepare(self, device: Device, group: Group, scratch: Path) -> Iterator[WholeDevice]:
        self.check(group)
        if not device.is_gpu:
            yield WholeDevice(tuple(Slot(visible_devices="") for _ in group.jobs), device)
            return
        slot = dataclasses.replace(Slot.from_device(device), environ=refusals.isolate_from_mps(scratch))
        yield WholeDevice(tuple(slot for _ in group.jobs), device, group.gpu.tolerate)
