"""`gpu.exclusive_process`: only the MPS server may compute on the GPU, so that bypassing MPS fails loudly.

Set through nvidia-smi, read back through NVML, and set back to what was found. A restart resets it
(nvidia-smi(1)).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pipeline.base.domain.driver_programs import Programs
from pipeline.base.domain.records import Commands, Group
from pipeline.base.system.errors import ConfigError, SharingError
from pipeline.base.system.host_info import boot_id
from pipeline.clean.journal import Journal
from pipeline.clean.kinds import undoes
from pipeline.prepare.device import nvml
from pipeline.prepare.device.smi_commands import Smi, await_last_write

log = logging.getLogger(__name__)

EXCLUSIVE = "exclusive_process"


def refuse_exclusive(group: Group) -> None:
    """Raise ConfigError if a sharing mode without a server is to use `gpu.exclusive_process`."""
    if group.gpu.exclusive_process:
        raise ConfigError(
            f"gpu.exclusive_process does not work with scenario={group.scenario}; leave it out, or use scenario=mps, "
            "mps_percent or mps_static"
        )


def refuse_forbidden(group: Group, at_once: int) -> None:
    """Raise ConfigError if the compute mode keeps so many processes from computing on the device at once."""
    device = group.device
    mode = dict(device.details).get("compute_mode", "default")
    if mode == "prohibited":
        what = "no process"
    elif mode in (EXCLUSIVE, "exclusive_thread") and at_once > 1:
        what = f"only one process at once, but this group has {at_once}"
    else:
        return
    raise ConfigError(
        f"scenario={group.scenario}: the compute mode {mode} of {device.name} ({device.uuid}) allows {what}; "
        f"change it as administrator: nvidia-smi -i {device.uuid} -c DEFAULT"
    )


def list_commands(smi: Smi, previous: str) -> Commands:
    """List the commands that set the mode, and set it back to the previous one."""
    return Commands(do=(smi.compute_mode_command(EXCLUSIVE),), undo=(smi.compute_mode_command(previous),))


@contextmanager
def hold_exclusive(smi: Smi, journal: Journal) -> Iterator[None]:
    """Let only one process compute on the GPU for a while; do nothing if that is already so."""
    previous = nvml.read_compute_mode(smi.uuid)
    if previous == EXCLUSIVE:
        yield
        return
    with journal.guard("compute_mode", **smi.to_record(), mode=previous, boot=boot_id()):
        set_mode(smi, EXCLUSIVE)
        yield


@undoes("compute_mode", "set the compute mode back to {mode}")
def restore(programs: Programs, uuid: str, admin: Sequence[str], mode: str, boot: str | None = None) -> None:
    """Undo `hold_exclusive`; a mode that somebody else, or a restart, has set since then stays."""
    if boot not in (None, boot_id()):
        return
    await_last_write(uuid)
    current = nvml.read_compute_mode(uuid)
    if current == EXCLUSIVE:
        set_mode(Smi.locate(programs, uuid, admin), mode)
    elif current != mode:
        log.warning("the compute mode of %s stays %s, as another program set it", uuid, current)


def set_mode(smi: Smi, mode: str) -> None:
    """Set the compute mode if it is another one; SharingError if it is not set afterwards."""
    await_last_write(smi.uuid)
    if nvml.read_compute_mode(smi.uuid) == mode:
        return
    words = smi.compute_mode_command(mode)
    output = smi.run(words).printed_line
    if nvml.read_compute_mode(smi.uuid) != mode:
        raise SharingError(
            f"the compute mode of {smi.uuid} is not {mode} after `{' '.join(words)}` ({output}); have an administrator "
            "allow this command, and set gpu.admin, as in 'gpu.admin=[sudo,-n]'"
        )
