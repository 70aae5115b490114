"""The programs of a real or simulated driver, and the command prefix that runs them as administrator."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.base.domain.records import Device, Group
from pipeline.base.system import helper_program
from pipeline.base.system.command_parser import choose_remedy
from pipeline.base.system.errors import ConfigError, SharingError

Execute = Callable[[Sequence[str]], helper_program.Completed]
"""Executes a command of nvidia-smi instead of `helper_program.run`, for example to record its output."""

_PACKAGES = {"nvidia-cuda-mps-control": "package nvidia-compute-utils on Debian and Ubuntu"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """The programs that change and restore the settings of one device.

    Attributes:
        purpose: purpose of the programs, for errors.
        simulated: programs of a simulated device, by name, which are the only ones allowed; `None` for a real device.
        configured: paths from the configuration, by name; other programs are found on PATH.
        admin: prefix of a command that changes settings; `None` if the prefix is read from the journal.
        execute: function that executes commands of nvidia-smi; `None` to run them as programs.
    """

    purpose: str = "restoring the device after a study"
    simulated: Mapping[str, str] | None = None
    configured: Mapping[str, str | None] = field(default_factory=dict)
    admin: tuple[str, ...] | None = None
    execute: Execute | None = None

    def path(self, name: str) -> str | None:
        """Return the path of a program; `None` if there is none."""
        return (
            self.simulated.get(name) if self.simulated is not None else self.configured.get(name) or shutil.which(name)
        )

    def find(self, name: str) -> str:
        """Return the path of a program, absolute because sudo has another PATH; `SharingError` if not executable."""
        program = self.path(name)
        if program is None:
            package = f" ({_PACKAGES[name]})" if name in _PACKAGES else ""
            option = choose_remedy(f", or set scenario.program=/path/to/{name} if the scenario has this key", "")
            raise SharingError(
                f"{self.purpose} needs {name}, which is not on PATH; install the driver{package}{option}"
            )
        path = Path(program).absolute()
        if not path.is_file() or not os.access(path, os.X_OK):
            remedy = choose_remedy("check scenario.program", f"install the driver's {name}")
            raise SharingError(f"{self.purpose}: {program} is not executable; {remedy}")
        return str(path)


def find_group_programs(group: Group, configured: Mapping[str, str | None] | None = None) -> Programs:
    """Return the programs for a group; a simulated GPU never needs administrator rights."""
    device = group.device
    return Programs(
        purpose=f"scenario={group.scenario} on {device.name}",
        simulated=_list_simulated(device),
        configured=configured or {},
        admin=() if device.is_simulated else group.gpu.admin or (),
    )


def find_device_programs(device: Device) -> Programs:
    """Return the programs that undo the steps recorded in the journal of a device."""
    return Programs(simulated=_list_simulated(device), admin=() if device.is_simulated else None)


def refuse_absent_admin(admin: Sequence[str], key: str, example: str) -> None:
    """Raise `ConfigError` if the program that grants administrator rights does not exist."""
    if admin and shutil.which(admin[0]) is None:
        raise ConfigError(f"{key}: program {admin[0]!r} was not found; correct it, for example {example}")


def _list_simulated(device: Device) -> Mapping[str, str] | None:
    return dict(device.programs) if device.is_simulated else None
