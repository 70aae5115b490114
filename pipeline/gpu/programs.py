"""Where a driver's program is, for a real GPU or a simulated one, and what is put before it to change settings."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from pipeline.errors import SharingError
from pipeline.types import Device, Group

_PACKAGES = {"nvidia-cuda-mps-control": "package nvidia-compute-utils on Debian and Ubuntu"}


def find(name: str, device: Device, group: Group, configured: str | None) -> str:
    """Absolute path of a program: sudo looks elsewhere for programs than we do.

    Args:
        name: of the program, as `nvidia-smi`.
        device: for which it is. A simulated one has its own programs and must never reach another.
        group: who needs it.
        configured: path that the configuration gives, if it has a key for this program.

    Raises:
        SharingError: it is not there, or cannot be run.
    """
    what = f"scenario={group.scenario} on {device.name}"
    program = dict(device.programs).get(name) if device.is_simulated else configured or shutil.which(name)
    if program is None:
        package = f" ({_PACKAGES[name]})" if name in _PACKAGES else ""
        raise SharingError(
            f"{what} needs the program {name}, which is not on PATH: it comes with the driver{package}; or put it "
            "on PATH, or name it with scenario.program=/path/to/it where the scenario has it"
        )
    path = Path(program).absolute()
    if not path.is_file() or not os.access(path, os.X_OK):
        raise SharingError(f"{what}: {program} is not a program that can be run; see scenario.program")
    return str(path)


def admin(device: Device, group: Group) -> tuple[str, ...]:
    """The prefix of commands that change settings. A simulated GPU has no use for one: nobody becomes root for it."""
    return () if device.is_simulated else group.gpu.admin or ()
