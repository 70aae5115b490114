"""`gpu.exclusive_process`: only the MPS server may compute on the GPU, so a job that bypasses MPS fails.

The compute mode is set through nvidia-smi, verified through NVML, and restored afterwards. A restart of the machine
resets it (nvidia-smi(1)).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pipeline.base.domain.driver_programs import Programs
from pipeline.base.domain.records import Group
from pipeline.base.system.errors import ConfigError, SharingError
from pipeline.base.system.host_info import boot_id
from pipeline.clean.journal import Journal
from pipeline.clean.kinds import undoes
from pipeline.prepare.device import nvml
from pipeline.prepare.device.smi_commands import Smi, await_last_write

log = logging.getLogger(__name__)

EXCLUSIVE = "exclusive_process"


def refuse_exclusive(group: Group) -> None:
    """Raise ConfigError if `gpu.exclusive_process` is set for a sharing mode without an MPS server."""
    if group.gpu.exclusive_process:
        raise ConfigError(
            f"gpu.exclusive_process does not work with scenario={group.scenario}; remove gpu.exclusive_process, or use "
            "scenario=mps, mps_percent or mps_static"
        )


def refuse_forbidden(group: Group, at_once: int) -> None:
    """Raise ConfigError if the compute mode does not allow `at_once` processes on the device."""
    device = group.device
    mode = device.facts.compute_mode or "default"
    if mode == "prohibited":
        limit = "no process"
    elif mode in (EXCLUSIVE, "exclusive_thread") and at_once > 1:
        limit = f"only one process at once, but this group has {at_once}"
    else:
        return
    raise ConfigError(
        f"scenario={group.scenario}: the compute mode {mode} of {device.name} ({device.uuid}) allows {limit}; "
        f"change it as administrator: nvidia-smi -i {device.uuid} -c DEFAULT"
    )


@contextmanager
def hold_exclusive(smi: Smi, journal: Journal) -> Iterator[None]:
    """Set the exclusive mode during the body; do nothing if the mode is already set."""
    previous = nvml.read_compute_mode(smi.uuid)
    if previous == EXCLUSIVE:
        yield
        return
    with journal.guard("compute_mode", **smi.to_record(), mode=previous, boot=boot_id()):
        set_mode(smi, EXCLUSIVE)
        yield


@undoes("compute_mode", "set the compute mode back to {mode}")
def restore(programs: Programs, uuid: str, admin: Sequence[str], mode: str) -> None:
    """Undo `hold_exclusive`, unless another program has changed the mode since then."""
    await_last_write(uuid)
    current = nvml.read_compute_mode(uuid)
    if current == EXCLUSIVE:
        set_mode(Smi.locate(programs, uuid, admin), mode)
    elif current != mode:
        log.warning("the compute mode of %s stays %s, because another program set it", uuid, current)


def set_mode(smi: Smi, mode: str) -> None:
    """Set the compute mode if it differs; SharingError if the mode is not set afterwards."""
    await_last_write(smi.uuid)
    if nvml.read_compute_mode(smi.uuid) == mode:
        return
    words = smi.compute_mode_command(mode)
    output = smi.run(words).printed_line
    if nvml.read_compute_mode(smi.uuid) != mode:
        raise SharingError(
            f"the compute mode of {smi.uuid} is not {mode} after `{' '.join(words)}` ({output}); ask an administrator "
            "to allow this command, and set gpu.admin, as in 'gpu.admin=[sudo,-n]'"
        )
