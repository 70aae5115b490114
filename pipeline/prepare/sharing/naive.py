"""Naive sharing: every job uses the whole device, and the driver switches between the jobs by time slices."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline.base.domain.protocols import Slots
from pipeline.base.domain.records import Commands, Group, Slot
from pipeline.prepare.device import compute_mode, refusals


class Naive:
    """Sharing without settings of the GPU; also used for serial groups, which run one job at a time."""

    def check(self, group: Group) -> None:
        refusals.refuse_mig(group)
        compute_mode.refuse_exclusive(group)
        compute_mode.refuse_forbidden(group, group.most_at_once)

    def warnings(self, group: Group) -> tuple[str, ...]:
        return ()

    def list_setting_commands(self, group: Group) -> Commands:
        return Commands()

    @contextmanager
    def prepare(self, group: Group, scratch: Path) -> Iterator[Slots]:
        device = group.device
        self.check(group)
        if not device.is_gpu:
            yield Slots([Slot(visible_devices="")] * len(group.jobs), lambda pids: None)
            return
        slot = dataclasses.replace(Slot.from_device(device), environ=refusals.isolate_from_mps(scratch))
        yield Slots([slot] * len(group.jobs), lambda pids: refusals.refuse_mps_clients(device, group.gpu.tolerate))
