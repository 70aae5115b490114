"""Naive sharing with a time slice that the user chooses: default, short, medium or long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pipeline.base.domain.driver_programs import find_group_programs
from pipeline.base.domain.protocols import Slots
from pipeline.base.domain.records import Commands, Group
from pipeline.base.system.errors import ConfigError, SharingError
from pipeline.base.system.option_fields import option
from pipeline.clean.journal import Journal
from pipeline.prepare.device import refusals, time_slice
from pipeline.prepare.device.smi_commands import Smi
from pipeline.prepare.sharing.naive import Naive


@dataclass
class Timeslice(Naive):
    """Naive sharing with a chosen time slice."""

    timeslice: str = option(
        "length of a time slice ([mps.md](mps.md#time-slices))",
        "default",
        values="`default`, `short`, `medium`, `long`",
    )
    program: str | None = option("path of `nvidia-smi`, if not on PATH", None, values="path")

    def __post_init__(self) -> None:
        if self.timeslice not in time_slice.VALUES:
            names = ", ".join(time_slice.VALUES)
            raise ConfigError(f"scenario.timeslice={self.timeslice} is unknown; use one of {names}")

    def check(self, group: Group) -> None:
        device, setting = group.device, f"scenario={group.scenario}"
        refusals.refuse_cpus(group)
        super().check(group)
        if device.parent is not None:
            raise ConfigError(
                f"{setting} changes a setting of a whole GPU, but {device.name} ({device.uuid}) is a MIG device; use "
                "scenario=naive"
            )
        refusals.refuse_without_admin(group, f"{setting} changes the time slice of {device.name}")
        if not device.was_read:  # the device was not read, so its capabilities are unknown
            return
        try:
            why_not = time_slice.explain_refusal(self._smi(group))
        except SharingError as error:
            raise ConfigError(str(error)) from error
        if why_not is not None:
            raise ConfigError(f"{setting}: {why_not}")

    def list_setting_commands(self, group: Group) -> Commands:
        smi = self._smi(group)
        # If the GPU was not read, the default time slice is assumed.
        previous = time_slice.read(smi) if group.device.was_read else time_slice.VALUES[0]
        return time_slice.list_commands(smi, self.timeslice, previous)

    @contextmanager
    def prepare(self, group: Group, scratch: Path) -> Iterator[Slots]:
        self.check(group)
        smi = self._smi(group)
        programs = find_group_programs(group, {"nvidia-smi": self.program})
        journal = Journal(group.gpu.lock_dir, group.device.uuid, programs)
        with time_slice.hold(self.timeslice, smi, journal), super().prepare(group, scratch) as slots:
            yield slots

    def _smi(self, group: Group) -> Smi:
        return Smi.locate(find_group_programs(group, {"nvidia-smi": self.program}), group.device.uuid)
